"""Enqueue the compensations of jobs whose ends were written.

The completer calls `CompensationChecks.check()` after each write, and the foreground run calls `jobs_to_check()`. The
check follows the commit of the completion. A process that dies in between leaves it to the sweep of the maintenance.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import psycopg

from django_pgqueue import batch_ends, lifecycle, sagas
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import is_outage, message_without_detail
from django_pgqueue.endings import SUCCESSES, Ending
from django_pgqueue.log_events import event
from django_pgqueue.worker.execution.report import Report

logger = logging.getLogger("django_pgqueue.worker")

LAST: Final = frozenset({Ending.SUCCEEDED, Ending.WRITTEN, Ending.FAILED, Ending.CRASHED, Ending.CANCELLED})
"""Endings after which a job can have ended while its steps are kept."""


def jobs_to_check(reports: Sequence[Report]) -> set[int]:
    """Return the jobs with compensations that may have ended, and those whose last compensation has succeeded."""
    job_ids = {
        report.claimed.job_id
        for report in reports
        if report.has_compensations and report.ending in LAST and report.delay_seconds is None
    }
    for report in reports:
        if report.claimed.headers is not None and report.ending in SUCCESSES:
            compensated_id = sagas.compensated_id(report.claimed.headers)
            if compensated_id is not None:
                job_ids.add(compensated_id)
    return job_ids


class CompensationChecks:
    """The checks of one process. `publish` sends the signals of the added jobs, in a worker in another thread."""

    def __init__(self, publish: batch_ends.Publish = batch_ends.send_now) -> None:
        self._publish = publish

    def check(self, connection: EngineConnection, reports: Sequence[Report]) -> None:
        """Add the next compensations after these reports were written.

        If the database refuses that, it is left to the sweep: completions must not wait for it.
        """
        job_ids = jobs_to_check(reports)
        if not job_ids:
            return
        try:
            sagas.compensate(connection, job_ids, log_refused, self._publish)
        except (psycopg.Error, OSError) as error:
            if is_outage(error):
                raise
            logger.warning(
                "the compensations of %d jobs could not be enqueued (%s)",
                len(job_ids),
                message_without_detail(error),
                extra=event("compensation_checks_refused", count=len(job_ids)),
            )


def log_refused(refused: Sequence[lifecycle.Refused[int]]) -> None:
    """Log the jobs whose compensations the database refuses. The sweep tries them again."""
    for job_id, error in refused:
        logger.warning(
            "the compensation of job %s could not be enqueued (%s)",
            job_id,
            message_without_detail(error),
            extra=event("compensation_refused", job_id=job_id),
        )
