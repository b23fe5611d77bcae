"""The lanes of tasks with `chunk`: each is one task's jobs in one queue at one priority.

Called by `Lanes` and by the claimer, in the fetcher's thread. A lane of this kind is due when its chunk is: when there
are enough jobs, or when the first one has waited long enough. Until then the fetcher sleeps, or claims other jobs.

A process without such tasks runs no statement for this.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from django_pgqueue import lifecycle, registry
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import Lane
from django_pgqueue.lifecycle.chunks import ChunkRule

LOCKED_SECONDS: Final = 0.02
"""The rest of a lane whose jobs another worker was just claiming."""


def rule_of(chunk_key: str) -> ChunkRule:
    """Return when the chunks of a registered task are due."""
    task = registry.chunk_keys()[chunk_key]
    return ChunkRule(task.chunk or 1, task.chunk_wait_seconds)


class ChunkLanes:
    """The lanes of one fetcher that have waiting jobs of tasks with `chunk`."""

    def __init__(self) -> None:
        self._waiting: set[Lane] = set()
        """Lanes with due jobs, which wait for their chunk or for a slot."""

    @property
    def have_waiting(self) -> bool:
        """Whether due jobs wait for their chunk, or for a slot."""
        return bool(self._waiting)

    def note_unclaimable(self, lane: Lane) -> None:
        """Note that a claim may take none of the due jobs of a lane, because their tasks are paused."""
        self._waiting.discard(lane)

    def scan(
        self, connection: EngineConnection, *, paused_queues: Collection[str], paused_tasks: Collection[str]
    ) -> dict[Lane, float]:
        """Return when the chunk of each lane is due, by the monotonic clock.

        Runs no statement if no task of this process has `chunk`.
        """
        self._waiting = set()
        keys = registry.chunk_keys()
        wanted = {key: rule_of(key) for key, task in keys.items() if task.name not in paused_tasks}
        if not wanted:
            return {}
        now, chunks = time.monotonic(), lifecycle.chunks.find_chunks(connection, wanted)
        found = [chunk for chunk in chunks if chunk.lane.queue_name not in paused_queues]
        self._waiting = {chunk.lane for chunk in found if chunk.due_seconds <= 0}
        return {chunk.lane: now + chunk.full_seconds for chunk in found}
