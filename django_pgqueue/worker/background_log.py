"""Log lines of a worker's own threads, passed to the project's handlers by a thread of their own.

A handler may block: its pipe is full because nobody reads it, or its server does not answer. A thread of the engine
that logged there would stop completing jobs, and could not stop the process. So a filter on the engine's loggers puts
each record into a bounded queue and returns False. The process calls `start()` when it needs to fork no more, and
`flush()` before it ends. Loggers of the project are left alone.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

LOGGERS: Final = ("django_pgqueue.worker", "django_pgqueue.db", "psycopg", "asyncio")
"""The loggers that threads of the engine write to: our own, and those of the libraries that they call."""
LIMIT: Final = 10_000
"""How many records may wait. More are dropped and counted."""
TRACEBACK_LIMIT: Final = 1_000
"""When more wait, records lose their exception, because its traceback keeps the variables of a job alive."""
FLUSH_SECONDS: Final = 1.0


class EngineLogFilter(logging.Filter):
    """A filter that takes the engine's records elsewhere. Each logger has at most one."""

    def install(self) -> None:
        """Take the records of all the engine's loggers, in place of the filter that the parent process installed."""
        for name in LOGGERS:
            logger = logging.getLogger(name)
            for other in [one for one in logger.filters if isinstance(one, EngineLogFilter)]:
                logger.removeFilter(other)
            logger.addFilter(self)


class BackgroundLog(EngineLogFilter):
    """Queues records, and hands them to the handlers in a thread."""

    def __init__(self) -> None:
        super().__init__()
        # SimpleQueue is C code: an exception thrown into a job's thread cannot leave its lock locked.
        self._records: SimpleQueue[logging.LogRecord | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.dropped = 0
        """How many records were dropped and not yet reported."""

    def start(self) -> None:
        """Queue the records of the engine's loggers from now on, and start the thread at once."""
        self.install()
        self._ensure_thread()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs in this process; a fork does not take it along."""
        return self._thread is not None and self._thread.is_alive()

    def _ensure_thread(self) -> None:
        """Start the thread at the first record: an isolated process that logs nothing can still fork safely."""
        if not self.is_running and self._starting.acquire(blocking=False):
            with suppress(RuntimeError):  # the system has no more threads: the next record tries again
                self._thread = threading.Thread(target=self._run, name="pgqueue-log", daemon=True)
                self._thread.start()
            self._starting.release()

    def filter(self, record: logging.LogRecord) -> bool:
        """Queue a record and return False; return True for a line that a handler itself logs."""
        if threading.current_thread() is self._thread:
            return True
        self._ensure_thread()
        waiting = self._records.qsize()
        if waiting >= LIMIT:
            self.dropped += 1
            return False
        if waiting >= TRACEBACK_LIMIT and record.exc_info:
            record.exc_info, record.exc_text = None, "(no traceback: too many log lines wait)"
        self._records.put(record)
        return False

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until everything queued so far was handed over; return False if that takes longer than `seconds`."""
        if not self.is_running:
            return not self._records.qsize()
        done = threading.Event()
        self._records.put(done)
        return done.wait(seconds)

    def _run(self) -> None:
        while True:
            item = self._records.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._report_dropped()
                hand_over(item)

    def _report_dropped(self) -> None:
        dropped, self.dropped = self.dropped, 0
        if dropped:
            hand_over(dropped_record(dropped))


def hand_over(record: logging.LogRecord) -> None:
    """Call the handlers for a record, past the filters; whatever they raise ends nothing."""
    with suppress(BaseException):
        logging.getLogger(record.name).callHandlers(record)


def dropped_record(count: int) -> logging.LogRecord:
    """Return the record that says how many others are missing."""
    message = "%d log lines were dropped, because the log was not read"
    return logging.LogRecord("django_pgqueue.worker", logging.WARNING, __file__, 0, message, (count,), None)


def keep_output_open() -> None:
    """Have a task that closes stdout or stderr close neither, because log handlers write there."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # Python has none where the descriptor was closed before its start
            stream.close = lambda: None  # type: ignore[method-assign]  # of this one object


background_log: Final = BackgroundLog()
"""This process's own. It queues nothing before `install()`."""
