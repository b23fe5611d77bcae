"""django_pgqueue: the PostgreSQL a Django project already has, as its job queue.

The public names; everything else may change between releases.
"""

from .context import TaskContext
from .decorator import task
from .exceptions import (
    Cancel,
    Dead,
    InvalidTask,
    JobLocked,
    LeaseLost,
    QueueError,
    Retry,
    Snooze,
    StatementTimeout,
    TaskTimeout,
)
from .retry import exponential, fixed
from .states import Outcome, State
from .task import Task

__all__ = [
    "Cancel",
    "Dead",
    "InvalidTask",
    "JobLocked",
    "LeaseLost",
    "Outcome",
    "QueueError",
    "Retry",
    "Snooze",
    "State",
    "StatementTimeout",
    "Task",
    "TaskContext",
    "TaskTimeout",
    "exponential",
    "fixed",
    "task",
]
__version__ = "0.1.0"
