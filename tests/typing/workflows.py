"""Workflows that the type checker must accept, and some that it must refuse."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from django_pgqueue import Chain, Group, Node, TaskContext, Workflow, chain, chord, group, task


@task
def fetch(url: str) -> list[str]:
    """Return rows."""
    return [url]


@task
def count(rows: list[str], *, start: int = 0) -> int:
    """Return their number."""
    return start + len(rows)


@task
async def double(number: int) -> int:
    """Return twice as much."""
    return 2 * number


@task(takes_context=True)
def store(context: TaskContext, number: int, name: str) -> str:
    """Store it."""
    return f"{context.job_id} {name} {number}"


@task
def total(numbers: list[int], name: str) -> float:
    """Return the sum."""
    return float(sum(numbers))


@task(takes_context=True)
async def multiply(context: TaskContext, number: int, by: int = 3) -> int:
    """Return a multiple."""
    return by * number


@task
def describe(number: int | None) -> str:
    """Take more than a number."""
    return str(number)


@task
def longest(rows: Sequence[str | None]) -> int:
    """Take more than a list of strings."""
    return max(len(row or "") for row in rows)


def accepted() -> None:
    """The forms of the guide."""
    counted = chain(fetch.s("u")).then(count, start=1)
    assert_type(counted, Chain[int])
    assert_type(counted.then(store, "x"), Chain[str])
    assert_type(group(count.s([]), counted), Group[int])
    assert_type(group(count.s([]), count.s([])).then(total, "x"), Chain[float])
    assert_type(chord([count.s([]), count.s([])], total, "x"), Chain[float])
    assert_type(chain(fetch.s("u")).fan_out([count, count.using(priority=5)], start=3), Group[int])
    assert_type(counted.enqueue(description="x", if_dependency_fails="block"), Workflow)
    workflow = Workflow(on_success=fetch.s("u"))
    rows = workflow.add(fetch.s("u"))
    assert_type(rows, Node[list[str]])
    number = workflow.add(count.s(rows.result), after=[rows], if_dependency_fails="cancel")
    assert_type(number.result, int)
    assert_type(number.result_or_none, int | None)
    workflow.add(total.s([number.result, number.result], "x"))
    workflow.enqueue()


def coroutine_functions() -> None:
    """Their results have the type that the coroutine returns."""
    doubled = chain(double.s(1)).then(double).then(multiply, by=4)
    assert_type(doubled, Chain[int])
    assert_type(doubled.then(store, "x"), Chain[str])
    assert_type(group(double.s(1), doubled), Group[int])
    assert_type(chord([double.s(1), double.s(2)], total, "x"), Chain[float])
    assert_type(chain(count.s([])).fan_out([double, double]), Group[int])
    workflow = Workflow()
    node = workflow.add(double.s(1))
    assert_type(node, Node[int])
    assert_type(workflow.add(store.s(node.result, "x")).result, str)


def wider_arguments() -> None:
    """A task can take more than what the one before returns."""
    assert_type(chain(count.s([])).then(describe), Chain[str])
    assert_type(chain(fetch.s("u")).then(longest), Chain[int])
    assert_type(group(describe.s(1)).then(longest), Chain[int])


async def asynchronous() -> None:
    """The forms for coroutines."""
    assert_type(await chain(fetch.s("u")).aenqueue(), Workflow)
    workflow = await group(fetch.s("u")).aenqueue()
    assert_type(await workflow.acancel(), int)


def refused() -> None:
    """Mistakes that a type checker reports."""
    workflow = Workflow()
    rows = workflow.add(fetch.s("u"))
    double.s(rows.result)  # type: ignore[call-overload]  # a list, not an int
    count.s(rows.result_or_none)  # type: ignore[arg-type]  # it may be None
    chain(fetch.s("u")).then(total, "x")  # type: ignore[arg-type]  # a list of strings, not of ints
    chain(fetch.s("u")).then(count, begin=1)  # type: ignore[call-arg]  # no such argument
    chain(double.s(1)).then(longest)  # type: ignore[arg-type]  # a number, not strings
    chain(double.s(1)).then(multiply, "4")  # type: ignore[arg-type]  # not a number
    group(count.s([])).then(count)  # type: ignore[arg-type]  # a list of ints, not of strings
    workflow.add(fetch)  # type: ignore[arg-type]  # not a call
    Workflow(if_dependency_fails="retry")  # type: ignore[arg-type]  # no such policy
    chain(fetch.s("u")).enqueue(priority=5)  # type: ignore[call-arg]  # an option of tasks
