"""The lanes a fetcher looks at, in which order, and its cursor in each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.db import EngineConnection
from django_pgqueue.lifecycle import Claimed, Cursor, Lane

from .rest import Rest

logger = logging.getLogger("django_pgqueue.worker")

AGE_LIMIT_SECONDS: Final = 1.0
MANY: Final = 200


class Lanes:
    """Not for two threads at once."""

    def __init__(self, queue_names: Sequence[str]) -> None:
        self.queue_names = list(queue_names)
        """Strict in this order; empty for all queues, by priority, those of one priority taking turns."""
        self.known: list[Lane] = []
        self._cursors: dict[Lane, Cursor] = {}
        self._looked_at = float("-inf")
        self._rest = Rest()
        self._turn = 0
        self._last_was_empty = True
        self._warned = False

    def forget(self) -> None:
        """Begin anew, as after a reconnect: another server may not know what this one did."""
        self._cursors.clear()
        self._looked_at = float("-inf")

    def ordered(self, connection: EngineConnection, *, from_start: bool) -> dict[Lane, Cursor]:
        """Return the lanes in the order to claim from, each with where to begin."""
        age = time.monotonic() - self._looked_at
        if age > max(0.0 if self._last_was_empty else AGE_LIMIT_SECONDS, self._rest.seconds):
            self._look(connection)
        self._turn += 1
        start = Cursor()
        return {lane: start if from_start else self._cursors.get(lane, start) for lane in self._in_order()}

    def move_cursors(self, claimed: Iterable[Claimed]) -> None:
        """Put each lane's cursor where its claim ended, also when that is further back."""
        last = {(job.queue_name, job.priority): job for job in claimed}
        for lane, job in last.items():
            self._cursors[Lane(*lane)] = Cursor(job.run_after, job.job_id)
        self._last_was_empty = not last

    def _look(self, connection: EngineConnection) -> None:
        began = time.monotonic()
        found = lifecycle.lanes(connection)
        self._looked_at = time.monotonic()
        self._rest.after(self._looked_at - began)
        wanted = set(self.queue_names)
        self.known = [lane for lane in found if not wanted or lane.queue_name in wanted]
        self._cursors = {lane: cursor for lane, cursor in self._cursors.items() if lane in set(self.known)}
        if len(self.known) > MANY and not self._warned:
            self._warned = True
            logger.warning("%d lanes (queues times priorities) have ready jobs: each costs every claim", len(found))

    def _in_order(self) -> list[Lane]:
        if self.queue_names:
            place = {name: number for number, name in enumerate(self.queue_names)}
            return sorted(self.known, key=lambda lane: (place[lane.queue_name], -lane.priority))
        shift = self._turn % len(self.known) if self.known else 0
        return sorted(self.known[shift:] + self.known[:shift], key=lambda lane: -lane.priority)
