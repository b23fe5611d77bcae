"""Pass the log records of a worker's own threads to the project's log handlers in a separate thread.

A handler can block, for example because its pipe is full and not read, or because its server does not answer. An engine
thread that called such a handler would stop completing jobs and could not stop the process. A filter on the engine's
loggers therefore puts each record into a bounded queue and returns False. A process calls `start()` when it will not
fork again, and `flush()` before it ends. The project's own loggers are not changed.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import counted
from django_pgqueue.log import add_job

LOGGERS: Final = ("django_pgqueue.worker", "django_pgqueue.jobs", "django_pgqueue.db", "psycopg", "asyncio")
"""The loggers that engine threads use: the engine's own, and those of the libraries that it calls."""
LIMIT: Final = 10_000
"""How many records the queue holds. Further records are dropped and counted."""
TRACEBACK_LIMIT: Final = 1_000
"""Above this length of the queue, records lose their exception, because its traceback keeps a job's variables alive."""
FLUSH_SECONDS: Final = 1.0
MESSAGE_CHARACTERS: Final = 2_000
"""Maximum length of a message."""
TRACEBACK_CHARACTERS: Final = 16_000
"""Maximum length of a traceback whose exceptions have messages of more than `MESSAGE_CHARACTERS` together."""
CHAIN_LIMIT: Final = 100


class EngineLogFilter(logging.Filter):
    """A filter that redirects the engine's records. Each logger has at most one."""

    def install(self) -> None:
        """Redirect the records of all engine loggers. This replaces a filter inherited from the parent process."""
        for name in LOGGERS:
            logger = logging.getLogger(name)
            for inherited in [installed for installed in logger.filters if isinstance(installed, EngineLogFilter)]:
                logger.removeFilter(inherited)
            logger.addFilter(self)


class BackgroundLog(EngineLogFilter):
    """Queues records, and calls the log handlers in a thread."""

    def __init__(self) -> None:
        super().__init__()
        # SimpleQueue is C code: an exception thrown into a job's thread cannot leave its lock locked.
        self._records: SimpleQueue[logging.LogRecord | threading.Event] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self.dropped = 0
        """How many dropped records have not been reported yet."""

    def start(self) -> None:
        """Queue all further records of the engine's loggers, and start the thread at once."""
        self.install()
        self._ensure_thread()

    @property
    def is_running(self) -> bool:
        """Whether the thread runs in this process. A forked child has no copy of the thread."""
        return self._thread is not None and self._thread.is_alive()

    def _ensure_thread(self) -> None:
        """Start the thread if it does not run.

        `filter()` calls this at each record. An isolated process that logs nothing has no thread, and can fork safely.
        """
        if not self.is_running and self._starting.acquire(blocking=False):
            with suppress(RuntimeError):  # the system cannot start a thread now: the next record tries again
                self._thread = threading.Thread(target=self._run, name="pgqueue-log", daemon=True)
                self._thread.start()
            self._starting.release()

    def filter(self, record: logging.LogRecord) -> bool:
        """Queue a record and return False. Return True for a record that a log handler itself logs."""
        if threading.current_thread() is self._thread:
            return True
        self._ensure_thread()
        queued = self._records.qsize()
        if queued >= LIMIT:
            self.dropped += 1
            return False
        add_job(record)  # of psycopg and asyncio, which a job's thread calls; the other thread does not know the job
        if queued >= TRACEBACK_LIMIT and record.exc_info:
            record.exc_info, record.exc_text = None, "(no traceback: too many log records are queued)"
        self._records.put(record)
        return False

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until the handlers have received all queued records; return False if `seconds` are not enough."""
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
                dropped, self.dropped = self.dropped, 0
                if dropped:
                    call_handlers(dropped_record(dropped))
                call_handlers(item)


def call_handlers(record: logging.LogRecord) -> None:
    """Call the log handlers for a record, cut if it is long. Bypass the filters, and suppress all exceptions."""
    with suppress(BaseException):
        shorten(record)
    with suppress(BaseException):
        logging.getLogger(record.name).callHandlers(record)


def dropped_record(count: int) -> logging.LogRecord:
    """Return the log record that reports how many others were dropped."""
    message = "the log handlers did not keep up: dropped %s"
    record = logging.LogRecord(
        "django_pgqueue.worker", logging.WARNING, __file__, 0, message, (counted(count, "log record"),), None
    )
    vars(record).update(event("log_records_dropped", count=count))
    return record


def keep_output_open() -> None:
    """Prevent tasks from closing stdout or stderr, because log handlers write there."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None if the descriptor was closed before Python started
            stream.close = lambda: None  # type: ignore[method-assign]  # of this one object


def flush_output() -> None:
    """Flush stdout and stderr. A task may have replaced them by any objects."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(BaseException):
            stream.flush()


background_log: Final = BackgroundLog()
"""The instance of this process. It queues no records before `start()` or `install()`."""


def shorten(record: logging.LogRecord) -> None:
    """Cut the message and the traceback of a record if they are long. Short ones cost two string formattings.

    An exception's message can contain a whole document, and a handler would write it with each attempt. `BackgroundLog`
    calls `shorten()` in its own thread, so it costs the engine's threads nothing.
    """
    message = record.getMessage()
    if len(message) > MESSAGE_CHARACTERS:
        record.msg, record.args = _cut(message, MESSAGE_CHARACTERS), None
    if record.exc_text:  # an isolated job has only the text
        record.exc_text = _cut(record.exc_text, TRACEBACK_CHARACTERS)
        return
    exception = record.exc_info[1] if record.exc_info else None
    if exception is None:
        return
    # Formatting the traceback to measure it would take 100 µs for each failed attempt.
    if sum(len(str(each)) for each in _chain(exception)) > MESSAGE_CHARACTERS:
        record.exc_text = _cut("".join(traceback.format_exception(exception)).rstrip("\n"), TRACEBACK_CHARACTERS)


def _chain(exception: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it."""
    for _ in range(CHAIN_LIMIT):
        if exception is None:
            return
        yield exception
        exception = exception.__cause__ or exception.__context__


def _cut(text: str, limit: int) -> str:
    """Return a text of about `limit` characters, with a note in the place of its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [… {len(text) - 2 * half:,} characters cut …] {text[-half:]}"
