"""Log the database outages of this process, with at most one line per second.

When a server stops, every service of the process notices it repeatedly. All of them call `OutageLog.report()`. The
first error is logged at once, the latest error after 2 s and 10 s, and then once a minute. One line reports the end of
the outage and its duration, when all services that have failed work again. All times are of the monotonic clock.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

import psycopg

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.ground.log_events import event

from .clone_guard import ForeignDatabase
from .shared_memory import HealthMemory, health_memory

logger = logging.getLogger("django_pgqueue.worker")

LINE_INTERVALS_SECONDS: Final = (2.0, 8.0, 50.0, 60.0)
"""The intervals between the log lines of one outage. The last one repeats."""
LOG_INTERVAL_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 8.0
"""An outage is over when nothing has failed for this long and something has succeeded since the last error. A service
that has failed tries again sooner than this."""


class OutageLog:
    """The state of the database outage that this process notices.

    Args:
        health: Where the start of the outage is stored, for the health file.
    """

    def __init__(self, health: HealthMemory) -> None:
        self._health = health
        self._failed_at = self._succeeded_at = self._recovered_at = 0.0
        """The last error of the outage, the first success after it, and when a service last recovered."""
        self._since = 0.0
        """When the outage began. The health forgets it sooner, when most statements succeed again."""
        self._failing: set[str] = set()
        self._pid = os.getpid()
        self._next_line_at = self._next_log_at = 0.0
        self._lines = 0
        self._guard = threading.Lock()

    def report(self, service: str, error: Exception) -> None:
        """Record a database error of a service, and log it if a line is due. Never wait."""
        if isinstance(error, ForeignDatabase):  # no outage; the supervisor logs it
            return
        now = time.monotonic()
        if self._pid != os.getpid():  # the services of the parent do not recover here
            self._pid, self._failing = os.getpid(), set()
        if not self._health.outage_since:
            self._health.outage_since = now
            if not self._failing:
                self._since, self._next_line_at, self._lines = now, 0.0, 0
        self._failed_at = now
        if now < self._next_line_at or not self.may_log():
            return
        self._next_line_at = now + LINE_INTERVALS_SECONDS[min(self._lines, len(LINE_INTERVALS_SECONDS) - 1)]
        after = f"still failing after {now - self._since:.0f} s"
        progress = after if self._lines else "the worker retries until it works"
        self._lines += 1
        extra = event("database_outage", service=service, reason=in_a_line(error))
        logger.warning("database outage (%s): %s: %s", progress, service, in_a_line(error), extra=extra)

    def failing(self, service: str) -> None:
        """Record that the outage is not over before `recovered()` is called for this service."""
        self._failing.add(service)

    def recovered(self, service: str) -> None:
        """Record that a service works again."""
        if service in self._failing:
            self._failing.discard(service)
            self._recovered_at = time.monotonic()

    def succeeded(self) -> None:
        """Record that a statement has succeeded. Without an outage this costs one read of the memory."""
        if self._health.outage_since and self._succeeded_at <= self._failed_at:
            self._succeeded_at = time.monotonic()

    def log_end_if_over(self) -> None:
        """Log the end of the outage if it is over. The main thread calls this about once a second."""
        if self._succeeded_at <= self._failed_at or time.monotonic() - self._failed_at < QUIET_SECONDS:
            return
        self._health.outage_since = 0.0
        if self._failing or (self._lines and not self.may_log()):
            return
        if self._lines:
            seconds = max(self._succeeded_at, self._recovered_at) - self._since
            extra = event("database_outage_over", outage_seconds=round(seconds, 1))
            logger.warning("database outage is over: it lasted %.1f s", seconds, extra=extra)
        self._failed_at = self._succeeded_at = self._recovered_at = 0.0
        self._lines = 0

    def may_log(self) -> bool:
        """Return whether a line may be logged now: one per second. If so, the caller must log it. Never wait."""
        if time.monotonic() < self._next_log_at or not self._guard.acquire(blocking=False):
            return False
        try:
            is_due = time.monotonic() >= self._next_log_at
            if is_due:
                self._next_log_at = time.monotonic() + LOG_INTERVAL_SECONDS
            return is_due
        finally:
            self._guard.release()


def is_expected(error: Exception) -> bool:
    """Return whether an error comes from the database or the network. Its traceback does not help then."""
    return isinstance(error, psycopg.Error | OSError)


def in_a_line(error: BaseException) -> str:
    """Return an error's message in one line. Messages of psycopg contain line breaks."""
    return " ".join(message_without_detail(error).split()) or type(error).__name__


outage_log: Final = OutageLog(health_memory)
"""The instance of this process."""
