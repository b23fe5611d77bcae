"""Tasks with typed arguments. They keep what they receive in `received`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from uuid import UUID

from django_pgqueue import TaskContext, task

from .models import Courier, Parcel
from .types import Kind, Line, Receipt

if TYPE_CHECKING:
    from decimal import Decimal as Later

received: list[Any] = []


@task
def charge(
    order_id: UUID, amount: Decimal, at: datetime, lines: list[Line], kind: Kind = Kind.CARD, note: str | None = None
) -> Receipt:
    """Take arguments of many types, and return a dataclass."""
    received.append((order_id, amount, at, lines, kind, note))
    return Receipt(order_id, at, lines)


@task
async def charge_async(order_id: UUID, at: date = None) -> UUID:  # type: ignore[assignment]  # noqa: RUF013 -- common
    """Take typed arguments in a coroutine."""
    received.append((order_id, at))
    return order_id


@task
def plain(number: int, names: list[str] | None = None, **options: Any) -> dict[str, int]:
    """Take plain JSON types only."""
    return {"number": number}


@task
def scalars(count: int, ratio: float, yes: bool, name: str, *more: int, **texts: str) -> None:
    """Take each plain type of a single value."""
    received.append((count, ratio, yes, name, more, texts))


@task
def optional_by_default(note: str = None) -> None:  # type: ignore[assignment]  # noqa: RUF013 -- common
    """Have a default that the annotation does not name."""


class Extra(TypedDict, total=False):
    """Keywords of `collect`."""

    until: date
    label: str


@task(takes_context=True)
def collect(context: TaskContext, first: date, /, *days: date, **extra: Unpack[Extra]) -> None:
    """Take a context, and any number of arguments."""
    received.append((context.job_id, first, days, extra))


@task
def keywords(**moments: datetime) -> None:
    """Take any keywords."""
    received.append(moments)


@task
def later(price: Later, at: date) -> None:
    """Have an annotation that is not defined at run time."""
    received.append((price, at))


@task
def result_of(kind: str) -> Receipt | None:
    """Return what the annotation says, or something else."""
    return {
        "fits": Receipt(UUID(int=1), datetime(2026, 7, 1, tzinfo=UTC), []),
        "plain": {"not": "a receipt"},
        "none": None,
        "neither": object(),
    }[kind]  # type: ignore[return-value]  # what is tested


@task(unique_key=lambda at, parcel: f"{at:%Y-%m-%d}-{parcel.hex}")
def unique(at: datetime, parcel: Parcel) -> None:
    """Have a key that is made of typed arguments."""
    received.append((at, parcel))


@task
def daily(day: date, wait: timedelta) -> None:
    """Be scheduled with typed arguments, by a test: a schedule here would also run in other tests."""
    received.append((day, wait))


# ------------------------------------------------------------------ rows


@dataclass
class Delivery:
    """A dataclass with rows."""

    parcel: Parcel
    couriers: dict[str, Courier]


@task
def deliver(parcel: Parcel, others: list[Parcel] | None = None, courier: Courier | None = None) -> None:
    """Take rows."""
    received.append((parcel, others, courier))


@task
def deliver_all(delivery: Delivery) -> None:
    """Take a dataclass with rows."""
    received.append(delivery)


@task(on_missing="cancel")
def deliver_or_cancel(parcel: Parcel) -> None:
    """Be cancelled if the row is gone."""


@task(on_missing="retry", max_attempts=3, backoff=0)
def deliver_or_retry(parcel: Parcel) -> None:
    """Be retried if the row is gone."""


@task(atomic=True)
def deliver_atomically(parcel: Parcel) -> None:
    """Load the row in the task's transaction."""
    received.append(parcel)


@task
async def deliver_async(parcel: Parcel) -> str:
    """Load the row outside the event loop."""
    received.append(parcel)
    return str(parcel.pk)


@task(takes_context=True)
def deliver_with_context(context: TaskContext, parcel: Parcel) -> None:
    """Take a context and a row."""
    received.append((context.job_id, parcel))


class ShowHidden:
    """A middleware that shows each row while an attempt runs, as one that chooses a tenant would."""

    @contextmanager
    def run(self, context: TaskContext) -> Iterator[None]:
        """Undo the change at the end."""
        Courier.objects.create(code="inside")
        try:
            yield
        finally:
            Courier.objects.filter(code="inside").delete()


@task
def deliver_by(courier: Courier) -> None:
    """Take a row that only a middleware creates."""
    received.append(courier.code)
