"""Run a job in the caller's own thread: for `PGQUEUE["IMMEDIATE"]`, in tests, and for `manage.py pgqueue run`.

`run_at_enqueue()` is a receiver of the signal `job_enqueued`, `testing` calls `run_here()`, and `foreground_run` calls
`attempt()` and `write()`. Worker processes do not use this module. The caller may have a transaction open: a statement
of the task that fails undoes only what the task has written, and leaves the caller's transaction usable.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection
from django_pgqueue.ends.end_check import Reactor
from django_pgqueue.ends.end_checks import EndChecks
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import event, job_event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.reactions import JobTransition, after_application
from django_pgqueue.states import State
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.context import running_database, running_job

from .completion.progress_writer import Notes
from .completion.writer import finish
from .execution.attempt import Attempt
from .execution.chunk_attempt import attempt_of
from .execution.error_text import is_a, log_exception
from .execution.job_events import FOREGROUND
from .execution.log_recorder import recorder
from .execution.lost_writes import report_of_lost_writes
from .execution.report import Report
from .foreground_claim import claim_at_enqueue
from .runtime.django_connections import has_uncommitted_writes, uncommitted

logger = logging.getLogger("django_pgqueue.worker")

ReadyJob = tuple[str, int]
"""The name of its task, and its id."""
CALLERS_ID: Final = 0
"""The worker id of executions that run in the caller's thread. No worker has this id."""


LOCKED_SECONDS: Final = 10.0
"""How long `write()` retries while another session, such as one that sends a heartbeat, has the job's rows locked."""


def run_here(alias: str, claimed: Claimed) -> Report:
    """Run a claimed job on this thread's connection and write its result, in the transaction that may be open there.

    Raises:
        JobLocked: if another session has the job's rows locked for 10 s. The result is not written then.
    """
    return _run_and_write(alias, claimed)[0]


def _run_and_write(alias: str, claimed: Claimed) -> tuple[Report, list[ReadyJob]]:
    notes = Notes()
    report = attempt(alias, claimed, notes)
    return report, write(connections[alias], report, notes)


def write(connection: Connection, report: Report, notes: Notes) -> list[ReadyJob]:
    """Write the progress, the log lines and the result of an attempt, or those of all jobs of a chunk.

    Return the jobs of workflows that are ready now.

    Raises:
        JobLocked: if another session has the job's rows locked for 10 s.
        KeyboardInterrupt: if it ended the attempt, after the result was written.
    """
    ready: list[ReadyJob] = []

    def react(connection: Connection, transitions: Sequence[JobTransition]) -> None:
        after(connection, transitions)
        ready.extend((each.task_name or "", each.job_id) for each in transitions if each.result.state is State.READY)

    for each in (report, *report.others):
        _write_one(connection, each, notes)
    after = FOREGROUND.react if isinstance(connection, EngineConnection) else after_application
    ends = EndChecks(Reactor(react))
    ends.note_reports((report, *report.others))
    ends.check(connection, at_once=True)
    exception = report.exception
    if exception is not None and is_a(exception, KeyboardInterrupt):  # Ctrl-C also interrupts the caller
        raise exception
    return ready


def _write_one(connection: Connection, report: Report, notes: Notes) -> None:
    if report.ending is Ending.DISCARDED:
        notes.logs.pop(report.claimed.key, None)
    deadline = time.monotonic() + LOCKED_SECONDS
    while notes.write(connection, [report.claimed.key]) or _is_locked(connection, report):
        if time.monotonic() > deadline:
            raise JobLocked(
                f"job {report.claimed.job_id} stayed locked by another session for {LOCKED_SECONDS:g} s: "
                f"its result was not written"
            )
        time.sleep(0.005)


def _is_locked(connection: Connection, report: Report) -> bool:
    """Write the result of an attempt; return whether its rows were locked. Raises the database's error for the row."""
    finished = finish(connection, [report])
    if finished.refused:
        raise finished.refused[0].error
    return bool(finished.locked)


def attempt(alias: str, claimed: Claimed, notes: Notes, asked_to_cancel: Callable[[], bool] | None = None) -> Report:
    """Run a claimed job in this thread and return its report, which is not written yet.

    If the caller has a transaction open, a failed statement undoes only what the task has written. In a worker the task
    runs without a surrounding transaction.
    """
    before = (running_job.get(), running_database.get()), recorder.get()
    try:
        recorder.set(None)  # a job that another one runs in this thread keeps its own lines only
        return _attempt(connections[alias], attempt_of(claimed, alias, notes, asked_to_cancel))
    finally:
        running_job.set(before[0][0])
        running_database.set(before[0][1])
        recorder.set(before[1])


def _attempt(connection: BaseDatabaseWrapper, attempt: Attempt) -> Report:
    if not connection.in_atomic_block:
        return _outside_transactions(connection, attempt)
    with transaction.atomic(using=connection.alias):
        attempt.outer_blocks = len(connection.atomic_blocks)
        report = attempt.run()
        if connection.connection.info.transaction_status is psycopg.pq.TransactionStatus.INERROR:
            # A statement of the task has failed. Without the rollback to the savepoint, every later statement of the
            # caller would fail too.
            transaction.set_rollback(True, using=connection.alias)
    return report


def _outside_transactions(connection: BaseDatabaseWrapper, attempt: Attempt) -> Report:
    """Run an attempt. Roll back what it did not commit, as a worker does, unless the caller had a transaction open."""
    begins_idle = connection.connection is None or connection.autocommit
    report = attempt.run()
    if begins_idle and not connection.in_atomic_block and has_uncommitted_writes(connection):
        connection.close()
        report = report_of_lost_writes(attempt, report, uncommitted(connection.alias))
    return report


def run_at_enqueue(sender: str, job_id: int, database: str, **_: Any) -> None:
    """Run a job at once if it is due and its limit admits it, write its result, and log a failure.

    Then run the jobs of its workflow that have become ready. A receiver of `job_enqueued`.
    """
    waiting = deque([(sender, job_id)])
    while waiting:
        waiting += _run_if_admitted(*waiting.popleft(), database)


def _run_if_admitted(task_name: str, job_id: int, database: str) -> list[ReadyJob]:
    claimed, reason = claim_at_enqueue(connections[database], job_id, worker_id=CALLERS_ID)
    if reason:
        extra = event("job_not_admitted", job_id=job_id, reason=reason)
        logger.info("job %s (%s) is left to a worker: %s", job_id, registry.in_words(task_name), reason, extra=extra)
    if claimed is None:  # due later, or not admitted by its limit
        return []
    report, ready = _run_and_write(database, claimed)
    if report.is_failure:
        headline = f"job {job_id} ({registry.in_words(task_name)}) failed"
        if report.exception is None:
            logger.error("%s", headline, extra=job_event("job_failed", claimed))
        else:
            log_exception(headline, report.exception, extra=job_event("job_failed", claimed))
    return ready
