"""Choose the interval of a recurring scan so that the scan never takes more than a tenth of the time.

Used by `Lanes` for the scan for lanes with ready jobs, and by the fetcher for claims from the start of the lanes.
"""

from __future__ import annotations

from typing import Final

FACTOR: Final = 10
PATIENT_FACTOR: Final = 50
BEHIND_SECONDS: Final = 1.0
"""How long a job behind a cursor may wait for a claim from the start, so that such claims delay other jobs less."""


class Pacing:
    """The interval of one recurring scan: ten times the duration of the scan.

    The shorter of its last two durations counts. A scan that walks over dead index entries is slow each time. A scan
    that was slow once only waited, for example for a migration's lock. An interval of ten times that wait would be a
    stall of its own.

    Args:
        patience_seconds: The interval is fifty times the duration while that is at most so long.
    """

    def __init__(self, patience_seconds: float = 0.0) -> None:
        self._patience_seconds = patience_seconds
        self._took_seconds = 0.0
        self.seconds = 0.0

    def after(self, took_seconds: float) -> float:
        """Record the duration of a scan. Return the interval in seconds; `seconds` keeps it."""
        before, self._took_seconds = self._took_seconds, took_seconds
        shorter = min(before, took_seconds)
        self.seconds = max(FACTOR * shorter, min(PATIENT_FACTOR * shorter, self._patience_seconds))
        return self.seconds
