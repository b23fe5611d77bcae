"""The same for tasks of Django's framework, with this package's decorator, and for what their results are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django_pgqueue import Limit, cron, every
from django_pgqueue.backend import JobContext, JobResult, task
from django_pgqueue.testing import assert_enqueued, capture_jobs, run_jobs, time_travel


@task
def plain(number: int, *, name: str = "") -> str:
    """An ordinary task."""
    return name * number


@task(queue_name="mail", priority=10, max_attempts=5, backoff=timedelta(seconds=1), aliases=["earlier"])
def with_options(number: int) -> int:
    """A task with options."""
    return number


def of_order(number: int) -> str:
    """A key."""
    return f"order:{number}"


@task(
    expires=600,
    limit=Limit("orders", key="{number}", concurrency=2),
    unique_key=of_order,
    unique_while=timedelta(days=1),
    on_conflict="replace",
    schedule=[every(minutes=5, args=[1]), cron("@daily", args=[2])],
)
def unique(number: int) -> int:
    """A task with the other options."""
    return number


@task(takes_context=True)
def with_context(context: JobContext, number: int) -> int:
    """A task that is given its context: callers do not pass it."""
    return number + context.attempt + context.job.max_attempts


def unique_key(number: int) -> int:
    """A plain function."""
    return number


def accepted() -> None:
    """Calls as they are meant."""
    plain.enqueue(1, name="x")
    copy = with_options.using(run_after=timedelta(hours=1), max_attempts=3)
    copy.using(run_after=datetime.now(UTC)).enqueue(number=1)
    copy.using(expires=None, unique_key=None, limit=None, headers=None, max_attempts=None).enqueue(1)
    with_context.enqueue(1)
    found = unique.using(unique_key="order", unique_while="ready", on_conflict="raise", headers={"a": 1}, expires=5)
    found.using(expires=datetime.now(UTC)).enqueue(number=1)
    later: JobResult | None = plain.enqueue_on_commit(1, name="x")
    text: str = plain.enqueue(1).return_value
    print(later)  # noqa: T201 -- uses what was bound
    number: int = with_context.get_result("1").return_value
    with time_travel(minutes=10), capture_jobs(plain) as jobs:
        count: int = run_jobs("mail", until=timedelta(hours=1))
    print(text, number, count, jobs, assert_enqueued(plain, args=[1]).pk, JobResult)  # noqa: T201 -- uses what was bound


def refused() -> None:
    """Mistakes."""
    plain.enqueue()  # type: ignore[call-arg]  # number is missing
    plain.enqueue_on_commit("1")  # type: ignore[arg-type]  # not an int
    plain.apply_async((1,))  # type: ignore[attr-defined]  # another queue's method
    plain.enqueue("1")  # type: ignore[arg-type]  # not an int
    with_context.enqueue(1, 2)  # type: ignore[call-arg]  # the worker passes the context
    with_options.using(priority="high")  # type: ignore[arg-type]  # not a number
    with_options.using(max_attempt=3)  # type: ignore[call-arg]  # no such option
    with_options.using(on_conflict="ignore")  # type: ignore[arg-type]  # none of the three
    task(unique_while="running")(unique_key)  # type: ignore[call-overload]  # neither a state nor a period
    task(schedule="@daily")(unique_key)  # type: ignore[arg-type]  # it is to be cron("@daily")
    run_jobs(until="tomorrow")  # type: ignore[arg-type]  # no time
