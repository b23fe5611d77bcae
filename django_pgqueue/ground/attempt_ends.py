"""Read from the row of an execution how its attempt ended, by its columns and by the start of its stored texts.

The admin and `manage.py pgqueue` call it. It protects one rule: they show no time and no state that nobody knows. An
attempt that was lost has no run time, because its process did not report its end. An attempt that was given up has
ended in the database, but its code can still run, as long as its worker shows that it lives.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final, NamedTuple, Protocol

from django_pgqueue.states import UNCOUNTED, Outcome

CANCELLED: Final = "stopped while it ran because the job was cancelled"
"""The error of a cancelled attempt that has stopped."""
CANCELLED_ITSELF: Final = "the task raised Cancel() without a reason"
"""The error of an attempt whose task has cancelled its job."""
KEPT_RUNNING: Final = f"{CANCELLED}, but its code kept running."
"""The start of the error of a cancelled attempt that did not stop in time."""
STACK_OF_RUNNING: Final = "Stack 5 s after the job should have stopped:"
"""The first line of the stack of an attempt that did not stop in time."""
STACK_START: Final = 200
"""Characters of the start of a traceback that contain this line, if it has the line."""
LEASE_RAN_OUT: Final = "the worker was lost: its lease ran out"
"""The start of the error of an attempt that was rescued."""
ISOLATED_DIED: Final = "the job's isolated process died"
"""The start of the error of an attempt whose end its worker has seen, although its own process could not report it."""


class AttemptRow(Protocol):
    """The columns of an execution that these functions need."""

    @property
    def attempt(self) -> int: ...
    @property
    def outcome(self) -> str | None: ...
    @property
    def claimed_at(self) -> datetime: ...
    @property
    def started_at(self) -> datetime | None: ...
    @property
    def finished_at(self) -> datetime | None: ...


class Loss(NamedTuple):
    """The known times of an attempt that was lost with its process or worker.

    Attributes:
        started_at: When it started. None: its worker has claimed it, and has recorded no start.
        last_seen_at: The last time at which its worker is known to have run it. None: this is not known.
        found_at: When the loss was found. None: its lease is over, and no worker has rescued it yet.
    """

    started_at: datetime | None
    last_seen_at: datetime | None
    found_at: datetime | None


def is_lost(outcome: str | None, error: str, *, is_expired: bool = False) -> bool:
    """Return whether an attempt was lost with its process or worker, so that nobody knows how long it ran.

    Args:
        outcome: The outcome of the execution.
        error: The start of its error.
        is_expired: Whether it is open, and its lease is over.
    """
    return is_expired or (outcome == Outcome.CRASHED and not error.startswith(ISOLATED_DIED))


class AttemptEnd(NamedTuple):
    """The end of an attempt, as its row and the record of its worker describe it.

    Attributes:
        is_expired: Whether it is open, and its lease is over.
        loss: What is known of it if it was lost.
        may_still_run: Whether its code may still run, although its job is not running any more.
    """

    is_expired: bool
    loss: Loss | None
    may_still_run: bool


def end_of(
    row: AttemptRow,
    error: str,
    stack: str,
    *,
    lease_end: datetime,
    heartbeat_at: datetime | None,
    stopped_at: datetime | None,
    seen_at: datetime,
    lease_seconds: float,
) -> AttemptEnd:
    """Return what is known of the end of an attempt.

    Args:
        row: The execution.
        error: The start of its error.
        stack: The start of its traceback, `STACK_START` characters or more.
        lease_end: When its lease ends if it is open.
        heartbeat_at: The last heartbeat of its worker. None: the worker has no record any more.
        stopped_at: When its worker recorded its stop.
        seen_at: When all this was read.
        lease_seconds: Without a heartbeat for so long, a worker counts as lost.
    """
    is_expired = row.outcome is None and lease_end < seen_at
    loss = loss_of(row, error, heartbeat_at, is_expired=is_expired)
    alive_at = heartbeat_at if stopped_at is None else None
    if alive_at is not None and alive_at <= seen_at - timedelta(seconds=lease_seconds):
        alive_at = None
    return AttemptEnd(is_expired, loss, may_still_run(row, error, stack, alive_at))


def loss_of(row: AttemptRow, error: str, heartbeat_at: datetime | None, *, is_expired: bool = False) -> Loss | None:
    """Return what is known of a lost attempt; None if the attempt was not lost.

    Args:
        row: The execution.
        error: The start of its error.
        heartbeat_at: The last heartbeat of its worker. None: the worker has no record any more.
        is_expired: Whether it is open, and its lease is over.
    """
    if not is_lost(row.outcome, error, is_expired=is_expired):
        return None
    found_at = row.finished_at
    # If no heartbeat has recorded the start, FAIL records the time at which the loss was found.
    started_at = row.started_at if found_at is None or row.started_at != found_at else None
    # A later heartbeat says nothing about the attempt: its worker has come back, or runs other jobs.
    if heartbeat_at is None or (found_at is not None and heartbeat_at > found_at):
        return Loss(started_at, None, found_at)
    return Loss(started_at, max(heartbeat_at, started_at or row.claimed_at), found_at)


def may_still_run(row: AttemptRow, error: str, stack: str, alive_at: datetime | None) -> bool:
    """Return whether the code of an attempt may still run, although its job is not running any more.

    The code ends with the process of its worker. A worker whose host was lost records no stop, so only its heartbeats
    show that it lives. For an attempt whose lease ran out, a heartbeat must have come after the loss.

    Args:
        row: The execution.
        error: The start of its error.
        stack: The start of its traceback.
        alive_at: The last heartbeat of its worker. None: the worker has stopped, or shows no sign of life.
    """
    if alive_at is None:
        return False
    if row.outcome == Outcome.CANCELLED:
        return error.startswith(KEPT_RUNNING)
    if row.outcome == Outcome.CRASHED:
        return error.startswith(LEASE_RAN_OUT) and row.finished_at is not None and alive_at > row.finished_at
    return row.outcome is None or (row.outcome == Outcome.FAILED and STACK_OF_RUNNING in stack)


def is_numbered_anew(row: AttemptRow, before: AttemptRow) -> bool:
    """Return whether a retry lies between an attempt and the one before it: the numbers begin at 1 again.

    An attempt that did not count gives its number to the next one.
    """
    return row.attempt <= before.attempt and before.outcome is not None and before.outcome not in UNCOUNTED
