"""Complete an atomic task inside the task's own transaction.

`Attempt` calls this for tasks with `atomic=True`. The completion is the last statement of the transaction and contains
the fence. So the task's writes and its completion commit together, or not at all if the lease is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import countOf
from typing import Any, Final

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.db.errors import is_outage
from django_pgqueue.db.transactions import read_committed
from django_pgqueue.exceptions import JobLocked, LeaseLost
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import job_event
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import completions
from django_pgqueue.lifecycle.completions import SUCCEEDED
from django_pgqueue.lifecycle.types import Claimed, Noted, Succeeded, TransitionResult, TransitionStatus

from . import error_text
from .report import STOPS, Report

logger = logging.getLogger("django_pgqueue.worker")

LOCK_SECONDS: Final = 10.0
"""Limit for waiting until a heartbeat or another session unlocks the job's rows."""


class NoTransaction(Exception):
    """The transaction of an atomic task cannot be opened during an outage, so its function has not begun."""


@contextmanager
def transaction_of(connection: BaseDatabaseWrapper, claimed: Claimed, *, is_of_step: bool = False) -> Iterator[bool]:
    """Open the transaction of an atomic task or step. Yield whether it commits at the end of this block.

    It does not inside another transaction.

    If an outage prevents the transaction of a task from opening, raise `NoTransaction`: the function has not begun, so
    the attempt does not count.

    A function that the task registered with `on_commit()` can fail after the commit. Its error is logged and not
    raised, because the task's work and its completion are committed by then. The exceptions of `STOPS` are raised after
    an atomic step all the same: the task goes on, and the worker may have stopped it meanwhile.
    """
    committed: list[int] = []
    """The id of the job, after the commit."""
    is_open = False
    try:
        with read_committed(connection) as commits:
            if commits:  # registered first, so it runs before the task's own functions
                connection.on_commit(partial(committed.append, claimed.job_id))
            is_open = True
            yield commits
    except BaseException as error:
        if not is_open and not is_of_step and _is_outage(error):
            raise NoTransaction(f"no transaction could be opened: {error_text.message(error)}") from None
        passed = STOPS if is_of_step else ()
        if not committed or isinstance(error, (KeyboardInterrupt, *passed)):
            raise
        logger.error(
            "job %s has committed, but a function that it registered with on_commit() failed",
            claimed.job_id,
            exc_info=error,
            extra=job_event("on_commit_failed", claimed),
        )


def _is_outage(error: BaseException) -> bool:
    return isinstance(error, DatabaseError) and is_outage(error.__cause__ or error)


def expect_commit(connection: BaseDatabaseWrapper) -> None:
    """Make the server roll the open transaction back if it waits longer than 10 s for the next statement.

    Otherwise, if this host is lost between the completion and the COMMIT, the job's rows stay locked until the server
    notices, which takes two hours by default. No worker could rescue the job in that time.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '10s'")


def finish(connection: Any, reports: Sequence[Report], progress: Progress | None) -> None:
    """Write the progress and the success of an attempt, or those of a chunk, in the transaction open on `connection`.

    Raise `LeaseLost` if one of the executions is no longer open, and `JobLocked` if its rows stay locked for 10 s. Both
    roll the transaction back.
    """
    deadline = time.monotonic() + LOCK_SECONDS
    left = reports
    while True:
        results = _finish(connection, left, progress)
        if countOf(results.values(), SUCCEEDED) == len(left):
            return
        left = [report for report in left if results[report.claimed.execution_id] is not SUCCEEDED]
        claimed = left[0].claimed
        if any(results[report.claimed.execution_id].status is not TransitionStatus.LOCKED for report in left):
            raise LeaseLost(
                f"execution {claimed.execution_id} was closed by another worker; its transaction is rolled back"
            )
        if time.monotonic() > deadline:
            raise JobLocked(f"job {claimed.job_id} stayed locked by another session, so its completion was not written")
        time.sleep(0.005)


def _finish(connection: Any, reports: Sequence[Report], progress: Progress | None) -> dict[int, TransitionResult]:
    if progress is not None:
        noted = completions.note_progress(connection, [Noted(reports[0].claimed.key, progress, 0.0)])
        [result] = noted.values()
        if result.status is not TransitionStatus.DONE:
            return dict.fromkeys([report.claimed.execution_id for report in reports], result)
    if reports[0].ending is Ending.DISCARDED:
        return completions.succeed_and_discard(connection, [report.claimed.key for report in reports])
    now = time.monotonic()
    rows = [Succeeded(r.claimed.key, r.result, now - r.started_at, now - r.finished_at) for r in reports]
    return completions.succeed(connection, rows)
