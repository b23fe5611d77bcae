"""Steps that the type checker must accept, and some that it must refuse: an `ignore` that is not needed is an error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from django_pgqueue import Step, TaskContext, send_event, task


def charge(order_id: int, *, currency: str = "EUR") -> str:
    """Return the id of a charge."""
    return f"{order_id} {currency}"


async def acharge(order_id: int) -> str:
    """Do as `charge()` in a coroutine."""
    return charge(order_id)


@task
def refund(charge_id: str) -> None:
    """Undo `charge()`."""


@task
def refund_with_note(charge_id: str, note: str = "") -> None:
    """Undo `charge()`, with an argument that may be left out."""


@task(takes_context=True)
def refund_with_context(context: TaskContext, charge_id: str) -> None:
    """Undo `charge()`, and use the context."""


@task
def refund_number(number: int) -> None:
    """Undo something else."""


@task
def refund_twice(charge_id: str, other_id: str) -> None:
    """Need two arguments."""


PLAIN = Step("ship", atomic=True, retries=5, backoff=timedelta(seconds=1))
UNDONE = Step("charge", compensate=refund)


def steps(context: TaskContext) -> None:
    """Call steps as plain functions."""
    one: str = context.step("charge", charge, 7)
    two: str = context.step(PLAIN, charge, 7, currency="USD")
    number: int = context.step(Step("length"), len, [1])
    assert one and two and number
    context.step("charge", charge, "7")  # type: ignore[arg-type]
    context.step("charge", charge)  # type: ignore[call-arg]
    context.sleep("nap", 7.5)
    context.sleep("nap", timedelta(hours=1))
    context.sleep("nap", datetime.now(UTC))
    context.sleep("nap", "1 hour")  # type: ignore[arg-type]
    context.wait_for_event("paid", 7, timeout=timedelta(days=1))
    context.wait_for_event("paid", UUID(int=7), timeout=7.5, name="first payment")
    context.wait_for_event("paid", 7.5)  # type: ignore[arg-type]
    woken: int | None = send_event("paid", 7, {"by": "card"})
    print(woken)  # noqa: T201 -- uses what was bound


def compensations(context: TaskContext) -> None:
    """Undo steps with tasks that take their results."""
    one: str = context.step(UNDONE, charge, 7)
    two: str = context.step(Step("charge", compensate=refund), charge, 7)
    context.step(Step("charge", compensate=refund_with_note), charge, 7)
    context.step(Step("charge", compensate=refund_with_context), charge, 7)
    context.step(Step("charge", compensate=refund.using(max_attempts=50)), charge, 7)
    assert one and two
    context.step(UNDONE, len, [1])  # type: ignore[misc]
    context.step(Step("charge", compensate=refund_number), charge, 7)  # type: ignore[misc]
    Step("charge", compensate=refund_twice)  # type: ignore[arg-type]
    Step("charge", compensate=charge)  # type: ignore[call-overload]


async def coroutines(context: TaskContext) -> None:
    """Do the same in a coroutine."""
    one: str = await context.astep("charge", acharge, 7)
    two: str = await context.astep(Step("charge", compensate=refund), acharge, 7)
    three: str = await context.astep(Step("charge", atomic=True, compensate=refund), charge, 7)
    assert one and two and three
    await context.astep("charge", acharge, "7")  # type: ignore[call-overload]
    await context.asleep("nap", 7.5)
    await context.await_event("paid", 7, timeout=60)
