"""Check after completions whether the batches of the jobs have ended.

The completer notes the batches of the reports that it has written, and calls `check()` on its connection afterwards.
The check follows the commit of the completion, so of all workers that complete jobs of a batch, the last one sees that
it is over. While jobs of a batch end all the time, a process checks it once in `INTERVAL_SECONDS`, and once more after
the last one. A process that dies in between leaves the check to the sweep of the maintenance.

Only the completer's thread uses an instance, so it needs no lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Final

import psycopg

from django_pgqueue import batch_ends
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import is_outage, message_without_detail
from django_pgqueue.endings import Ending
from django_pgqueue.log_events import event
from django_pgqueue.worker.execution.report import Report

logger = logging.getLogger("django_pgqueue.worker")

INTERVAL_SECONDS: Final = 0.05
"""Minimum time between two checks of a process."""
LOCKED_SECONDS: Final = 10.0
"""How long a batch is checked again that another session has locked. Afterwards the sweep finds it."""
REQUEUED: Final = frozenset({Ending.RELEASED, Ending.UNKNOWN, Ending.POSTPONED, Ending.SNOOZED})
"""Endings after which a job is ready again, unless its cancellation was requested: then the sweep finds it."""
NEVER: Final = float("inf")


class BatchChecks:
    """The batches of one process to check.

    Args:
        publish: Sends the signals of callbacks. The worker does that in another thread.
    """

    def __init__(self, publish: batch_ends.Publish = batch_ends.send_now) -> None:
        self._publish = publish
        self._pending: set[int] = set()
        self._locked_since: dict[int, float] = {}
        self._checked_at = 0.0

    @property
    def due_in_seconds(self) -> float:
        """Seconds until `check()` should be called, or infinity."""
        return max(0.0, self._checked_at + INTERVAL_SECONDS - time.monotonic()) if self._pending else NEVER

    def note(self, reports: Sequence[Report]) -> None:
        """Note the batches of jobs that may have ended."""
        self._pending |= {
            report.claimed.batch_id
            for report in reports
            if report.claimed.batch_id is not None and report.ending not in REQUEUED
        }

    def note_batches(self, batch_ids: Collection[int]) -> None:
        """Note batches that may have ended."""
        self._pending |= set(batch_ids)

    def check(self, connection: EngineConnection, *, at_once: bool = False) -> None:
        """Check the noted batches if that is due.

        After a lost connection the batches are kept for the next call. If the database refuses the check, they are left
        to the sweep: completions must not wait for them.
        """
        if not self._pending or (self.due_in_seconds and not at_once):
            return
        self._checked_at = time.monotonic()
        pending = self._pending
        try:
            settled = batch_ends.settle(connection, pending, self._publish)
            log_refused(settled)
            locked = settled.locked
        except (psycopg.Error, OSError) as error:
            if is_outage(error):
                raise
            locked = set()
            logger.warning(
                "the ends of %d batches could not be checked (%s)",
                len(pending),
                message_without_detail(error),
                extra=event("batch_checks_refused", count=len(pending)),
            )
        self._locked_since = {batch_id: self._locked_since.get(batch_id, self._checked_at) for batch_id in locked}
        self._pending = {
            batch_id for batch_id, since in self._locked_since.items() if self._checked_at - since < LOCKED_SECONDS
        }


def log_refused(settled: batch_ends.Settled) -> None:
    """Log the batches whose ends the database refuses. The sweep tries them again."""
    for batch_id, error in settled.refused:
        logger.warning(
            "the end of batch %s could not be written (%s)",
            batch_id,
            message_without_detail(error),
            extra=event("batch_refused", batch_id=batch_id),
        )
