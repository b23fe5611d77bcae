"""What the engine asks while it runs a job of Django's framework: the context, and the return value's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django_pgqueue import context as engine

from . import results
from .compat import TaskContext, normalize_json

if TYPE_CHECKING:
    from .tasks import PgQueueTask


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(TaskContext):  # type: ignore[misc, type-arg]  # frozen in truth, and takes no types there
    """Django's context, and in `job` this package's: whether the lease is lost, whether it is the last attempt."""

    job: engine.TaskContext


class Adapter:
    """Stands between the engine and one task of Django's framework."""

    __slots__ = ("task",)

    def __init__(self, task: PgQueueTask[Any, Any]) -> None:
        self.task = task
        """As it was decorated."""

    def context(self, job: engine.TaskContext) -> JobContext:
        """Return what the task is given as its first argument; one query."""
        result = results.load(job.database, job.job_id or 0, results.alias_for(self.task.backend, job.database))
        return JobContext(task_result=result, job=job)

    def result(self, value: Any) -> Any:
        """Return a return value in the types of JSON, as Django's framework does: bytes become text, for one."""
        return normalize_json(value)
