"""The finish of an atomic task: the last statements of the task's own transaction, with the fence in them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from django.db import transaction

from django_pgqueue import lifecycle
from django_pgqueue.db import read_committed
from django_pgqueue.exceptions import JobLocked, LeaseLost
from django_pgqueue.lifecycle import Fate

from .report import Ending, Report

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.lifecycle import Claimed
    from django_pgqueue.progress import Progress

logger = logging.getLogger("django_pgqueue.worker")

LOCK_SECONDS: Final = 10.0
"""How long it waits for a beat, or somebody else, to let go of its rows."""


@contextmanager
def transaction_of(connection: BaseDatabaseWrapper, claimed: Claimed) -> Iterator[bool]:
    """Open an atomic task's transaction; yield whether it commits here, or is inside another one.

    A function that the task gave to `on_commit()` can fail after the commit. Its error is logged and not raised,
    because the task's work and its finish are committed by then.
    """
    committed = []
    try:
        with read_committed(connection) as commits:
            if commits:  # the first of all functions that run after the commit
                transaction.on_commit(lambda: committed.append(True), using=connection.alias)
            yield commits
    except BaseException as error:
        if not committed or isinstance(error, KeyboardInterrupt):
            raise
        logger.error("job %s has committed; a function for its on_commit() failed", claimed.job_id, exc_info=error)


def expect_commit(connection: BaseDatabaseWrapper) -> None:
    """Have the server roll the open transaction back if it then waits 10 s for the next statement.

    A host lost between a finish and its COMMIT would else keep the job's rows locked for as long as the server
    believes in it, two hours by its defaults, and nothing could take the job back.
    """
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = '10s'")


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
