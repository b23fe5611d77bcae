"""Advance the dependents of the nodes of workflows after their completions.

The completer notes the nodes of the reports that it has written, and calls `check()` on its connection at once, because
each node of a chain waits for it. The check follows the commit of the completion, so of all workers that complete the
dependencies of a job, the last one sees that all are over. A process that dies in between leaves the dependents to the
sweep of the maintenance.

Only the completer's thread uses an instance, so it needs no lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import psycopg

from django_pgqueue import graph_ends
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import is_outage, message_without_detail
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import graphs
from django_pgqueue.lifecycle.graphs import Advanced
from django_pgqueue.log_events import event
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.execution.events import FOREGROUND
from django_pgqueue.worker.execution.report import Report

from .batch_checks import LOCKED_SECONDS, NEVER, REQUEUED

logger = logging.getLogger("django_pgqueue.worker")

INTERVAL_SECONDS: Final = 0.05
"""Time after which jobs are looked at again that another session has locked."""


class GraphChecks:
    """The ended nodes of one process whose dependents are to be advanced.

    Args:
        reactions: What follows from the transitions.
        on_cancelled: Called with the batches of cancelled dependents.
    """

    def __init__(
        self,
        reactions: Reactions = FOREGROUND,
        on_cancelled: Callable[[Collection[int]], None] = lambda batch_ids: None,
    ) -> None:
        self._reactions = reactions
        self._on_cancelled = on_cancelled
        self._ended: set[int] = set()
        self._postponed: set[int] = set()
        self._locked_since: dict[int, float] = {}
        self._checked_at = 0.0

    @property
    def due_in_seconds(self) -> float:
        """Seconds until `check()` should be called, or infinity."""
        if self._ended or self._postponed:
            return 0.0
        return max(0.0, self._checked_at + INTERVAL_SECONDS - time.monotonic()) if self._locked_since else NEVER

    def note(self, reports: Sequence[Report]) -> None:
        """Note the nodes of workflows that may have ended, and those that have to wait again."""
        self._postponed |= {r.claimed.job_id for r in reports if r.ending is Ending.POSTPONED}
        self._ended |= {r.claimed.job_id for r in reports if r.claimed.in_graph and r.ending not in REQUEUED}

    def check(self, connection: EngineConnection) -> None:
        """Advance the dependents of the noted nodes, and the jobs that were locked before. Let postponed nodes wait.

        After a lost connection the nodes are kept for the next call. If the database refuses the statement, they are
        left to the sweep: completions must not wait for them.
        """
        if self.due_in_seconds:
            return
        self._checked_at = time.monotonic()
        locked: set[int] = set()
        try:
            after, found = self._reactions.after, {*self._locked_since}
            found.update(graphs.postpone(connection, self._postponed))
            advanced = graph_ends.advance(connection, self._ended, after, found_ids=found)
            log_refused(advanced)
            self._on_cancelled(graph_ends.batches_of(advanced.jobs))
            locked = advanced.locked_ids
        except (psycopg.Error, OSError) as error:
            if is_outage(error):
                raise
            logger.warning(
                "the dependents of %d jobs could not be advanced (%s)",
                len(self._ended),
                message_without_detail(error),
                extra=event("graph_checks_refused", count=len(self._ended)),
            )
        self._ended, self._postponed = set(), set()
        since = {job_id: self._locked_since.get(job_id, self._checked_at) for job_id in locked}
        self._locked_since = {job_id: at for job_id, at in since.items() if self._checked_at - at < LOCKED_SECONDS}


def log_refused(advanced: Advanced) -> None:
    """Log the jobs that the database refuses to advance. The sweep tries them again."""
    for job_id, error in advanced.refused:
        logger.warning(
            "job %s could not be advanced (%s)",
            job_id,
            message_without_detail(error),
            extra=event("advance_refused", job_id=job_id),
        )
