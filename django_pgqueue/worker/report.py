"""How one attempt ended: what the executor returns, and all the completer needs to know."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue.exceptions import LeaseLost, TaskCancelled, TaskTimeout
from django_pgqueue.retry import DEFAULT_BACKOFF

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.task import Task


STOPS: Final = (LeaseLost, TaskTimeout, TaskCancelled)
"""What the worker may throw into a job's thread at whatever moment."""
UNTELLABLE: Final = "how the attempt ended could not be told: its exception raised another where it was looked at"
EXPIRED: Final = "it had not started by the time that it was to (expires)"


class Ending(Enum):
    """The act that an attempt's end asks for."""

    SUCCEEDED = "succeeded"
    DISCARDED = "succeeded, and its task keeps nothing"
    WRITTEN = "succeeded, and committed with the task's own transaction"
    FAILED = "failed"
    CRASHED = "took the process that ran it down"
    RELEASED = "given back"
    UNKNOWN = "given back: this worker does not know the task, or its arguments do not fit"
    SNOOZED = "given back until later"
    CANCELLED = "cancelled"


@dataclass(slots=True)
class Report:
    """One attempt's end; instants are of the monotonic clock, in seconds."""

    claimed: Claimed
    ending: Ending
    started_at: float
    finished_at: float
    task: Task[Any, Any] | None = None
    result: str | None = None
    """JSON text, or None where it is not kept."""
    delay_seconds: float | None = None
    may_be_committed: bool = False
    """Whether an atomic task's COMMIT was sent and brought no answer: only the database knows."""
    exception: BaseException | None = None
    exception_class: str = ""
    error: str = ""
    traceback: str = ""

    @property
    def is_failure(self) -> bool:
        """Whether something went wrong: a task that snoozes or cancels itself raises too, and nothing did."""
        return self.ending in (Ending.FAILED, Ending.CRASHED, Ending.UNKNOWN)

    @property
    def duration_seconds(self) -> float:
        """How long the task's function ran."""
        return self.finished_at - self.started_at


def last_resort(claimed: Claimed, started_at: float, *, may_be_committed: bool = False) -> Report:
    """Return the report of a failed attempt whose own report could not be made; it runs no code of the application.

    A job whose attempt has ended must get a report. Without one its lease is extended for ever.
    """
    is_last = claimed.attempt >= claimed.max_attempts
    delay_seconds = None if is_last else DEFAULT_BACKOFF(claimed.attempt, None)
    return Report(
        claimed,
        Ending.FAILED,
        started_at,
        time.monotonic(),
        delay_seconds=delay_seconds,  # type: ignore[arg-type]  # ours returns a float
        error=UNTELLABLE,
        may_be_committed=may_be_committed,
    )
