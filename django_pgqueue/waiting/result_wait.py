"""Wait for a job's result: the code of `Job.wait()` and `Job.await_result()`.

The caller polls the job's row by primary key. The interval starts at 5 ms and grows by half each time, up to a second.
Polling alone is sufficient, also behind a pooler, and a short wait uses nothing else. A longer wait is also woken by a
notification (see `completion_listener`), and then polls at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final

from asgiref.sync import sync_to_async
from django.db import connections

from django_pgqueue.db.engine_connection import connect
from django_pgqueue.db.transactions import is_in_transaction, sees_new_commits
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.exceptions import CannotDecode, CannotWait, InvalidTask, JobCancelled, JobFailed, JobGone
from django_pgqueue.ground.envelope import EncodedValue
from django_pgqueue.lifecycle import operator
from django_pgqueue.states import FINISHED, UNCOUNTED, State
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.context import running_job

from . import completion_listener

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.models import Job

FIRST_PAUSE_SECONDS: Final = 0.005
"""First polling interval."""
LONGEST_PAUSE_SECONDS: Final = 1.0
"""Longest polling interval."""
GROWTH: Final = 1.5
"""Factor from one polling interval to the next."""
LOOKS_ALONE: Final = 4
"""Polls before the listener is used, the last one after 24 ms. Notifications, and at first a connection, cost more."""


def wait(job: Job, timeout: Duration, why: Callable[[Job], str] = lambda job: "") -> Any:
    """Wait until a job is finished, refresh it, and return its result.

    Retries, releases and rescues do not end the wait. Each poll is a query on this thread's connection to the job's
    database; between polls it holds neither a transaction nor a lock. After 24 ms the wait also listens for the job's
    end, on a connection that all waits of the process share, unless `PGQUEUE["NOTIFY"]` is off or that connection leads
    through a transaction pooler.

    Args:
        job: The job to wait for. It is refreshed from the database when it is finished.
        timeout: How long to wait at most, in seconds or as a timedelta.
        why: Returns why a job has not finished, for the message of `TimeoutError`. It must not raise an error.

    Returns:
        The result of the job.

    Raises:
        JobFailed: The job is dead. The exception has the error of its last attempt.
        JobCancelled: The job was cancelled. The exception has the reason, if there is one.
        JobGone: The job's row no longer exists.
        TimeoutError: The job was not finished when `timeout` passed.
        CannotWait: The job is not finished and cannot finish while this code waits: in a task, in the transaction that
            enqueued the job, or in a transaction that cannot see later commits.
        CannotDecode: The job has succeeded, but this process lacks the codec or the key that its result needs.
    """
    wakeup = threading.Event()
    with ExitStack() as stack:
        for number, pause_seconds in enumerate(_pauses(job, seconds(timeout)), 1):
            if _is_over(job, is_first=number == 1):
                return _result(job)
            if number == LOOKS_ALONE and pause_seconds:
                stack.enter_context(completion_listener.awaiting(job.write_alias, job.pk, wakeup.set))
            wakeup.wait(pause_seconds)
            wakeup.clear()  # before the poll: a later notification ends the next interval; after it, it would be lost
    raise _timed_out(job, timeout, why(job) if seconds(timeout) else "")


async def await_result(job: Job, timeout: Duration, why: Callable[[Job], str] = lambda job: "") -> Any:
    """Wait like `wait()`, from asynchronous code: poll in Django's thread for blocking calls, sleep on the event loop.

    The arguments, the return value and the exceptions are those of `wait()`.
    """
    is_over, result = sync_to_async(_is_over), sync_to_async(_result)
    wakeup, loop = asyncio.Event(), asyncio.get_running_loop()

    def wake() -> None:
        with suppress(RuntimeError):  # the loop was closed in the meantime
            loop.call_soon_threadsafe(wakeup.set)

    with ExitStack() as stack:
        for number, pause_seconds in enumerate(_pauses(job, seconds(timeout)), 1):
            if await is_over(job, is_first=number == 1):
                return await result(job)
            if number == LOOKS_ALONE and pause_seconds:
                stack.enter_context(completion_listener.awaiting(job.write_alias, job.pk, wake))
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await wakeup.wait()
            wakeup.clear()  # as above
    raise _timed_out(job, timeout, await sync_to_async(why)(job) if seconds(timeout) else "")


def _pauses(job: Job, timeout_seconds: float) -> Iterator[float]:
    """Yield the interval after each poll. The last poll is at the end of the timeout, followed by 0."""
    if job.pk is None:
        raise CannotWait(
            "this job was never enqueued: call enqueue() on its task, and wait for the job that it returns"
        )
    deadline, pause_seconds = time.monotonic() + timeout_seconds, FIRST_PAUSE_SECONDS
    while (left_seconds := deadline - time.monotonic()) > 0:
        yield min(pause_seconds, left_seconds)
        pause_seconds = min(pause_seconds * GROWTH, LONGEST_PAUSE_SECONDS)
    yield 0.0


def _is_over(job: Job, *, is_first: bool) -> bool:
    """Return whether a job is finished, and refresh it if so. On the first poll, raise if waiting cannot succeed."""
    alias = job.write_alias  # a replica lags behind and receives no notifications
    state = type(job).objects.using(alias).filter(pk=job.pk).values_list("state", flat=True).first()
    if state is None:
        raise _gone(job)
    if state not in FINISHED:
        if is_first:
            _refuse_useless_wait(job, connections[alias])
        return False
    try:
        job.refresh_from_db(using=alias)
    except type(job).DoesNotExist:
        raise _gone(job) from None
    return job.state in FINISHED  # an operator can have retried the job between the two queries


def _refuse_useless_wait(job: Job, connection: BaseDatabaseWrapper) -> None:
    """Raise `CannotWait` if the job cannot finish, or cannot be seen to finish, while this code waits."""
    if (own_job := running_job.get()) is not None:
        raise CannotWait(
            f"job {own_job.job_id} would keep its slot while it waits for job {job.pk}, and workers whose jobs all "
            f"wait run nothing: enqueue the next step from job {job.pk}, or raise Snooze and check again"
        )
    if not is_in_transaction(connection):
        return
    if not sees_new_commits(connection):
        raise CannotWait(
            f"the open transaction sees the database as it was at its beginning, and never sees job {job.pk} finish: "
            "wait after the transaction, or use READ COMMITTED"
        )
    if not _others_see(job, connection.alias):
        raise CannotWait(
            f"job {job.pk} was enqueued in the transaction that is open here, and no worker sees it before the "
            "commit: wait after the outermost atomic() block"
        )


def _others_see(job: Job, alias: str) -> bool:
    """Return whether a job is committed, by reading it on another connection.

    Its row's transaction id (`xmin`) does not show it, because a savepoint has another id than its transaction.
    """
    with connect(alias, "waiting") as connection:
        return bool(operator.existing(connection, [job.pk]))


def _result(job: Job) -> Any:
    """Return the result of a finished and refreshed job, or raise its error."""
    if job.state == State.SUCCEEDED:
        return return_value(job)
    last = job.executions.using(job.write_alias).order_by("-id").values_list("outcome", "exception_class", "error")
    outcome, exception_class, error = last.first() or ("", "", "")
    cancelled = job.state == State.CANCELLED
    if cancelled and outcome in UNCOUNTED:  # it was cancelled afterwards, while it slept or was released
        exception_class = error = ""
    ending = "was cancelled" if cancelled else f"is dead after {job.attempt} of {job.max_attempts} attempts"
    cause = ": ".join(filter(None, [exception_class, error]))
    message = f"{_name(job)} {ending}{cause and f': {cause}'}"
    kind = JobCancelled if cancelled else JobFailed
    raise kind(message, job_id=job.pk, exception_class=exception_class, error=error)


def return_value(job: Job) -> Any:
    """Return a job's result as the return annotation of its task reads it, if this process knows the task.

    The result stays plain JSON if an annotation of the task is invalid, which a check reports.
    Raise `CannotDecode` if the result is encoded and this process cannot decode it.
    """
    if isinstance(job.result, EncodedValue):
        raise CannotDecode(f"{_name(job)} has succeeded, but its result cannot be read: {job.result.problem}")
    task = registry.get(job.task_name)
    plan = None
    with suppress(InvalidTask):
        plan = None if task is None else task.plan
    return job.result if plan is None else plan.decode_result(job.result)


def _gone(job: Job) -> JobGone:
    cause = "it was pruned or deleted, or it was never committed: the transaction that enqueued it was rolled back"
    task = registry.get(job.task_name)
    if task is not None and task.retention_for(State.SUCCEEDED) == (True, 0.0):
        cause = "its task keeps no succeeded jobs (retention=0), so it has most likely succeeded"
    return JobGone(f"{_name(job)} no longer exists: {cause}", job_id=job.pk)


def _timed_out(job: Job, timeout: Duration, reason: str) -> TimeoutError:
    return TimeoutError(f"{_name(job)} was not finished within {seconds(timeout):g} s{reason and f': {reason}'}")


def _name(job: Job) -> str:
    return f"job {job.pk} ({registry.in_words(job.task_name)})"
