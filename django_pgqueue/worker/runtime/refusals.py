"""Remember rows that the database refuses to write, skip them for a while, and log one of them per minute at most.

Every service that writes many rows in one statement uses this. A refused row must not stop the other rows of its
statement, and the service must not retry it at full speed.
"""

from __future__ import annotations

import logging
import time
from typing import Final, NamedTuple

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.log_events import event

logger = logging.getLogger("django_pgqueue.worker")

FIRST_BACKOFF_SECONDS: Final = 15.0
LONGEST_BACKOFF_SECONDS: Final = 600.0
LOG_SECONDS: Final = 60.0
LIMIT: Final = 10_000
"""The maximum number of rows to remember, because statements carry their ids."""


class Backoff(NamedTuple):
    """How long a row is skipped, and until when, by the monotonic clock."""

    seconds: float
    until: float


class Refusals:
    """The refused rows of one service.

    Args:
        subject: What the rows are, for the log line: "the heartbeat of execution".
    """

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self._backoffs: dict[int, Backoff] = {}
        self._logged_at = float("-inf")

    def note(self, row_id: int, error: Exception) -> None:
        """Skip a row for a while. The time doubles at each refusal."""
        now = time.monotonic()
        before = self._backoffs.get(row_id)
        seconds = min(2 * before.seconds, LONGEST_BACKOFF_SECONDS) if before else FIRST_BACKOFF_SECONDS
        if before is not None or len(self._backoffs) < LIMIT:
            self._backoffs[row_id] = Backoff(seconds, now + seconds)
        if now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            logger.error(
                "%s %s was refused by the database and will be retried: %s",
                self.subject,
                row_id,
                message_without_detail(error),
                extra=event("row_refused", subject=self.subject, row_id=row_id, reason=message_without_detail(error)),
            )

    def skipped_ids(self) -> list[int]:
        """Return the rows to skip now. Forget rows that were not refused again for 600 s after their backoff."""
        now = time.monotonic()
        remembered = (entry for entry in self._backoffs.items() if now <= entry[1].until + LONGEST_BACKOFF_SECONDS)
        self._backoffs = dict(remembered)
        return [row_id for row_id, backoff in self._backoffs.items() if now < backoff.until]
