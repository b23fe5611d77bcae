"""Calls that the type checker must accept, and some that it must refuse: an `ignore` that is not needed is an error."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django_pgqueue import Retry, TaskContext, cron, every, exponential, task
from django_pgqueue.models import Job


@task
def plain(number: int, *, name: str = "") -> str:
    """An ordinary task."""
    return name * number


@task(queue_name="mail", priority=10, max_attempts=5, backoff=timedelta(seconds=1), retry_for=(OSError,))
def with_options(number: int) -> int:
    """A task with options."""
    return number


def by_attempt(attempt: int, exception: BaseException | None) -> float | None:
    """The backoff of this package."""
    return attempt


def by_result(exception: BaseException, task_result: Job) -> timedelta | None:
    """The backoff that Django plans."""
    return timedelta(seconds=task_result.attempts)


@task(backoff=by_attempt)
def with_backoff() -> None:
    """Raise each form of `Retry`."""
    raise Retry(60, "busy")


@task(backoff=by_result)
def with_backoff_of_result() -> None:
    """The same."""
    raise Retry("busy", after=timedelta(minutes=1))


@task(backoff=lambda attempt, exception: 5 * attempt)
def with_backoff_of_lambda() -> None:
    """The same."""
    raise Retry(timedelta(minutes=1))


@task(backoff=exponential(10, jitter="full"))
def with_full_jitter() -> None:
    """The same."""
    raise Retry(reason="busy", after=60)


@task(takes_context=True)
def with_context(context: TaskContext, number: int) -> int:
    """A task that is given its context: callers do not pass it."""
    return number + context.attempt


@task(takes_context=True, schedule=[cron("0 9 * * 1-5", tz="Europe/Paris", args=[1]), every(minutes=5, args=[2])])
def by_the_clock(context: TaskContext, number: int) -> int:
    """A task that workers enqueue by themselves."""
    return number


@task
async def coroutine(number: int) -> int:
    """An async task."""
    return number


def accepted() -> None:
    """Calls as they are meant."""
    job: Job = plain.enqueue(1, name="x")
    copy = with_options.using(run_after=3, priority=1, queue_name="x", database="default")
    copy.using(run_after=timedelta(minutes=5)).enqueue(1)
    copy.using(run_after=datetime.now(UTC)).enqueue(number=1)
    copy.using(expires=None, unique_key=None, headers=None, max_attempts=None, database=None).enqueue(1)
    with_context.enqueue(1)
    coroutine.enqueue(1)
    text: str = plain(1, name="x")
    number: int = with_context(1)
    later: Job | None = plain.enqueue_on_commit(1, name="x")
    found: Job = plain.get_result(str(job.id))
    values: tuple[str, bool, int, list[object]] = (found.status, found.is_finished, found.attempts, found.args)
    print(later, values, [error.exception_class_path for error in found.errors])  # noqa: T201 -- uses what was bound
    ids: list[int] = plain.enqueue_many([((1,), {"name": "x"})])
    count: int = plain.enqueue_many([((1,), {})], returning=False)
    changed: int = Job.objects.filter(state="dead", queue_name="mail").retry()
    print(job, text, number, ids, count, changed, job.cancel())  # noqa: T201 -- uses what was bound


async def accepted_in_async_code() -> None:
    """The same from a coroutine."""
    job: Job = await plain.aenqueue(1)
    later: Job | None = await plain.aenqueue_on_commit(1)
    await job.arefresh()
    print(later, await plain.aget_result(1))  # noqa: T201 -- as above
    number: int = await coroutine(1)
    print(job, number)  # noqa: T201 -- as above


def refused() -> None:
    """Mistakes."""
    Retry([60])  # type: ignore[call-overload]  # neither a delay nor a reason
    Retry("busy", 60)  # type: ignore[call-overload]  # the delay comes first
    exponential(jitter="half")  # type: ignore[arg-type]  # no such jitter
    plain.delay(1)  # type: ignore[attr-defined]  # another queue's method
    plain.enqueue_on_commit("1")  # type: ignore[arg-type]  # not an int
    plain.enqueue()  # type: ignore[call-arg]  # number is missing
    plain.enqueue("1")  # type: ignore[arg-type]  # not an int
    plain.enqueue(1, title="x")  # type: ignore[call-arg]  # no such argument
    with_context.enqueue(TaskContext(), 1)  # type: ignore[call-arg, arg-type]  # the worker passes the context
    with_options.using(priority="high")  # type: ignore[arg-type]  # not a number
    plain.enqueue_many([1, 2])  # type: ignore[list-item]  # not (args, kwargs)
    task(schedule="@daily")(context_missing)  # type: ignore[arg-type]  # it is to be cron("@daily")
    every(minutes=5, if_running="wait")  # type: ignore[arg-type]  # no such way
    task(takes_context=True)(context_missing)  # type: ignore[arg-type]  # its first argument is no TaskContext


def context_missing(number: int) -> None:
    """Not a task that takes a context."""
