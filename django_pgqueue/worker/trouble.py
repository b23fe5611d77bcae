"""One voice for what goes wrong with the database: a line a second at the most, of all processes of a worker together.

When a server stops, each service of each process finds out for itself, again and again. All of them report here. A few
words of memory that all processes of the worker share say since when there is trouble, and who may speak next: the
first error is logged at once, then what it is by then after 2 s and 10 s, then once a minute; and one line says that it
is over, and how long it took.

Made when this module is imported, so before any fork. Times are the machine's monotonic clock.
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

from django_pgqueue.db import told

logger = logging.getLogger("django_pgqueue.worker")

SINCE, LAST_ERROR, FIRST_SUCCESS, NEXT_LINE, NEXT_WORD, LINES = range(0, 48, 8)
"""Where the words are. Each is a double: a time, or 0 for never. `FIRST_SUCCESS` is the first after the last error, and
`LINES` counts those of the present trouble."""
WORD: Final = struct.Struct("=d")
PAUSES_SECONDS: Final = (2.0, 8.0, 50.0, 60.0)
"""Between the lines of one trouble."""
WORD_SECONDS: Final = 1.0
QUIET_SECONDS: Final = 8.0
"""It is over when nothing failed for so long, and something succeeded since: services that failed pause for less."""


class Trouble:
    """What the processes of one worker know together of their database."""

    def __init__(self) -> None:
        self._file = _anonymous_file()
        os.ftruncate(self._file, mmap.PAGESIZE)
        self._memory = mmap.mmap(self._file, mmap.PAGESIZE)
        self._guard = threading.Lock()

    @property
    def since(self) -> float:
        """When the present trouble began; 0 if there is none."""
        return self._get(SINCE)

    def report(self, who: str, error: Exception) -> None:
        """Take note of an error of the database that `who` met, and log it if it is time to; never waits."""
        now = time.monotonic()
        if not self._get(SINCE):
            self._set(SINCE, now)
        self._set(LAST_ERROR, now)
        if now < self._get(NEXT_LINE) or not self.may_speak():
            return
        lines = int(self._get(LINES))
        self._set(LINES, lines + 1)
        self._set(NEXT_LINE, now + PAUSES_SECONDS[min(lines, len(PAUSES_SECONDS) - 1)])
        lasted = f"still, after {now - self.since:.0f} s" if lines else "tried again until it works"
        logger.warning("trouble with the database (%s): %s: %s", lasted, who, in_a_line(error))

    def succeeded(self) -> None:
        """Take note that the database did as it was asked: where there is no trouble, one look at the memory."""
        if self._get(SINCE) and self._get(FIRST_SUCCESS) <= self._get(LAST_ERROR):
            self._set(FIRST_SUCCESS, time.monotonic())

    def settle(self) -> None:
        """Say that the trouble is over, if it is; called about once a second, by one process."""
        since, failed_at, succeeded_at = (self._get(word) for word in (SINCE, LAST_ERROR, FIRST_SUCCESS))
        if not since or succeeded_at <= failed_at or time.monotonic() - failed_at < QUIET_SECONDS:
            return
        if self._get(LINES):
            if not self.may_speak():
                return
            logger.warning("no more trouble with the database: it lasted %.1f s", succeeded_at - since)
        for word in (SINCE, FIRST_SUCCESS, NEXT_LINE, LINES):
            self._set(word, 0.0)

    def may_speak(self) -> bool:
        """Say whether a line may be logged now: one a second, of all processes; whoever asks and may has to speak."""
        if time.monotonic() < self._get(NEXT_WORD):
            return False
        with self._alone() as alone:
            if not alone or time.monotonic() < self._get(NEXT_WORD):
                return False
            self._set(NEXT_WORD, time.monotonic() + WORD_SECONDS)
            return True

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Say whether no other thread or process is here. The kernel takes a lock from a process that dies."""
        if not self._guard.acquire(blocking=False):
            yield False
            return
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        except OSError:  # a task may have closed all files: then two may speak at once
            yield True
        else:
            yield True
            fcntl.lockf(self._file, fcntl.LOCK_UN)
        finally:
            self._guard.release()

    def _get(self, word: int) -> float:
        return float(WORD.unpack_from(self._memory, word)[0])

    def _set(self, word: int, value: float) -> None:
        WORD.pack_into(self._memory, word, value)


def is_expected(error: Exception) -> bool:
    """Say whether an error only tells of the database or the network, so that its traceback would tell nothing."""
    return isinstance(error, psycopg.Error | OSError)


def in_a_line(error: Exception) -> str:
    """Return an error's message without line breaks, which psycopg's are full of."""
    return " ".join(told(error).split()) or type(error).__name__


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("pgqueue-trouble")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


trouble: Final = Trouble()
