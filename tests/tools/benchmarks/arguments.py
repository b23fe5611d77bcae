"""What typed arguments cost a call, in µs: `python -m tests.tools.benchmarks.arguments`. Not run in CI.

Medians of 25 rounds, in CPU time of this process, so that other work on the machine disturbs them little. The time of
PostgreSQL is not in them. The table in docs/internals/arguments.md is from here.
"""

from __future__ import annotations

import os
import statistics
import time
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

import django
import msgspec
import pydantic
from django.db import connection, transaction

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()  # before the models below are imported

from django.contrib.auth.models import Group  # noqa: E402

from django_pgqueue.arguments.plan import new_plan  # noqa: E402
from django_pgqueue.encoding.serialization import decode_arguments, encode_arguments  # noqa: E402
from django_pgqueue.task import Task  # noqa: E402
from django_pgqueue.worker.execution import stored_values  # noqa: E402

ROUNDS = 25
ID, DAY = UUID("0197a3f0-6b7e-7cc3-98c4-dc0c0c07398f"), date(2026, 11, 22)


@dataclass
class Line:
    """A line of an order."""

    order_id: UUID
    product: str
    price: Decimal
    count: int
    due: date


class PydanticLine(pydantic.BaseModel):
    """The same for pydantic."""

    order_id: UUID
    product: str
    price: Decimal
    count: int
    due: date


class MsgspecLine(msgspec.Struct):
    """The same for msgspec."""

    order_id: UUID
    product: str
    price: Decimal
    count: int
    due: date


def plain(a: int, *, b: int) -> None: ...


def scalars(order_id: UUID, day: date) -> None: ...


def dataclasses(lines: list[Line]) -> None: ...


def pydantics(lines: list[PydanticLine]) -> None: ...


def structs(lines: list[MsgspecLine]) -> None: ...


def row(group: Group) -> None: ...


def rows(groups: list[Group]) -> None: ...


def lines(of: Callable[..., Any]) -> list[Any]:
    """Return ten lines of a class."""
    return [of(order_id=ID, product=f"tea {number}", price=Decimal("3.50"), count=2, due=DAY) for number in range(10)]


def calls() -> list[tuple[str, Callable[..., None], tuple[Any, ...], dict[str, Any], int]]:
    """Return the name of each measurement, its function and arguments, and how often a round calls it."""
    groups = list(Group.objects.order_by("pk"))
    return [
        ("plain `(1, b=2)`, without a plan", plain, (1,), {"b": 2}, 5000),
        ("a `UUID` and a `date`", scalars, (ID, DAY), {}, 5000),
        ("ten dataclasses with five fields", dataclasses, (lines(Line),), {}, 500),
        ("ten pydantic models with five fields", pydantics, (lines(PydanticLine),), {}, 500),
        ("ten msgspec structs with five fields", structs, (lines(MsgspecLine),), {}, 500),
        ("a row of a model, loaded by one query", row, (groups[0],), {}, 200),
        ("ten rows of a model, loaded by one query", rows, (groups,), {}, 200),
    ]


def cost(call: Callable[[], object], times: int) -> float:
    """Return the µs of CPU time that a call takes."""
    call()  # it compiles the plan
    seconds = timeit.repeat(call, timer=time.thread_time, repeat=ROUNDS, number=times)
    return statistics.median(seconds) / times * 1e6


def measure(name: str, func: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any], times: int) -> None:
    """Print a row of the table."""
    task: Task[..., None] = Task(func=func)
    text = encode_arguments(*task.encoded_call(args, kwargs))
    stored = decode_arguments(text)

    def read(call: tuple[list[Any], dict[str, Any]]) -> object:
        plan = task.plan
        return call if plan is None else stored_values.decoded(task, plan, *call, connection.alias)

    figures = [
        cost(lambda: encode_arguments(*task.encoded_call(args, kwargs)), times),
        cost(lambda: task.encoded_call(args, kwargs), times),
        cost(lambda: read(decode_arguments(text)), times),
        cost(lambda: read(stored), times),
    ]
    cells = [f"{figure:.2g} µs" if figure < 10 else f"{figure:.0f} µs" for figure in figures]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)  # noqa: T201 -- what it is for


def main() -> None:
    """Print the table."""
    connection.settings_dict["NAME"] = "postgres"
    print(  # noqa: T201 -- what it is for
        "| call | `enqueue()` converts and encodes | of this, conversion "
        "| the worker decodes and converts | of this, conversion |\n|---|---|---|---|---|"
    )
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE auth_group (id integer PRIMARY KEY, name varchar(150) NOT NULL)")
        cursor.execute("INSERT INTO auth_group SELECT n, 'group ' || n FROM generate_series(1, 10) AS n")
        for each in calls():
            measure(*each)
        transaction.set_rollback(True)
    compiling = cost(lambda: new_plan(dataclasses, 0), 50)
    print(f"\nCompiling the plan of the ten dataclasses: {compiling / 1000:.2g} ms")  # noqa: T201 -- what it is for


if __name__ == "__main__":
    main()
