"""django_pgqueue: a job queue for Django that uses the project's own PostgreSQL database.

The names in `__all__` and those in docs/reference/api.md are public. Everything else may change between releases.
"""

import sys
from typing import Any, Final

from .composed.batches import Batch, BatchProgress
from .composed.chains_and_groups import Chain, Group, chain, chord, group
from .composed.event_sending import asend_event, send_event
from .composed.workflows import Node, Workflow
from .declared.breakers import Breaker
from .declared.chunks import Chunk, ChunkJob
from .declared.limits import Limit
from .declared.retry import exponential, fixed
from .declared.steps import CompensationUnfinished, EventTimeout, Step, StepError
from .enqueue.bulk import aenqueue_many, enqueue_many
from .enqueue.calls import TaskCall
from .enqueue.job_ids import JobIds
from .exceptions import (
    Cancel,
    CannotDecode,
    CannotDelete,
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
    Throttled,
)
from .ground.batch_reference import BatchFinished
from .ground.progress import Progress
from .schedules.cron_and_every import Times, cron, every
from .states import Outcome, State
from .task import Task
from .tasks.context import TaskContext

# isort: split
from .decorator import task  # after `.task`: otherwise type checkers resolve `task` to the module of that name

__all__ = [
    "Batch",
    "BatchFinished",
    "BatchProgress",
    "Breaker",
    "Cancel",
    "CannotDecode",
    "CannotDelete",
    "CannotWait",
    "Chain",
    "Chunk",
    "ChunkJob",
    "CompensationUnfinished",
    "Dead",
    "DuplicateJob",
    "EventTimeout",
    "Group",
    "InvalidTask",
    "JobCancelled",
    "JobFailed",
    "JobGone",
    "JobIds",
    "JobLocked",
    "JobNotSucceeded",
    "LeaseLost",
    "Limit",
    "Node",
    "Outcome",
    "Progress",
    "QueueError",
    "ResultNotStored",
    "Retry",
    "Snooze",
    "State",
    "StatementTimeout",
    "Step",
    "StepError",
    "Task",
    "TaskCall",
    "TaskCancelled",
    "TaskContext",
    "TaskTimeout",
    "Throttled",
    "Times",
    "Workflow",
    "aenqueue_many",
    "asend_event",
    "chain",
    "chord",
    "cron",
    "enqueue_many",
    "every",
    "exponential",
    "fixed",
    "group",
    "send_event",
    "task",
]
__version__ = "0.1.0"

_INSTEAD: Final = {
    "shared_task": "write `from django_pgqueue import task`",
    "job": "write `from django_pgqueue import task`, or `from django_pgqueue.models import Job` for the model",
    "background": "write `from django_pgqueue import task`",
    "Job": "write `from django_pgqueue.models import Job`",
    "Celery": "there is no app object: decorate functions in <app>/tasks.py with `task`",
    "app": "there is no app object: decorate functions in <app>/tasks.py with `task`",
    "Queue": "a queue is a name: pass queue_name= to `task`",
    "queue": "a queue is a name: pass queue_name= to `task`",
    "enqueue": "call enqueue() of a task",
    "signature": "call s() of a task",
    "run_jobs": "write `from django_pgqueue.testing import run_jobs`",
}
"""Names that other queues export, and what to write instead."""


def __getattr__(name: str) -> Any:
    """Say what to import instead of a name of another queue. Python calls this for a missing attribute.

    For an `AttributeError`, the `import` statement would raise an `ImportError` of its own without the advice. It asks
    for the name in `importlib`; all other callers, such as `hasattr()`, get an `AttributeError`.
    """
    message = f"module {__name__!r} has no attribute {name!r}"
    if name not in _INSTEAD:
        raise AttributeError(message)
    if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
        raise ImportError(f"{__name__} has no name {name!r}: {_INSTEAD[name]}", name=__name__)
    raise AttributeError(f"{message}: {_INSTEAD[name]}")
