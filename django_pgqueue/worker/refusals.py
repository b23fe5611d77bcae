"""Rows that the database refuses to write, by their ids: passed over for a while, and logged once a minute at most.

Used by every service that writes many rows in one statement. A refused row must stop neither its neighbours nor, by
being tried at full speed, the service itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from django_pgqueue.db import told

logger = logging.getLogger("django_pgqueue.worker")

FIRST_PAUSE_SECONDS: Final = 15.0
LONGEST_PAUSE_SECONDS: Final = 600.0
LOG_SECONDS: Final = 60.0
LIMIT: Final = 10_000
"""Rows that are remembered at the most: their ids go along with statements."""


class Pause(NamedTuple):
    """How long a row is passed over, and until when, by the monotonic clock."""

    seconds: float
    until: float


class Refusals:
    """The refused rows of one duty; `what` names them in the log."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._pauses: dict[int, Pause] = {}
        self._logged_at = float("-inf")

    def note(self, row_id: int, error: Exception) -> None:
        """Pass a row over for a while: for twice as long each time that it is refused."""
        now = time.monotonic()
        before = self._pauses.get(row_id)
        seconds = min(2 * before.seconds, LONGEST_PAUSE_SECONDS) if before else FIRST_PAUSE_SECONDS
        if before is not None or len(self._pauses) < LIMIT:
            self._pauses[row_id] = Pause(seconds, now + seconds)
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.error("%s %s is refused by the database, and tried again: %s", self.what, row_id, told(error))

    def skipped_ids(self) -> list[int]:
        """Return the rows to pass over now. A row that was not refused again for a long time is forgotten."""
        now = time.monotonic()
        self._forget(row_id for row_id, pause in self._pauses.items() if now > pause.until + LONGEST_PAUSE_SECONDS)
        return [row_id for row_id, pause in self._pauses.items() if now < pause.until]

    def _forget(self, row_ids: Iterable[int]) -> None:
        for row_id in list(row_ids):
            del self._pauses[row_id]
