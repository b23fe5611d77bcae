"""Describe how one attempt ended, and encode its result.

`Attempt` returns a `Report`; the completer needs nothing else to write the completion and to publish its events.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from django_pgqueue.declared.retry import DEFAULT_BACKOFF
from django_pgqueue.declared.steps import Suspension
from django_pgqueue.encoding.serialization import encode_result
from django_pgqueue.exceptions import Dead, Directive, LeaseLost, ResultNotStored, TaskCancelled, TaskTimeout
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.job_log import RecordedLine
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle.types import Claimed, ExecutionKey
from django_pgqueue.tasks.definition import TaskDefinition
from django_pgqueue.worker.execution import error_text

STOPS: Final = (LeaseLost, TaskTimeout, TaskCancelled)
"""Exceptions that the worker may raise in a job's thread at any moment."""
RESULT_UNKNOWN: Final = "the attempt failed, but its exception could not be inspected: that raised another exception"
EXPIRED: Final = "the job did not start before it expired (expires)"
PLAIN: Final = frozenset({type(None), bool, int, float, str, list, dict})
"""Types of return values that cannot be an unstarted coroutine or generator."""


@dataclass(slots=True)
class Report:
    """The result of one attempt. Times are those of the monotonic clock, in seconds."""

    claimed: Claimed
    ending: Ending
    started_at: float
    finished_at: float
    task: TaskDefinition | None = None
    result: str | None = field(default=None, repr=False)
    """JSON text, or None if the result is not stored."""
    delay_seconds: float | None = None
    is_exhausted: bool = False
    """Whether the job has no delay only because this was its last attempt by the claim."""
    holds_key: bool = False
    """Whether the task raised `Throttled`: the limit key is held for `delay_seconds`."""
    suspension: Suspension | None = None
    """Why the job is suspended."""
    has_steps: bool = False
    """Whether the attempt has used durable steps."""
    has_compensations: bool = False
    """Whether a stored step has a compensation."""
    may_be_committed: bool = False
    """Whether an atomic task's COMMIT was sent and no answer came. Only the database knows whether it committed."""
    exception: BaseException | None = None
    exception_class: str = ""
    error: str = ""
    traceback: str = ""
    others: tuple[Report, ...] = field(default=(), repr=False)
    """The reports of the other jobs of the chunk."""

    @property
    def is_failure(self) -> bool:
        """Whether something went wrong. A task that snoozes or cancels itself raises too, but has not failed."""
        return self.ending in (Ending.FAILED, Ending.CRASHED, Ending.UNKNOWN)

    @property
    def duration_seconds(self) -> float:
        """Seconds that the task's function ran."""
        return self.finished_at - self.started_at


def success_ending(task: TaskDefinition, claimed: Claimed) -> Ending:
    """Return how an attempt ends that succeeds: the job is removed at once if its task keeps none."""
    keeps_nothing = task.retention is not None and task.retention_for("succeeded") == (True, 0.0)
    if keeps_nothing and any(job.in_graph for job in claimed.members):
        return Ending.SUCCEEDED  # a dependent may need the result; the pruner removes the job
    return Ending.DISCARDED if keeps_nothing else Ending.SUCCEEDED


def for_each_job(claimed: Claimed, report_of: Callable[[Claimed], Report]) -> Report:
    """Return the report of a job, with the reports of the other jobs of its chunk."""
    report = report_of(claimed)
    if claimed.others:
        report.others = tuple(map(report_of, claimed.others))
    return report


def released(claimed: Claimed) -> Report:
    """Return the report of an attempt that was released now."""
    now = time.monotonic()
    return for_each_job(claimed, lambda job: Report(job, Ending.RELEASED, now, now))


def last_resort(claimed: Claimed, started_at: float, *, may_be_committed: bool = False) -> Report:
    """Return a report of failure for an attempt whose own report could not be made.

    This runs no code of the application. A job whose attempt has ended must get a report; without one its lease is
    extended for ever.
    """

    def report_of(job: Claimed) -> Report:
        is_last = job.attempt >= job.max_attempts
        delay_seconds = None if is_last else DEFAULT_BACKOFF(job.attempt, None)
        report = Report(job, Ending.FAILED, started_at, time.monotonic(), error=RESULT_UNKNOWN)
        report.delay_seconds, report.may_be_committed = delay_seconds, may_be_committed
        report.is_exhausted = is_last
        return report

    return for_each_job(claimed, report_of)


def encoded_result(task: TaskDefinition, value: Any) -> str | None:
    """Return a result as JSON text, or None if it is not stored. Raise `ResultNotStored` if it cannot be encoded.

    `Attempt` calls this. It protects one rule: an error that occurs after the function has succeeded does not repeat
    the function.
    """
    if type(value) not in PLAIN:
        _refuse_directive(value)
    try:
        if task.adapter is not None:
            value = task.adapter.result(value)
        elif task.known_plan is not None and task.store_result and (plan := task.plan) is not None:
            value = plan.encode_result(value)
        return encode_result(value) if value is not None and task.store_result else None
    except (KeyboardInterrupt, *STOPS):
        raise
    except BaseException as error:
        reason = error_text.message(error) or type(error).__name__
        raise ResultNotStored(f"the task succeeded, but its result cannot be stored: {reason}") from error


def _refuse_directive(value: Any) -> None:
    """Raise `ResultNotStored` if a function returned what it should have raised, such as `Retry(5)`."""
    if not isinstance(value, Directive) and not (isinstance(value, type) and issubclass(value, Directive)):
        return
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    after_seconds = getattr(value, "after_seconds", None)
    written = f"{name}({'' if after_seconds is None else f'{after_seconds:g}'})"
    raise ResultNotStored(f"the task returned {written}, which has no effect: write `raise {written}`")


def recorded_class(task: TaskDefinition | None, exception: BaseException) -> str:
    """Return the path of the exception class that an execution records.

    If a task of Django's task framework returned a result that cannot be stored, this is the class of the cause,
    because the framework promises that.
    """
    is_result_error = type(exception) is ResultNotStored and task is not None and task.adapter is not None
    return error_text.class_path(exception.__cause__ or exception if is_result_error else exception)


def refuse_unrun_value(value: Any) -> None:
    """Raise `Dead` if a function returned its work unrun, as a coroutine, another awaitable or a generator."""
    is_generator = inspect.isgenerator(value) or inspect.isasyncgen(value)
    if not is_generator and not inspect.isawaitable(value):
        return
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that it was never awaited
    advice = "do the work in the function itself" if is_generator else "write the task with `async def` and await it"
    raise Dead(f"the task returned a {type(value).__name__}, which is never run: {advice}")


def binds(task: TaskDefinition, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a task's function can be called with these arguments."""
    try:
        task.func_signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


class ProgressSink(Protocol):
    """Receives what a task reports while it runs."""

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Keep the progress of an attempt. Return without waiting."""

    def open_log(self, key: ExecutionKey) -> Callable[[RecordedLine], None]:
        """Return a function that keeps a log line of an attempt, and returns without waiting."""
