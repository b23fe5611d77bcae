"""A job in the caller's own thread: at its enqueue for `PGQUEUE["IMMEDIATE"]`, in tests, in `manage.py pgqueue run`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import psycopg
from django.db import connections, transaction

from django_pgqueue import lifecycle, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.context import running_job
from django_pgqueue.exceptions import JobLocked

from .describe import is_a, log_exception
from .executor import Attempt
from .finisher import finish
from .notes import Notes

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from django_pgqueue.db import Connection
    from django_pgqueue.lifecycle import Claimed

    from .report import Report

logger = logging.getLogger("django_pgqueue.worker")

CALLERS_ID: Final = 0
"""Leases of a caller are held under an id that no worker has."""


LOCKED_SECONDS: Final = 10.0
"""How long a finish waits for a beat, or somebody else, to let go of its rows."""


def run_here(alias: str, claimed: Claimed) -> Report:
    """Run and finish a claimed job on this thread's connection, in the transaction that is open there, if any.

    Raises `JobLocked` if somebody holds its rows for 10 s: how it ended is not written then.
    """
    notes = Notes()
    report = attempt(alias, claimed, notes)
    write(connections[alias], report, notes)
    return report


def write(connection: Connection, report: Report, notes: Notes) -> None:
    """Write how far an attempt came and how it ended.

    Raises `JobLocked` as `run_here`, and `KeyboardInterrupt` if that has ended it.
    """
    deadline = time.monotonic() + LOCKED_SECONDS
    while notes.write(connection, [report.claimed.key]) or _is_locked(connection, report):
        if time.monotonic() > deadline:
            raise JobLocked(f"job {report.claimed.job_id} stayed locked by another session at its finish")
        time.sleep(0.005)
    exception = report.exception
    if exception is not None and is_a(exception, KeyboardInterrupt):  # meant for the caller, whose thread this is
        raise exception


def _is_locked(connection: Connection, report: Report) -> bool:
    """Write how an attempt ended; return whether its rows were locked. Raises what the database raises for the row."""
    done = finish(connection, [report])
    if done.refused:
        raise done.refused[0].error
    return bool(done.locked)


def attempt(alias: str, claimed: Claimed, notes: Notes, asked_to_cancel: Callable[[], bool] | None = None) -> Report:
    """Run a claimed job in this thread, and return how it ended.

    In a transaction that is open here a statement that fails undoes what the task has written, and no more: a worker
    has no transaction around it.
    """
    before = running_job.get()
    try:
        return _attempt(connections[alias], Attempt(claimed, alias, notes, asked_to_cancel))
    finally:
        running_job.set(before)


def _attempt(connection: BaseDatabaseWrapper, attempt: Attempt) -> Report:
    if not connection.in_atomic_block:
        return attempt.run()
    with transaction.atomic(using=connection.alias):
        report = attempt.run()
        if connection.connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
            transaction.set_rollback(True, using=connection.alias)
    return report


def run_at_enqueue(sender: str, job_id: int, database: str, **_: Any) -> None:
    """Run a job that is due; what becomes of it is written, and a failure logged. A receiver of `job_enqueued`."""
    claimed = lifecycle.claim_one(
        connections[database], job_id, worker_id=CALLERS_ID, lease_seconds=get_settings().LEASE, only_due=True
    )
    if claimed is None:  # due later
        return
    report = run_here(database, claimed)
    if report.is_failure:
        words = f"job {job_id} ({registry.in_words(sender)}) failed"
        if report.exception is None:
            logger.error("%s", words)
        else:
            log_exception(words, report.exception)
