"""Tasks for tests of workflows. Their annotations show which types pass from node to node."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

from django_pgqueue import Chunk, Dead, Limit, TaskContext, task


@dataclass
class Row:
    """A value that annotations convert."""

    number: int
    day: date


RAN: list[str] = []
"""The names of nodes in the order in which they ran in this process."""


@task
def number(value: int) -> int:
    return value


@task
def double(value: int) -> int:
    return 2 * value


@task
async def async_double(value: int) -> int:
    return 2 * value


@task
def total(values: list[int], start: int = 0) -> int:
    return sum(values) + start


@task
def rows(count: int) -> list[Row]:
    return [Row(each, date(2026, 1, 1 + each)) for each in range(count)]


@task
def last_day(found: list[Row], *, plus: int = 0) -> date:
    assert all(isinstance(each, Row) for each in found)
    return date.fromordinal(found[-1].day.toordinal() + plus)


@task
def note(name: str, *results: Any, **named: Any) -> Any:
    RAN.append(name)
    return [name, *results, *named.values()]


@task(takes_context=True)
def with_context(context: TaskContext, value: int) -> list[int]:
    assert context.job_id is not None
    return [context.job_id, value]


@task(max_attempts=1, backoff=0)
def broken(name: str = "broken") -> int:
    RAN.append(name)
    raise Dead("as asked")


@task(max_attempts=1, backoff=0)
def broken_until_fixed(name: str = "fixed") -> int:
    if not FIXED:
        raise Dead("as asked")
    return 7


FIXED: list[bool] = []


@task(atomic=True)
def atomic_double(value: int) -> int:
    return 2 * value


@task(retention=0)
def kept_by_none(value: int) -> int:
    return value + 1


@task(store_result=False)
def unstored(value: int) -> int:
    return value


@task(unique_key="only")
def unique(value: int) -> int:
    return value


@task(limit=Limit("graphs", key="{value}", concurrency=2))
def limited(value: int) -> int:
    return value + 100


@task(limit=Limit("tenants", key="{tenant}", concurrency=2))
def of_tenant(found: list[Row], tenant: date) -> int:
    return len(found)


@task(chunk=10)
def chunked(chunk: Chunk[int]) -> list[int]:
    return [10 * value for value in chunk.items]


@task(search=["value"])
def searched(value: int, found: int = 0) -> int:
    return value + found
