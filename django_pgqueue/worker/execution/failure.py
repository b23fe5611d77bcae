"""Turn the exception that ended an attempt into a report: failed, snoozed, cancelled, released, unknown or postponed.

`Attempt` calls `report_of()` for everything that a task raises, and for what another thread raises in the job's thread.
It protects one rule: each attempt gets a report, whatever the exception's own code does.

The slots call `given_up()` when they abandon a job that did not stop at its timeout or after its cancellation, because
the attempt itself may never return.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol

from django_pgqueue.declared.steps import StepsChanged, Suspended
from django_pgqueue.exceptions import (
    Cancel,
    Dead,
    ResultNotStored,
    Retry,
    Snooze,
    TaskCancelled,
    TaskTimeout,
    Throttled,
)
from django_pgqueue.ground.attempt_ends import CANCELLED, CANCELLED_ITSELF, KEPT_RUNNING
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry

from . import error_text, retry_policy
from .atomic import NoTransaction
from .attempt_plan import AttemptPlan
from .error_text import is_a
from .report import STOPS, Report, for_each_job, last_resort, recorded_class
from .steps.runner import AttemptSteps
from .stored_values import DependencyUnfinished, DoesNotFit

POSTPONED_SECONDS: Final = 1.0
"""When a postponed job is due again at the earliest, so that it is not claimed again before it waits."""


class EndedAttempt(Protocol):
    """An attempt that has ended with an exception."""

    claimed: Claimed
    plan: AttemptPlan
    alias: str
    steps: AttemptSteps | None
    started_at: float
    interrupted: bool
    timed_out: bool
    cancelled: bool
    committing: bool


def report_of(attempt: EndedAttempt, exception: BaseException) -> Report:
    """Return the report of an attempt. Raise only what another thread raises in this one."""
    try:
        return _report_of(attempt, exception)
    except STOPS:
        raise
    except BaseException:  # noqa: BLE001 -- the exception's own code may raise anything
        return last_resort(attempt.claimed, attempt.started_at, may_be_committed=attempt.committing)


def _report_of(attempt: EndedAttempt, exception: BaseException) -> Report:
    if attempt.timed_out and is_a(exception, TaskTimeout, asyncio.CancelledError):
        exception = timeout_of(attempt.claimed).with_traceback(exception.__traceback__)
    elif attempt.cancelled and is_a(exception, asyncio.CancelledError) and not attempt.interrupted:
        exception = TaskCancelled()
    report = Report(
        attempt.claimed,
        Ending.FAILED,
        attempt.started_at,
        time.monotonic(),
        exception=exception,
        exception_class=recorded_class(attempt.plan.task, exception),
        error=error_text.message(exception),
        may_be_committed=attempt.committing,
        has_compensations=attempt.steps is not None and attempt.steps.has_compensations,
    )
    if is_a(exception, Suspended):
        report.ending, report.suspension = Ending.SUSPENDED, exception.suspension
        report.delay_seconds, report.exception, report.exception_class = exception.suspension.delay_seconds, None, ""
    elif is_a(exception, Snooze):
        report.ending, report.delay_seconds = Ending.SNOOZED, exception.after_seconds
        report.holds_key = is_a(exception, Throttled)
    elif is_a(exception, Cancel, TaskCancelled):
        report.ending = Ending.CANCELLED
        report.error = report.error or (CANCELLED_ITSELF if is_a(exception, Cancel) else CANCELLED)
    elif attempt.interrupted and not attempt.timed_out and not is_a(exception, Dead):
        report.ending = Ending.RELEASED  # its exception may be a consequence of the interruption
    elif is_a(exception, DoesNotFit, StepsChanged, NoTransaction):
        _does_not_fit(report, exception)
    else:
        _failed(report, exception, attempt.alias)
    return report


def _does_not_fit(report: Report, exception: BaseException) -> None:
    if is_a(exception, DependencyUnfinished):
        report.ending, report.delay_seconds = Ending.POSTPONED, POSTPONED_SECONDS
        report.exception, report.exception_class = None, ""
        return
    report.delay_seconds = retry_policy.delay_while_unknown(report.claimed.unknown_seconds)
    report.ending = Ending.FAILED if report.delay_seconds is None else Ending.UNKNOWN


def _failed(report: Report, exception: BaseException, alias: str) -> None:
    report.traceback = error_text.traceback_text(exception)
    if is_a(exception, Dead) or is_a(exception, ResultNotStored):
        return
    report.is_exhausted = retry_policy.is_exhausted(report.claimed, exception)
    if is_a(exception, Retry) and exception.after_seconds is not None:
        last = report.claimed.attempt >= report.claimed.max_attempts
        report.delay_seconds = None if last else exception.after_seconds
    else:
        report.delay_seconds = retry_policy.delay_after_failure(report.claimed, exception, alias=alias)


def given_up(claimed: Claimed, started_at: float, *, alias: str, stack: str, cancelled: bool = False) -> Report:
    """Return the report of an attempt that did not stop in time, with the stack of its code, or of each job of a chunk.

    `alias` is the database of the job.
    """
    most_bytes = get_settings().MAX_TRACEBACK_BYTES
    if cancelled:
        error = error_text.storable(f"{KEPT_RUNNING}\n{stack}", most_bytes)
        return for_each_job(
            claimed, lambda job: Report(job, Ending.CANCELLED, started_at, time.monotonic(), error=error)
        )
    timeout, traceback = timeout_of(claimed), error_text.storable(stack, most_bytes)

    def timed_out(job: Claimed) -> Report:
        return Report(
            job,
            Ending.FAILED,
            started_at,
            time.monotonic(),
            delay_seconds=retry_policy.delay_after_failure(job, timeout, alias=alias, in_time=True),
            is_exhausted=retry_policy.is_exhausted(job, timeout),
            exception=timeout,
            exception_class=error_text.class_path(timeout),
            error=error_text.message(timeout),
            traceback=traceback,
        )

    return for_each_job(claimed, timed_out)


def timeout_of(claimed: Claimed) -> TaskTimeout:
    task = registry.get(claimed.task_name)
    seconds = (task and task.timeout_seconds) or 0.0
    return TaskTimeout(f"ran for longer than its timeout of {seconds:g} s")
