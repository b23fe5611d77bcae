"""Every exception of the package.

    QueueError
    ├── InvalidTask              a function that cannot be a task, or a task that no worker would know
    ├── DuplicateJob             another job has the unique key of one that was to be enqueued
    ├── StatementTimeout         a statement of the engine got no answer in time
    ├── JobLocked                an operator's act on one job did not get its row
    ├── CannotWait               waiting for a job here could never end, or would block what it waits for
    ├── JobNotSucceeded          the job that was waited for is over, and has no result
    │   ├── JobFailed            it is dead
    │   ├── JobCancelled         it was cancelled
    │   └── JobGone              its row was removed: by prune, by its own success (retention 0), or by hand
    ├── ResultNotStored          the task succeeded, but its result cannot be kept: its job is dead, and is not repeated
    ├── LeaseLost                raised in a task whose lease is over: another worker may run its job
    └── WorkerLost               names an attempt whose worker was lost, in results of Django's tasks framework

    TaskTimeout                  raised in a task that runs for longer than its `timeout`; not an `Exception`
    TaskCancelled                raised in a task whose job somebody has cancelled; not an `Exception`

What a task may raise to say how its attempt ends; none of them is an error of the queue:

    Directive
    ├── Retry(after=…)           counted as a failed attempt, next one at the given time
    ├── Snooze(after)            given back until later, not counted
    ├── Cancel(reason)           the job ends cancelled
    └── Dead(reason)             the job ends dead, whatever attempts are left
"""

from datetime import timedelta

Duration = float | timedelta
"""Seconds, or a timedelta: wherever the package takes a duration."""

MAX_SECONDS = 100 * 365 * 24 * 3600
"""Longer is a mistake, and beyond what a timestamp can hold in the end."""


class QueueError(Exception):
    """Base of the errors of this package."""


class InvalidTask(QueueError, ValueError):
    """The function cannot be a task, or no worker would find it; the message says what to change."""


class DuplicateJob(QueueError):
    """Another job has the unique key, and the task says `on_conflict="raise"`; nothing was written.

    `job_id` is that job's, None if `enqueue_many()` was called with several such calls or one key twice.
    """

    def __init__(self, message: str, job_id: int | None = None) -> None:
        super().__init__(message)
        self.job_id = job_id


class StatementTimeout(QueueError, OSError):
    """A statement on an engine connection got no answer within its time; the connection is closed."""


class JobLocked(QueueError):
    """Another session holds the job's row locked, and did not let go in time; nothing was changed."""


class CannotWait(QueueError, RuntimeError):
    """Waiting for this job from here could never end, or would block what it waits for; the message says why."""


class JobNotSucceeded(QueueError):
    """The job that was waited for is over, and has no result; `job_id` says which.

    `exception_class` (a dotted path) and `error` are those of its last attempt, as the row has them, or empty.
    """

    def __init__(self, message: str, *, job_id: int, exception_class: str = "", error: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id
        self.exception_class = exception_class
        self.error = error


class JobFailed(JobNotSucceeded):
    """The job is dead: it failed for the last time."""


class JobCancelled(JobNotSucceeded):
    """The job was cancelled."""


class JobGone(JobNotSucceeded):
    """The job's row is not there any more: pruned, deleted, or removed by a success that keeps nothing."""


class ResultNotStored(QueueError):
    """The task itself succeeded, but its result cannot be kept; the message says why.

    Names an attempt's error, and is not raised in a task. Its job is dead at once, because another attempt would repeat
    what has succeeded already.
    """


class LeaseLost(QueueError):
    """The execution is no longer current: what it does from now on would not count."""


class WorkerLost(QueueError):
    """The worker was lost while the task ran. Never raised: it is the `exception_class` of such an attempt's error."""


class TaskTimeout(BaseException):
    """The task has run for longer than its `timeout`.

    Not an `Exception`, like `asyncio.CancelledError`: a task that logs the errors of each item and goes on to the next
    would never end. It may be caught, to clean up; the attempt then ends as the task ends.
    """


class TaskCancelled(BaseException):
    """Somebody has cancelled the job, and the task has not ended by itself within `PGQUEUE["CANCEL_GRACE"]`.

    Not an `Exception`, as `TaskTimeout`. It may be caught, to clean up; the attempt then ends as the task ends.
    """


class Directive(Exception):
    """Base of what a task raises to decide the end of its own attempt."""


def seconds(duration: Duration) -> float:
    """Return a duration in seconds; numbers are seconds already.

    Raises `TypeError` for anything but a number or a `timedelta`, `ValueError` if negative or not finite.
    """
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise TypeError(f"a duration is a number of seconds or a timedelta, not {type(duration).__name__}")
    if not 0 <= duration <= MAX_SECONDS:
        raise ValueError(f"a duration must be between 0 and 100 years, not {duration!r}")
    return float(duration)


class Retry(Directive):
    """Fail this attempt and try again `after` seconds (or timedelta); by default after the task's backoff.

    Counts as an attempt: on the last one the job ends dead, with this exception as its reason.
    """

    def __init__(self, reason: str = "", *, after: Duration | None = None) -> None:
        super().__init__(reason)
        self.after_seconds = None if after is None else seconds(after)


class Snooze(Directive):
    """Give the job back until `after` seconds (or timedelta) from now, without counting the attempt."""

    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.after_seconds = seconds(after)


class Cancel(Directive):
    """End the job as cancelled, for the reason given."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class Dead(Directive):
    """End the job as a dead letter at once, for the reason given, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
