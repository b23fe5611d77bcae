"""Shared memory of a supervisor and its worker processes: the state of the one, and the health of the others.

It is created before the supervisor's first fork, so that processes that were forked early, such as the metrics process,
see worker processes that start later. A worker process gets the first free place. When it has ended, the supervisor
frees the place for the next one. A worker for several databases has one `WorkerMemory` for each of its supervisors.
"""

from __future__ import annotations

import mmap
import time

from .counts import CountMemory
from .shared_memory import HealthMemory, SharedField, health_memory, lease_clock


class WorkerMemory:
    """The shared memory of one supervisor. All times are of the monotonic clock.

    Args:
        processes: The number of worker processes. There can be twice as many while processes are being replaced.
        counting: Whether the processes count what they do, for the metrics port.
        supervisor: The health of the supervisor's process. By default that of the process that creates this object.
    """

    round_finished_at = SharedField(0, "d", float)
    """When the supervisor's main thread last finished a round."""
    stopping_since = SharedField(8, "d", float)
    """When the supervisor received a signal to stop, or 0."""
    metrics_answered_at = SharedField(16, "d", float)
    """When the metrics process last showed that it works."""
    is_foreign = SharedField(24, "Q", bool)
    """Whether the database belongs to another installation, so that the supervisor waits."""
    has_ended = SharedField(32, "Q", bool)
    """Whether the supervisor has ended while those of other databases still work. Set by the main process."""
    finished_earlier = SharedField(40, "Q", int)
    """How many results were written by processes whose places others have now."""

    def __init__(self, processes: int, *, counting: bool = False, supervisor: HealthMemory | None = None) -> None:
        self.memory = mmap.mmap(-1, 48)
        self.supervisor = HealthMemory()
        """The health of the supervisor's own process."""
        self.supervisor.become(supervisor or health_memory)
        self.places = [HealthMemory() for _ in range(2 * processes)]
        self.counts = [CountMemory() for _ in range(len(self.places) + 2)] if counting else []
        """The counts of the processes at each place, then those of the supervisor and of its helper processes."""
        self.round_finished(is_foreign=False)

    def round_finished(self, *, is_foreign: bool) -> None:
        """Record that the supervisor works, and whether the database belongs to another installation."""
        self.round_finished_at, self.is_foreign = time.monotonic(), is_foreign

    def free_place(self) -> HealthMemory:
        """Return the memory for a new process: the first free place, or one that nobody reads if none is free."""
        place = next((place for place in self.places if not place.pid), None) or HealthMemory()
        self.finished_earlier += place.finished
        place.clear()
        return place

    @property
    def finished(self) -> int:
        """How many results all worker processes have written, also those that have ended."""
        return self.finished_earlier + sum(place.finished for place in self.places)

    def counts_of(self, place: HealthMemory) -> CountMemory | None:
        """Return the memory in which the process at a place counts, or None if it does not count."""
        return next((counts for used, counts in zip(self.places, self.counts, strict=False) if used is place), None)

    @property
    def supervisor_counts(self) -> CountMemory | None:
        """The counts of the supervisor."""
        return self.counts[-2] if self.counts else None

    @property
    def helper_counts(self) -> CountMemory | None:
        """The counts of the helper processes. Only one of them writes transitions at a time: a settlement."""
        return self.counts[-1] if self.counts else None

    def living(self) -> list[HealthMemory]:
        """Return the health of the worker processes that live, oldest first."""
        return sorted([place for place in self.places if place.pid], key=lambda place: place.started_at)


def lease_left_seconds(process: HealthMemory) -> float:
    """Return how many seconds the leases of a process are still valid; negative if they have expired."""
    return process.lease_until - lease_clock()
