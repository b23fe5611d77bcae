"""The duties of the maintenance for workflows: advance jobs that no completion has advanced, and remove old edges.

A worker that dies after a completion leaves the dependents of the job waiting, and rescues and expiries end jobs
without advancing others. The sweep looks at all waiting jobs, so it finds these, whatever has caused them.
"""

from __future__ import annotations

import time

from django_pgqueue import graph_ends, lifecycle
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.completion.graph_checks import log_refused
from django_pgqueue.worker.runtime.connection import ConnectionSource

from .batch_duties import PAUSE_FACTOR
from .sweeps import UNUSED_SECONDS


class GraphDuties:
    """The positions of one process in its walks over the waiting jobs and the edges.

    Each method returns whether there is more to do, or in how many seconds.
    """

    def __init__(self, link: ConnectionSource, reactions: Reactions) -> None:
        self._link = link
        self._reactions = reactions
        self._swept_id = self._pruned_id = 0

    def sweep(self) -> bool | float:
        """Advance the jobs of one page of the waiting ones whose dependencies have ended."""
        began, is_first = time.monotonic(), not self._swept_id
        with self._link.use() as connection:
            swept = graph_ends.sweep(connection, self._swept_id, self._reactions.after)
        log_refused(swept.advanced)
        self._swept_id = swept.last_id or 0
        if is_first and swept.is_empty:
            return UNUSED_SECONDS
        return PAUSE_FACTOR * (time.monotonic() - began) if self._swept_id else False

    def prune(self) -> bool:
        """Remove the edges of jobs that were deleted by SQL: one page per call, the whole table once an hour."""
        with self._link.use() as connection:
            last_id = lifecycle.graphs.prune_dependencies(connection, self._pruned_id).last_id
        self._pruned_id = last_id or 0
        return last_id is not None
