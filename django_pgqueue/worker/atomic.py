"""The finish of an atomic task: the last statements of the task's own transaction, with the fence in them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from django_pgqueue import lifecycle
from django_pgqueue.exceptions import JobLocked, LeaseLost
from django_pgqueue.lifecycle import Fate

from .report import Ending, Report

if TYPE_CHECKING:
    from django_pgqueue.progress import Progress

LOCK_SECONDS: Final = 10.0
"""How long it waits for a beat, or somebody else, to let go of its rows."""


def finish(connection: Any, report: Report, progress: Progress | None) -> None:
    """Write how far an attempt came and that it succeeded, in the transaction that is open on its connection.

    Raises `LeaseLost` if the execution is not open any more, `JobLocked` if its rows stay locked: both roll back.
    """
    claimed = report.claimed
    deadline = time.monotonic() + LOCK_SECONDS
    while (fate := _finish(connection, report, progress)) is Fate.LOCKED:
        if time.monotonic() > deadline:
            raise JobLocked(f"job {claimed.job_id} stayed locked by another session at its finish")
        time.sleep(0.005)
    if fate is not Fate.DONE:
        raise LeaseLost(f"execution {claimed.execution_id} was closed by another worker: rolled back")


def _finish(connection: Any, report: Report, progress: Progress | None) -> Fate:
    key, execution_id = report.claimed.key, report.claimed.execution_id
    if progress is not None:
        fate = lifecycle.note_progress(connection, [lifecycle.Noted(key, progress, 0.0)])[execution_id]
        if fate is not Fate.DONE:
            return fate
    if report.ending is Ending.DISCARDED:
        return lifecycle.succeed_and_discard(connection, [key])[execution_id]
    now = time.monotonic()
    row = lifecycle.Succeeded(key, report.result, now - report.started_at, now - report.finished_at)
    return lifecycle.succeed(connection, [row])[execution_id]
