"""Remember rows that the database refuses to write, skip them for a while, and log one of them per minute at most.

Every service that writes many rows in one statement uses this. A refused row must not stop the other rows of its
statement, and the service must not retry it at full speed.

It also decides which of these rows are to blame. A statement that fails for a row can fail for all rows: a table of a
project's trigger is missing, or a privilege. The class of the error does not decide, because a trigger can raise
any error for one row. So a row is to blame only if the statement has written another row since it failed for this one,
and then fails for this one again. Only then may the service make the job of the row dead, or charge an attempt.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.ground.log_events import event

logger = logging.getLogger("django_pgqueue.worker")

FIRST_BACKOFF_SECONDS: Final = 15.0
LONGEST_BACKOFF_SECONDS: Final = 600.0
LOG_SECONDS: Final = 60.0
LIMIT: Final = 10_000
"""The maximum number of rows to remember, because statements carry their ids."""


class Evidence:
    """Which rows are to blame that statements have failed for. Safe from any thread."""

    def __init__(self) -> None:
        self._failed: dict[int, str] = {}
        """The rows without evidence against them, and the statement that has failed for each."""
        self._suspected: dict[int, str] = {}
        """The rows since whose failure the statement has written another row."""
        self._lock = threading.Lock()

    def failed(self, row_id: int, statement: str) -> bool:
        """Note that a statement has failed for one row alone. Return whether the row is to blame."""
        with self._lock:
            if self._suspected.get(row_id) == statement:
                return True
            self._suspected.pop(row_id, None)
            if row_id in self._failed or len(self._failed) + len(self._suspected) < LIMIT:
                self._failed[row_id] = statement
            return False

    def wrote(self, row_ids: Iterable[int], statement: str) -> set[int]:
        """Note that a statement has written rows. Return the rows to try again now: they fail again if they are bad."""
        if not self._failed and not self._suspected:
            return set()
        with self._lock:
            written = set(row_ids)
            if not written:
                return set()
            for row_id in written:
                self._failed.pop(row_id, None)
                self._suspected.pop(row_id, None)
            found = {row_id for row_id, failed in self._failed.items() if failed == statement}
            for row_id in found:
                self._suspected[row_id] = self._failed.pop(row_id)
            return found

    def forget(self, row_ids: Iterable[int]) -> None:
        """Forget rows."""
        with self._lock:
            for row_id in row_ids:
                self._failed.pop(row_id, None)
                self._suspected.pop(row_id, None)


class Backoff(NamedTuple):
    """How long a row is skipped, and until when, by the monotonic clock."""

    seconds: float
    until: float


@dataclass(eq=False, repr=False)
class Refusals:
    """The refused rows of one service.

    Args:
        subject: What the rows are, for the log line: "the heartbeat of execution".
        first_seconds: How long a row is skipped after its first refusal. The time doubles at each further one.
        longest_seconds: The longest time for which a row is skipped.
    """

    subject: str
    first_seconds: float = FIRST_BACKOFF_SECONDS
    longest_seconds: float = LONGEST_BACKOFF_SECONDS
    _backoffs: dict[int, Backoff] = field(default_factory=dict)
    _evidence: Evidence = field(default_factory=Evidence)
    _logged_at: float = float("-inf")

    def note(self, row_id: int, error: Exception, statement: str = "") -> bool:
        """Skip a row for a while. Return whether the row is to blame for the failure of the statement (see above)."""
        now = time.monotonic()
        before = self._backoffs.get(row_id)
        seconds = min(2 * before.seconds, self.longest_seconds) if before else self.first_seconds
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
        return self._evidence.failed(row_id, statement)

    def wrote(self, row_ids: Iterable[int], statement: str = "") -> None:
        """Note that the statement has written these rows. Others, for which it failed before, are tried again now."""
        if not self._backoffs:
            return
        written = list(row_ids)
        for row_id in written:
            self._backoffs.pop(row_id, None)
        now = time.monotonic()
        for row_id in self._evidence.wrote(written, statement):
            if row_id in self._backoffs:
                self._backoffs[row_id] = self._backoffs[row_id]._replace(until=now)

    def forget(self, row_id: int) -> None:
        """Forget a row."""
        self._backoffs.pop(row_id, None)
        self._evidence.forget([row_id])

    def skipped_ids(self) -> list[int]:
        """Return the rows to skip now. Forget rows that were not refused again for long after their backoff."""
        if not self._backoffs:
            return []
        now = time.monotonic()
        old = [row_id for row_id, each in self._backoffs.items() if now > each.until + LONGEST_BACKOFF_SECONDS]
        for row_id in old:
            self.forget(row_id)
        return [row_id for row_id, backoff in self._backoffs.items() if now < backoff.until]
