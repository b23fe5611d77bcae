"""Claim the jobs of a test as a worker does: by the worker's lanes and claimer, on the test's own connection.

Called by `run_jobs()`. The clock of the lanes stands still and advances only with the queue's clock, so nothing here
depends on how long the test takes. Each claim tries again what only another session can change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle import Claimed
from django_pgqueue.lifecycle.chunks import ChunkRule
from django_pgqueue.served_queues import ServedQueues
from django_pgqueue.worker.claiming.claimer import Claimer
from django_pgqueue.worker.claiming.key_pages import STEP_SECONDS, rule_of
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.execution.events import FOREGROUND
from django_pgqueue.worker.foreground import CALLERS_ID
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.queue_slots import QueueSlots


class KitClaims:
    """The lanes and the claimer of one call of `run_jobs()`."""

    def __init__(self, connection: Connection, queue_names: Sequence[str] | None) -> None:
        slots = queue_names and QueueSlots(ServedQueues.of_queue_options(dict.fromkeys(queue_names)))
        self._connection = connection
        self._now = 0.0
        self._most_of_chunk = math.inf
        self.lanes = Lanes(queue_names or (), None, slots or None, clock=lambda: self._now, chunk_rule=self._rule)
        self.lanes.retry_never()
        self._claimer = Claimer(InFlight(1, queue_slots=slots or None), self.lanes, CALLERS_ID, FOREGROUND)

    def claim(self, most: float = math.inf) -> Claimed | None:
        """Claim the job that comes first, or a chunk of at most `most` jobs. Return None if none is due."""
        self._most_of_chunk = most
        self.lanes.scan_again()
        while True:
            cursors = self.lanes.ordered(self._connection, from_start=True, most=1)
            if claimed := self._claimer.claim(self._connection, cursors, 1):
                return claimed[0]
            if self.next_in > STEP_SECONDS:  # all lanes are read, and all keys with a due job were visited
                return None

    @property
    def next_in(self) -> float:
        """In how many seconds the next job is due, or a limit may admit one."""
        return self.lanes.next_due_at(math.inf) - self._now

    def pass_by(self, seconds: float) -> None:
        """Advance the clock of the lanes."""
        self._now += seconds

    def _rule(self, chunk_key: str) -> ChunkRule:
        """Return when a chunk is due: at once."""
        return ChunkRule(int(min(rule_of(chunk_key).size, self._most_of_chunk)), 0.0)
