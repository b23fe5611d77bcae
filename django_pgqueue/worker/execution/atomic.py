"""Complete an atomic task inside the task's own transaction.

`Attempt` calls this for tasks with `atomic=True`. The completion is the last statement of the transaction and contains
the fence. So the task's writes and its completion commit together, or not at all if the lease is lost.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from django_pgqueue import lifecycle
from django_pgqueue.db.transactions import read_committed
from django_pgqueue.endings import Ending
from django_pgqueue.exceptions import JobLocked, LeaseLost
from django_pgqueue.lifecycle import TransitionStatus
from django_pgqueue.log_events import job_event

from .report import Report

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.progress import Progress

logger = logging.getLogger("django_pgqueue.worker")

LOCK_SECONDS: Final = 10.0
"""Limit for waiting until a heartbeat or another session unlocks the job's rows."""


@contextmanager
def transaction_of(connection: BaseDatabaseWrapper, claimed: Claimed) -> Iterator[bool]:
    """Open an atomic task's transaction. Yield whether it commits at the end of this block; False inside another one.

    A function that the task registered with `on_commit()` can fail after the commit. Its error is logged and not
    raised, because the task's work and its completion are committed by then.
    """
    committed = []
    try:
        with read_committed(connection) as commits:
            if commits:  # registered first, so it runs before the task's own functions
                transaction.on_commit(lambda: committed.append(True), using=connection.alias)
            yield commits
    except BaseException as error:
        if not committed or isinstance(error, KeyboardInterrupt):
            raise
        logger.error(
            "job %s has committed, but a function that it registered with on_commit() failed",
            claimed.job_id,
            exc_info=error,
            extra=job_event("on_commit_failed", claimed),
        )


def expect_commit(connection: BaseDatabaseWrapper) -> None:
    """Make the server roll the open transaction back if it waits longer than 10 s for the next statement.

    Otherwise, if this host is lost between the completion and the COMMIT, the job's rows stay locked until the server
    notices, which takes two hours by default. No worker could rescue the job in that time.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '10s'")


def finish(connection: Any, report: Report, progress: Progress | None) -> None:
    """Write an attempt's progress and its success in the transaction that is open on `connection`.

    Raise `LeaseLost` if the execution is no longer open, and `JobLocked` if its rows stay locked for 10 s. Both roll
    the transaction back.
    """
    claimed = report.claimed
    deadline = time.monotonic() + LOCK_SECONDS
    while (status := _finish(connection, report, progress)) is TransitionStatus.LOCKED:
        if time.monotonic() > deadline:
            raise JobLocked(f"job {claimed.job_id} stayed locked by another session, so its completion was not written")
        time.sleep(0.005)
    if status is not TransitionStatus.DONE:
        raise LeaseLost(
            f"execution {claimed.execution_id} was closed by another worker; its transaction is rolled back"
        )


def _finish(connection: Any, report: Report, progress: Progress | None) -> TransitionStatus:
    key, execution_id = report.claimed.key, report.claimed.execution_id
    if progress is not None:
        noted = lifecycle.note_progress(connection, [lifecycle.Noted(key, progress, 0.0)])[execution_id]
        if noted.status is not TransitionStatus.DONE:
            return noted.status
    if report.ending is Ending.DISCARDED:
        return lifecycle.succeed_and_discard(connection, [key])[execution_id].status
    now = time.monotonic()
    row = lifecycle.Succeeded(key, report.result, now - report.started_at, now - report.finished_at)
    return lifecycle.succeed(connection, [row])[execution_id].status
