"""How many jobs to claim: the free slots, plus the number that will start in the next tenth of a second.

The fetcher asks before each claim, in its thread. The number is bounded by `CLAIM_LIMIT` and by the size of the
arguments. It is 0 while the completer or the signal receivers are behind, or while the leases are too old: jobs that
are claimed then would only wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from django_pgqueue.lifecycle.claims import AHEAD_BYTES
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.receiver_thread import CallbackRunner
from django_pgqueue.worker.slots.inflight import InFlight

from .lease_monitor import LeaseGuard

ARGUMENTS: Final = attrgetter("arguments")
PREFETCH_SECONDS: Final = 0.1


class ClaimSize:
    """The room for claimed jobs in this process."""

    def __init__(
        self, in_flight: InFlight, completer: Completer, leases: LeaseGuard, receivers: CallbackRunner
    ) -> None:
        self._in_flight = in_flight
        self._completer = completer
        self.leases = leases
        self._receivers = receivers
        self.rate = StartRate(in_flight)
        self._job_bytes = 1.0
        """Estimated size of one job's arguments. It rises at once with a claim of large ones, and falls slowly."""

    def now(self) -> int:
        """Return how many jobs to claim. 0 or less: none."""
        if not self.leases.leases_hold() or self._completer.is_behind or self._receivers.is_behind:
            return 0
        prefetched = min(int(self.rate.per_second() * PREFETCH_SECONDS), int(AHEAD_BYTES / self._job_bytes))
        waiting = len(self._in_flight.waiting)
        if waiting > prefetched // 2 or self._completer.is_full:
            return 0
        return min(self._in_flight.free_slots + prefetched - waiting, get_settings().CLAIM_LIMIT)

    def seconds_until_more(self) -> float:
        """Return how long to sleep until there may be room: short while jobs wait for slots or in the completer."""
        if self._in_flight.waiting or self._completer.is_full or self._receivers.is_behind:
            return 0.004
        return 1.0 if self.leases.leases_hold() and not self._completer.is_behind else 0.1

    def note(self, claimed: Sequence[Claimed]) -> None:
        """Note the size of the jobs of a claim."""
        size = sum(map(len, map(ARGUMENTS, claimed))) / len(claimed) + 1
        self._job_bytes = max(size, self._job_bytes + (size - self._job_bytes) / 4)


class StartRate:
    """Recently started jobs per second."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._started, self._measured_at = in_flight.started, time.monotonic()
        self._smoothed = 0.0

    def per_second(self) -> float:
        """Return the smoothed rate. Older measurements lose about half of their weight in a tenth of a second."""
        now = time.monotonic()
        elapsed = now - self._measured_at
        if elapsed > 0.005:
            before, self._started = self._started, self._in_flight.started
            weight = min(1.0, elapsed / 0.1)
            self._smoothed += ((self._started - before) / elapsed - self._smoothed) * weight
            self._measured_at = now
        return self._smoothed
