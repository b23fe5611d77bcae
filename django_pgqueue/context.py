"""What a task with `takes_context=True` is given as its first argument, and who may put something else in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


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


class Adapter(Protocol):
    """What another framework's task wants done otherwise when its jobs run; see `django_pgqueue.backend`."""

    task: Any
    """That framework's own."""

    def context(self, job: TaskContext) -> Any:
        """Return what the function is given as its context; may query the database."""

    def result(self, value: Any) -> Any:
        """Return what is stored for a return value."""
