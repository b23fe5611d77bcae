"""Waiting for a job's result: `Job.wait()` and `Job.await_result()`.

The caller looks, by primary key: after 5 ms, then each time after half as long again, up to a second. That alone is
enough, also behind a pooler, and all that a short wait needs. One that goes on is told of the end as well (see `ends`),
and looks then.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.db import connections

from . import ends, lifecycle, registry
from .context import running_job
from .db import connect, is_in_transaction, sees_new_commits
from .exceptions import CannotWait, Duration, JobCancelled, JobFailed, JobGone, seconds
from .states import FINISHED, State

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from .models import Job

FIRST_PAUSE_SECONDS: Final = 0.005
LONGEST_PAUSE_SECONDS: Final = 1.0
GROWTH: Final = 1.5
LOOKS_ALONE: Final = 4
"""Looks, the last after 24 ms, before it asks to be told: a notification, and at first a connection, cost more."""


def wait(job: Job, timeout: Duration) -> Any:
    """Wait until a job is over, refresh it, and return its result; `timeout` is seconds or a timedelta.

    Retries, releases and rescues in between do not end it. Each look is a query on this thread's connection of the
    job's database; in between nothing is held. After 24 ms it also hears of the end, on a connection which all waits of
    the process share, unless `PGQUEUE["NOTIFY"]` is off or that leads through a pooler.

    Raises `JobFailed` or `JobCancelled`, with the job's error, if it ended so; `JobGone` if its row is removed;
    `TimeoutError` after the time; `CannotWait` if the job is not over and to wait here makes no sense: in a task, or
    in the transaction that has enqueued it.
    """
    news = threading.Event()
    with ExitStack() as stack:
        for number, pause_seconds in enumerate(_pauses(job, seconds(timeout)), 1):
            if _is_over(job, is_first=number == 1):
                return _result(job)
            if number == LOOKS_ALONE and pause_seconds:
                stack.enter_context(ends.awaiting(_alias(job), job.pk, news.set))
            news.wait(pause_seconds)
            news.clear()  # before the look: what comes after this line ends the next pause
    raise _too_late(job, timeout)


async def await_result(job: Job, timeout: Duration) -> Any:
    """Do as `wait()`, from asynchronous code: it looks in Django's thread for that, and sleeps on the event loop."""
    look, result = sync_to_async(_is_over), sync_to_async(_result)
    news, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed a moment ago
            loop.call_soon_threadsafe(news.set)

    with ExitStack() as stack:
        for number, pause_seconds in enumerate(_pauses(job, seconds(timeout)), 1):
            if await look(job, is_first=number == 1):
                return await result(job)
            if number == LOOKS_ALONE and pause_seconds:
                stack.enter_context(ends.awaiting(_alias(job), job.pk, wake))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await news.wait()
            news.clear()  # as above
    raise _too_late(job, timeout)


def _pauses(job: Job, timeout_seconds: float) -> Iterator[float]:
    """Yield how long to sleep after each look; the last one is at the end of the time."""
    if job.pk is None:
        raise CannotWait("this job was never enqueued: call enqueue() on its task, and wait for what that returns")
    deadline, pause_seconds = time.monotonic() + timeout_seconds, FIRST_PAUSE_SECONDS
    while (left_seconds := deadline - time.monotonic()) > 0:
        yield min(pause_seconds, left_seconds)
        pause_seconds = min(pause_seconds * GROWTH, LONGEST_PAUSE_SECONDS)
    yield 0.0


def _is_over(job: Job, *, is_first: bool) -> bool:
    """Say whether a job is over, and refresh it if so; at the first look also refuse to wait in vain."""
    alias = _alias(job)
    state = type(job).objects.using(alias).filter(pk=job.pk).values_list("state", flat=True).first()
    if state is None:
        raise _gone(job)
    if state not in FINISHED:
        if is_first:
            _refuse_in_vain(job, connections[alias])
        return False
    try:
        job.refresh_from_db(using=alias)
    except type(job).DoesNotExist:
        raise _gone(job) from None
    return job.state in FINISHED  # an operator may have been faster


def _alias(job: Job) -> str:
    """Return where the job is written: a replica hears of no end, and lags behind."""
    return job.write_alias


def _refuse_in_vain(job: Job, connection: BaseDatabaseWrapper) -> None:
    if (own_job_id := running_job.get()) is not None:
        raise CannotWait(
            f"job {own_job_id} would keep its slot while it waits for job {job.pk}, and workers whose jobs all wait "
            "run nothing: have the other job enqueue what follows it, or raise Snooze and look again"
        )
    if not is_in_transaction(connection):
        return
    if not sees_new_commits(connection):
        raise CannotWait(
            f"the open transaction sees the database as it was at its beginning, and never how job {job.pk} ends: wait "
            "after its end, or at READ COMMITTED"
        )
    if not _others_see(job, connection.alias):
        raise CannotWait(
            f"job {job.pk} was enqueued in the transaction that is open here, and no worker sees it before that "
            "commits: wait after the end of the outermost atomic()"
        )


def _others_see(job: Job, alias: str) -> bool:
    """Say whether a job is committed, by the only measure there is: whether another connection sees it.

    Its row's transaction id would not tell: that of a savepoint is another than the transaction's own.
    """
    with connect(alias, "waiting") as connection:
        return bool(lifecycle.existing(connection, [job.pk]))


def _result(job: Job) -> Any:
    """Return the result of a job that is over and refreshed, or raise its error."""
    if job.state == State.SUCCEEDED:
        return job.result
    failures = job.executions.using(_alias(job)).order_by("-id").values_list("exception_class", "error")
    exception_class, error = failures.first() or ("", "")
    cancelled = job.state == State.CANCELLED
    ended = "was cancelled" if cancelled else f"is dead after {job.attempt} of {job.max_attempts} attempts"
    why = ": ".join(filter(None, [exception_class, error]))
    said = f"{_name(job)} {ended}{why and f': {why}'}"
    kind = JobCancelled if cancelled else JobFailed
    raise kind(said, job_id=job.pk, exception_class=exception_class, error=error)


def _gone(job: Job) -> JobGone:
    why = "it was pruned or deleted"
    task = registry.get(job.task_name)
    if task is not None and task.retention_for(State.SUCCEEDED) == (True, 0.0):
        why = "its task keeps nothing of a job that succeeds (retention=0), so it has most likely succeeded"
    return JobGone(f"{_name(job)} is not there any more: {why}", job_id=job.pk)


def _too_late(job: Job, timeout: Duration) -> TimeoutError:
    return TimeoutError(f"{_name(job)} was not over within {seconds(timeout):g} s")


def _name(job: Job) -> str:
    return f"job {job.pk} ({registry.in_words(job.task_name)})"
