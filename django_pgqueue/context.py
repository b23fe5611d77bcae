"""What a task with `takes_context=True` is given as its first argument, and who may put something else in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from asgiref.sync import sync_to_async

from .progress import Progress, checked

running_job: Final[ContextVar[int | None]] = ContextVar("pgqueue_running_job", default=None)
"""The job whose attempt runs in this thread or coroutine, if one does."""


class Notes(Protocol):
    """Where an attempt tells how far it is."""

    def note(self, execution_id: int, progress: Progress) -> None:
        """Take note; does not wait."""


PROGRESS_FIELDS: Final = ("progress_done", "progress_total", "progress_message", "progress_at")


def _nobody_has() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The attempt a task is running in.

    A task that is called as a plain function gets one that belongs to no job: `job_id` is None, `attempt` 1.
    """

    job_id: int | None = None
    execution_id: int | None = None
    attempt: int = 1
    """1 for the first; attempts that were given back uncounted do not raise it."""
    max_attempts: int = 1
    queue_name: str = "default"
    database: str = "default"
    """Alias of the database the job is in."""
    lost: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    """Set when the execution's lease is lost: what the task still does will not count."""
    task_name: str = ""
    headers: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """What the job carries for middleware, and for you: see `using(headers=…)`."""
    _notes: Notes | None = field(default=None, repr=False, compare=False)

    asked_to_cancel: Callable[[], bool] = field(default=_nobody_has, repr=False, compare=False)

    def cancel_requested(self) -> bool:
        """Whether somebody has asked for this job to be cancelled: end soon, best by raising `Cancel`.

        True within a second of `job.cancel()`. Costs nothing: ask as often as you like.
        """
        return self.asked_to_cancel()

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now would leave the job dead."""
        return self.attempt >= self.max_attempts

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell how far the job is: so many of so many, in the task's own unit, and a few words.

        Only takes note, so coroutines may call it too, as often as they like: the worker writes the latest values of
        all its jobs once a second, and the last one with the end of the attempt. Messages are cut at 200 characters.
        Raises `TypeError` or `ValueError` for what is no finite number of at least 0.
        """
        noted = checked(done, total, message)
        if self._notes is not None and self.execution_id is not None:
            self._notes.note(self.execution_id, noted)

    def last_progress(self) -> Progress | None:
        """Return the progress on record, by one query: what an earlier attempt told last, before this one tells.

        None if nothing was told yet. An attempt whose worker was killed may have been up to a second further.
        """
        from .models import Job  # tasks load before the apps are ready

        if self.job_id is None:
            return None
        job = Job.objects.using(self.database).filter(pk=self.job_id).only(*PROGRESS_FIELDS).first()
        return None if job is None else job.progress

    async def alast_progress(self) -> Progress | None:
        """Return the same from a coroutine, by a query in the asynchronous ORM's thread."""
        return await sync_to_async(self.last_progress)()


class Adapter(Protocol):
    """What another framework's task wants done otherwise when its jobs run; see `django_pgqueue.backend`."""

    task: Any
    """That framework's own."""

    @property
    def database(self) -> str | None:
        """The alias of the database that its jobs go to, if the framework says one."""

    def enqueued(self, job_id: int, database: str, queue_name: str) -> None:
        """Tell the framework of a job that nobody has enqueued by it: a schedule's."""

    def context(self, job: TaskContext) -> Any:
        """Return what the function is given as its context; may query the database."""

    def result(self, value: Any) -> Any:
        """Return what is stored for a return value."""
