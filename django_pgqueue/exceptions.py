"""All exceptions of the package.

Errors of the queue::

    QueueError
    ├── InvalidTask              the function cannot be a task, or no worker would know the task
    ├── DuplicateJob             another job already has the unique key
    ├── StatementTimeout         PostgreSQL did not answer a statement of the engine in time
    ├── JobLocked                another session kept the job's row locked
    ├── CannotDelete             `delete()` of a job or a batch that has not ended
    ├── CannotWait               waiting for the job here could never end, or would block that job
    ├── JobNotSucceeded          the awaited job is finished and has no result
    │   ├── JobFailed            the job is dead
    │   ├── JobCancelled         the job was cancelled
    │   └── JobGone              the job's row was deleted: by pruning, on success (retention 0), or by an operator
    ├── ResultNotStored          the task succeeded, but its result cannot be stored; the job is dead
    ├── CannotDecode             stored arguments or a result are encoded, and this process cannot decode them
    ├── TaskTimedOut             names a timeout in results, as a `TimeoutError`; never raised
    └── WorkerLost               names an attempt whose worker was lost in results; never raised

Raised in a running task to stop it. They are not `Exception`s, so `except Exception` in a task lets them pass::

    LeaseLost                    the lease is lost: another worker may run the job
    TaskTimeout                  the task exceeded its `timeout`
    TaskCancelled                the job was cancelled, and the task did not stop by itself

Directives: a task raises one to choose how its attempt ends. They are not errors of the queue::

    Directive
    ├── Retry(after=…)           failed attempt; the next one starts at the given time
    ├── Snooze(after)            requeued for a later time, attempt not counted
    │   └── Throttled(after)     the same, and no other job with its limit key starts before that time
    ├── Cancel(reason)           the job ends cancelled
    └── Dead(reason)             the job ends dead, even if attempts are left
"""

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar, overload

from .durations import Duration, from_text, seconds

P = ParamSpec("P")
R = TypeVar("R")

NUMBER: Final = re.compile(r"\s*\d+(\.\d+)?\s*")
AFTER: Final = {"countdown": "after", "delay": "after", "seconds": "after", "eta": "after", "defer": "after"}
"""Names of the argument `after` in other queues."""


def suggesting(
    example: str, meant: Mapping[str, str] | None = None, called: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that names the argument that was probably meant, if a call does not fit the signature.

    Args:
        example: What to write, if no argument is misspelled.
        meant: Names of other libraries, and the names of the arguments that they stand for.
        called: The name of the function in the message. By default that of the class of the first argument.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as misfit:
                    advice = _advice(kwargs, signature, meant or {}) or f"write {example}"
                    raise TypeError(f"{called or type(args[0]).__name__}() {misfit}: {advice}") from None
                raise

        return call

    return decorate


def _advice(given: Mapping[str, Any], signature: inspect.Signature, meant: Mapping[str, str]) -> str:
    """Return which argument was probably meant by the first one that the function does not have, or an empty text."""
    for unknown in given.keys() - signature.parameters.keys():
        close = meant.get(unknown) or next(iter(get_close_matches(unknown, signature.parameters, n=1)), "")
        return f"did you mean {close!r}?" if close else ""
    return ""


class QueueError(Exception):
    """Base class of the errors of this package."""


class InvalidTask(QueueError, ValueError):
    """The function cannot be a task, an option is invalid, or no worker would find the task.

    The message says what to change.
    """


class DuplicateJob(QueueError):
    """Another job has the unique key, and the task has `on_conflict="raise"`. No job was added.

    Attributes:
        job_id: Id of the other job. None if it is unknown, as after `enqueue_many()`, where several calls can conflict.
    """

    def __init__(self, message: str, job_id: int | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class StatementTimeout(QueueError, OSError):
    """PostgreSQL did not answer a statement on an engine connection in time. The connection is closed."""


class JobLocked(QueueError):
    """Another session kept the job's row locked for too long. Nothing was changed."""


class CannotDelete(QueueError):
    """The job or the batch has not ended, so nothing was deleted. The message says what to do."""


class CannotWait(QueueError, RuntimeError):
    """Waiting for this job here could never end, or would block the job itself. The message gives the reason."""


class JobNotSucceeded(QueueError):
    """The awaited job is finished and has no result.

    Attributes:
        job_id: Id of the job.
        exception_class: Dotted path of the exception of its last attempt, as stored, or "".
        error: Error text of its last attempt, as stored, or "".
    """

    def __init__(self, message: str, *, job_id: int, exception_class: str = "", error: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.exception_class = exception_class
        self.error = error


class JobFailed(JobNotSucceeded):
    """The awaited job is dead: it failed and has no further attempt."""


class JobCancelled(JobNotSucceeded):
    """The awaited job was cancelled."""


class JobGone(JobNotSucceeded):
    """The awaited job's row no longer exists.

    It was pruned or deleted, or the job succeeded and its task keeps no succeeded jobs (retention 0).
    """


class ResultNotStored(QueueError):
    """The task succeeded, but its result cannot be stored. The message gives the reason.

    This is the `exception_class` of the execution and is not raised in the task. The job becomes dead at once, because
    another attempt would repeat work that has already succeeded.
    """


class CannotDecode(QueueError, ValueError):
    """The stored arguments or the result of a job are encoded, and this process cannot decode them.

    The message names the codec and the reason. It contains neither the stored bytes nor the codec's own message.
    """


class TaskTimedOut(QueueError, TimeoutError):
    """An attempt exceeded the task's `timeout`.

    Never raised: `TaskResult.errors` and `Job.errors` name it for such an attempt, so that the error of a timeout is a
    `TimeoutError`. The running task gets `TaskTimeout`, which `except Exception` cannot catch.
    """


class WorkerLost(QueueError):
    """The worker was lost while the task ran. Never raised: `TaskResult.errors` and `Job.errors` name it."""


class LeaseLost(BaseException):
    """The execution lost its lease. Its result will not be recorded, and another worker may run the job.

    Like `TaskTimeout`, this is not an `Exception`. You can catch it to clean up, but the job no longer belongs to this
    attempt.
    """


class TaskTimeout(BaseException):
    """The task exceeded its `timeout`.

    Like `asyncio.CancelledError`, this is not an `Exception`. Otherwise a task that logs the error of each item and
    continues with the next one would never stop. You can catch it to clean up. The attempt then ends as the task ends.
    """


class TaskCancelled(BaseException):
    """The job was cancelled, and the task did not stop by itself within `PGQUEUE["CANCEL_GRACE"]` seconds.

    Like `TaskTimeout`, this is not an `Exception`. You can catch it to clean up. The attempt then ends as the task
    ends.
    """


class Directive(Exception):
    """Base class of the exceptions that a task raises to choose how its attempt ends."""


class Retry(Directive):
    """Raise in a task to fail this attempt and start the next one at a chosen time.

    `Retry(60)` means a delay, as `Snooze(60)` does. `Retry("busy", after=60)` is another form of `Retry(60, "busy")`.
    The attempt counts. After the last attempt the job becomes dead, with this exception as its error. `retry_for` and
    `no_retry_for` do not apply to `Retry`.

    Args:
        after: Delay before the next attempt, in seconds or as a timedelta. None uses the task's backoff.
        reason: Error text of the attempt.

    Raises:
        TypeError: `after` is not a duration, `reason` is not a string, or a text such as "10m" stands first.
        ValueError: `after` is negative or longer than 100 years.

    Example::

        @task
        def charge(order_id: int) -> None:
            if gateway_is_busy():
                raise Retry(60, "gateway is busy")
    """

    @overload
    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None: ...
    @overload
    def __init__(self, after: Duration | None, reason: str = "") -> None: ...
    def __init__(self, *args: Any, **options: Any) -> None:
        after, reason = _delay_and_reason(*args, **options)
        super().__init__(reason)
        self.after_seconds = None if after is None else seconds(after)


@suggesting("Retry(60, 'busy')", AFTER, called="Retry")
def _delay_and_reason(
    first: Any = None, /, reason: Any = None, *, after: Duration | None = None
) -> tuple[Duration | None, str]:
    """Return the arguments of `Retry`, which takes a delay or a reason first."""
    example = "write Retry(60, 'busy')"
    if meant := from_text(first):
        raise TypeError(f"Retry({first!r}) has a reason and no delay: write Retry({meant}), or Retry(reason=…)")
    if isinstance(first, str) and NUMBER.fullmatch(first):
        raise TypeError(f"Retry({first!r}) has a reason and no delay: write Retry({first.strip()}), or Retry(reason=…)")
    if isinstance(first, str) and reason is None:
        reason = first
    elif first is not None:
        if isinstance(first, str) or after is not None:
            raise TypeError(f"Retry() takes one delay and one reason: {example}")
        if not isinstance(first, int | float | timedelta) or isinstance(first, bool):
            raise TypeError(
                "Retry() takes a delay (seconds or a timedelta) or a reason (a string) first, "
                f"not {type(first).__name__}: {example}"
            )
        after = first
    if not isinstance(reason, str | None):
        raise TypeError(f"the reason of Retry() must be a string, not {type(reason).__name__}: {example}")
    return after, reason or ""


class Snooze(Directive):
    """Raise in a task to requeue the job for a later time without counting the attempt.

    The number of snoozes is not limited. Each one leaves an execution row until the job is pruned.

    Args:
        after: Delay before the job is due again, in seconds or as a timedelta.
        reason: Text that is stored with the execution.

    Raises:
        TypeError: `after` is not a duration.
        ValueError: `after` is negative or longer than 100 years.

    Example::

        @task
        def export(report_id: int) -> None:
            if not report_is_complete(report_id):
                raise Snooze(timedelta(minutes=5), "report is not complete")
    """

    @suggesting("Snooze(60)", AFTER)
    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.after_seconds = seconds(after)


class Throttled(Snooze):
    """Raise in a task to snooze the job, and to hold its limit key, for example after an HTTP status 429.

    No worker starts a job with this key before the time `after` has passed. The longest hold of a key counts. If the
    job has no limit, this is a `Snooze`, and the worker logs a warning. The arguments are those of `Snooze`.
    """


class Cancel(Directive):
    """Raise in a task to end the job as cancelled.

    Args:
        reason: Text that is stored with the execution.
    """

    @suggesting('Cancel("no longer needed")')
    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Dead(Directive):
    """Raise in a task to end the job as a dead letter at once, even if attempts are left.

    Args:
        reason: Error text of the attempt.
    """

    @suggesting('Dead("the card is blocked")')
    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
