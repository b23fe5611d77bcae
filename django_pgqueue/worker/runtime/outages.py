"""Log a database outage once for all processes of a worker, with at most one line per second.

When a server stops, every service of every process notices it repeatedly. All of them call `OutageLog.report()`. Shared
memory holds the start of the outage and the time of the next log line. The first error is logged at once, the latest
error after 2 s and 10 s, and then once a minute. One line reports the end of the outage and its duration.

The shared memory is created when this module is imported, before any fork. All times are of the monotonic clock.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from django_pgqueue.db.errors import message_without_detail

logger = logging.getLogger("django_pgqueue.worker")

SINCE, LAST_ERROR, FIRST_SUCCESS, NEXT_LINE, NEXT_LOG, LINES = range(0, 48, 8)
"""Offsets in the shared memory. Each value is a double: a time, or 0 for never. `FIRST_SUCCESS` is the first success
after the last error. `NEXT_LINE` limits the lines of an outage, `NEXT_LOG` all lines that ask `may_speak()`. `LINES`
counts the lines of the current outage."""
DOUBLE: Final = struct.Struct("=d")
LINE_INTERVALS_SECONDS: Final = (2.0, 8.0, 50.0, 60.0)
"""The intervals between the log lines of one outage. The last one repeats."""
LOG_INTERVAL_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 8.0
"""An outage is over when nothing has failed for this long and something has succeeded since the last error. A service
that has failed tries again sooner than this."""


class OutageLog:
    """The state of the database outage that all processes of one worker share."""

    def __init__(self) -> None:
        self._file = _anonymous_file()
        os.ftruncate(self._file, mmap.PAGESIZE)
        self._memory = mmap.mmap(self._file, mmap.PAGESIZE)
        self._guard = threading.Lock()

    @property
    def since(self) -> float:
        """When the current outage began, or 0 if there is none."""
        return self._get(SINCE)

    def report(self, service: str, error: Exception) -> None:
        """Record a database error of a service, and log it if a line is due. Never wait."""
        now = time.monotonic()
        if not self._get(SINCE):
            self._set(SINCE, now)
        self._set(LAST_ERROR, now)
        if now < self._get(NEXT_LINE) or not self.may_speak():
            return
        lines = int(self._get(LINES))
        self._set(LINES, lines + 1)
        self._set(NEXT_LINE, now + LINE_INTERVALS_SECONDS[min(lines, len(LINE_INTERVALS_SECONDS) - 1)])
        progress = f"still failing after {now - self.since:.0f} s" if lines else "the worker retries until it works"
        logger.warning("database outage (%s): %s: %s", progress, service, in_a_line(error))

    def succeeded(self) -> None:
        """Record that a statement has succeeded. Without an outage this costs one read of the memory."""
        if self._get(SINCE) and self._get(FIRST_SUCCESS) <= self._get(LAST_ERROR):
            self._set(FIRST_SUCCESS, time.monotonic())

    def settle(self) -> None:
        """Log the end of the outage if it is over. The supervisor calls this about once a second."""
        since, failed_at, succeeded_at = (self._get(offset) for offset in (SINCE, LAST_ERROR, FIRST_SUCCESS))
        if not since or succeeded_at <= failed_at or time.monotonic() - failed_at < QUIET_SECONDS:
            return
        if self._get(LINES):
            if not self.may_speak():
                return
            logger.warning("database outage is over: it lasted %.1f s", succeeded_at - since)
        for offset in (SINCE, FIRST_SUCCESS, NEXT_LINE, LINES):
            self._set(offset, 0.0)

    def may_speak(self) -> bool:
        """Return whether a line may be logged now: one per second for all processes. If so, the caller must log it."""
        if time.monotonic() < self._get(NEXT_LOG):
            return False
        with self._lock() as is_locked:
            if not is_locked or time.monotonic() < self._get(NEXT_LOG):
                return False
            self._set(NEXT_LOG, time.monotonic() + LOG_INTERVAL_SECONDS)
            return True

    @contextmanager
    def _lock(self) -> Iterator[bool]:
        """Try to lock out other threads and processes; yield whether that succeeded. Never wait.

        The process lock is a file lock, because the kernel releases it if the process dies.
        """
        if not self._guard.acquire(blocking=False):
            yield False
            return
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError:  # a task has closed this file: without the lock, two processes may log within one second
            yield True
        else:
            yield True
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        finally:
            self._guard.release()

    def _get(self, offset: int) -> float:
        return float(DOUBLE.unpack_from(self._memory, offset)[0])

    def _set(self, offset: int, value: float) -> None:
        DOUBLE.pack_into(self._memory, offset, value)


def is_expected(error: Exception) -> bool:
    """Return whether an error comes from the database or the network. Its traceback does not help then."""
    return isinstance(error, psycopg.Error | OSError)


def in_a_line(error: Exception) -> str:
    """Return an error's message in one line. Messages of psycopg contain line breaks."""
    return " ".join(message_without_detail(error).split()) or type(error).__name__


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pgqueue-outages")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


outage_log: Final = OutageLog()
"""The instance that all processes of this worker share."""
