"""Measure how fast jobs start. The fetcher uses the rate to decide how many jobs to prefetch."""

from __future__ import annotations

import time

from django_pgqueue.worker.slots.inflight import InFlight


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
            current = (self._in_flight.started - self._started) / elapsed
            weight = min(1.0, elapsed / 0.1)
            self._smoothed += (current - self._smoothed) * weight
            self._started, self._measured_at = self._in_flight.started, now
        return self._smoothed
