"""What the engine asks while it runs a job of Django's framework: the context, and the return value's form."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.db import DatabaseError

from django_pgqueue import context as engine

from . import results, telling
from .compat import TaskContext, TaskResultDoesNotExist, TaskResultStatus, normalize_json

if TYPE_CHECKING:
    from .tasks import PgQueueTask


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(TaskContext):  # type: ignore[misc, type-arg]  # frozen in truth, and takes no types there
    """Django's context, and in `job` this package's: whether the lease is lost, whether it is the last attempt."""

    job: engine.TaskContext

    @property
    def attempt(self) -> int:
        """1 for the first."""
        return self.job.attempt


class Adapter:
    """Stands between the engine and one task of Django's framework."""

    __slots__ = ("options", "task")

    def __init__(self, task: PgQueueTask[Any, Any], options: Mapping[str, Any]) -> None:
        self.task = task
        """As it was decorated."""
        self.options = options
        """Of its backend then."""

    @property
    def database(self) -> str | None:
        """The alias that the backend's OPTIONS name, if they do."""
        return self.options.get("DATABASE")

    def enqueued(self, job_id: int, database: str, queue_name: str) -> None:
        """Send `task_enqueued` for a job that a schedule has made."""
        telling.enqueued(self.task, job_id, database, queue_name)

    def context(self, job: engine.TaskContext) -> JobContext:
        """Return what the task is given as its first argument.

        Its result is loaded when it is asked for: a coroutine cannot wait for that, so for one it is loaded here. No
        attempt is lost to a query that fails.
        """
        given = {"queue_name": job.queue_name}
        result = results.told(self.task, job.job_id or 0, job.database, TaskResultStatus.RUNNING, given)
        if iscoroutinefunction(self.task.func):
            with suppress(DatabaseError, TaskResultDoesNotExist):
                result.load()
        return JobContext(task_result=result, job=job)

    def result(self, value: Any) -> Any:
        """Return a return value in the types of JSON, as Django's framework does: bytes become text, for one."""
        return normalize_json(value)
