"""Give the engine the parts of Django's framework that a running job needs: the context and the return value's form.

`task_class.for_engine()` attaches an `Adapter` to each task of the registry that belongs to Django's framework. The
engine calls it and imports nothing of the framework itself, which Django 5.2 does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.dispatch import Signal

from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.tasks import context as engine

from . import result_translation
from .compat import TaskContext, TaskResultDoesNotExist, TaskResultStatus, normalize_json, task_backends, task_enqueued

if TYPE_CHECKING:
    from .compat import BaseTaskBackend, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext(TaskContext):  # type: ignore[misc, type-arg]  # frozen at run time, where it takes no types
    """Django's task context, with this package's own context in `job`.

    Attributes:
        job: The context of this package. It knows, for example, whether the lease is lost and whether this is the last
            attempt.
    """

    job: engine.TaskContext

    @property
    def attempt(self) -> int:
        """The number of this attempt, starting with 1."""
        return self.job.attempt


class Adapter:
    """Translates between the engine and one task of Django's framework."""

    __slots__ = ("backend_class", "options", "queues", "task")

    def __init__(self, task: Task[Any, Any], backend: BaseTaskBackend) -> None:
        self.task = task
        """The task as it was decorated."""
        self.options: Mapping[str, Any] = getattr(backend, "options", {})
        """The OPTIONS of its backend at that time."""
        self.queues: frozenset[str] = frozenset(getattr(backend, "queues", ()))
        """The QUEUES of its backend at that time. If the list is empty, every queue is accepted."""
        self.backend_class = type(backend)

    @property
    def database(self) -> str | None:
        """The alias in the backend's OPTIONS; None if the database routers choose it."""
        return self.options.get("DATABASE")

    def check_queue(self, queue_name: str) -> None:
        """Raise `InvalidTask` if the backend's QUEUES lack this queue, as the framework refuses such a task."""
        if self.queues and queue_name not in self.queues:
            names = ", ".join(sorted(self.queues))
            raise InvalidTask(f"queue {queue_name!r} is not one of the backend's QUEUES ({names})")

    def enqueued(self, job_id: int, database: str, queue_name: str) -> None:
        """Send `task_enqueued` for a job that a schedule has enqueued."""
        self.send(task_enqueued, TaskResultStatus.READY, job_id, database, {"queue_name": queue_name})

    def send(
        self, signal: Signal, status: TaskResultStatus, job_id: int, database: str, changes: Mapping[str, Any]
    ) -> None:
        """Send a signal of Django's framework for a job of this task. The sender is the class of the backend."""
        result = result_translation.new_result(self.task, job_id, database, status, changes)
        sender = self.backend_class
        with suppress(ImproperlyConfigured):  # TASKS no longer has the alias of the task's backend
            sender = type(task_backends[result.backend])
        signal.send_robust(sender, task_result=result)

    def context(self, job: engine.TaskContext) -> JobContext:
        """Return the first argument of a task with `takes_context`.

        The task result in it loads its fields on first use. A coroutine cannot run that query, so its result is loaded
        here. If the query fails, the attempt runs anyway.
        """
        result = self.task_result(job.job_id or 0, job.database, job.attempt, job.queue_name)
        if iscoroutinefunction(self.task.func):
            with suppress(DatabaseError, TaskResultDoesNotExist):
                result.load()
        return JobContext(task_result=result, job=job)

    def task_result(self, job_id: int, database: str, attempt: int, queue_name: str) -> result_translation.JobResult:
        """Return the result of a running job, as far as it is known without a query."""
        changes = {"queue_name": queue_name}
        result = result_translation.new_result(self.task, job_id, database, TaskResultStatus.RUNNING, changes)
        object.__setattr__(result, "_attempts", attempt)
        return result

    def result(self, value: Any) -> Any:
        """Return a return value in JSON types, as Django's framework does. For example, bytes become text."""
        return normalize_json(value)
