"""django_pgqueue: the PostgreSQL a Django project already has, as its job queue.

The public names; everything else may change between releases.
"""

from .context import TaskContext
from .exceptions import (
    Cancel,
    CannotWait,
    Dead,
    DuplicateJob,
    InvalidTask,
    JobCancelled,
    JobFailed,
    JobGone,
    JobLocked,
    JobNotSucceeded,
    LeaseLost,
    QueueError,
    ResultNotStored,
    Retry,
    Snooze,
    StatementTimeout,
    TaskCancelled,
    TaskTimeout,
)
from .progress import Progress
from .retry import exponential, fixed
from .states import Outcome, State
from .task import Task
from .timetable import Times, cron, every

# isort: split
from .decorator import task  # after the module of that name, or a type checker takes it for that

__all__ = [
    "Cancel",
    "CannotWait",
    "Dead",
    "DuplicateJob",
    "InvalidTask",
    "JobCancelled",
    "JobFailed",
    "JobGone",
    "JobLocked",
    "JobNotSucceeded",
    "LeaseLost",
    "Outcome",
    "Progress",
    "QueueError",
    "ResultNotStored",
    "Retry",
    "Snooze",
    "State",
    "StatementTimeout",
    "Task",
    "TaskCancelled",
    "TaskContext",
    "TaskTimeout",
    "Times",
    "cron",
    "every",
    "exponential",
    "fixed",
    "task",
]
__version__ = "0.1.0"
