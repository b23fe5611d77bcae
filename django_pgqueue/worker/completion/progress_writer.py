"""Keep the latest progress and the log lines of running jobs, and write all of them in one statement each a second.

Attempts call `Notes.note()`. In a worker process the completer calls `Notes.write()`, because the last progress of an
attempt must be written before its completion, which closes the execution. While no job reports progress, nothing is
sent to the database.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from django.db import DatabaseError

from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.errors import TRANSIENT, message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.job_log import HALF_LINES, LogBuffer, RecordedLine
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import counted
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import completions, logs, refused_rows
from django_pgqueue.lifecycle.logs import KeptLog
from django_pgqueue.lifecycle.types import ExecutionKey, Noted, TransitionStatus
from django_pgqueue.worker.runtime.outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")

Value = TypeVar("Value")

WRITE_SECONDS: Final = 1.0
"""Interval between two writes of changed progress."""
NOTHING_SECONDS: Final = 60.0
SEND_INTERVAL_SECONDS: Final = 0.1
"""Interval between two progress messages of an isolated process."""


class Note(NamedTuple):
    """A reported progress, and when it was reported, by the monotonic clock."""

    progress: Progress
    noted_at: float


class Unwritten(dict[ExecutionKey, Value]):
    """The value of each execution that is not written yet.

    Any thread adds values, because each access is one atomic operation on a dict.

    Args:
        as_row: Makes the row that is written.
        write: Writes rows. Returns the executions that were found: True if the row was written, False if it is locked.
        log_refusal: Logs how many values the database refused, and why.
    """

    def __init__(
        self,
        as_row: Callable[[ExecutionKey, Value], Any],
        write: Callable[[Connection, Sequence[Any]], Mapping[int, bool]],
        log_refusal: Callable[[int, str], None],
    ) -> None:
        super().__init__()
        self._as_row = as_row
        self._write = write
        self._log_refusal = log_refusal

    def write(self, connection: Connection, keys: Collection[ExecutionKey] | None) -> set[ExecutionKey]:
        """Write the values of these executions, or of all; return those that are left. See `Notes.write()`.

        A value is removed before it is read, so that what arrives meanwhile is written by the next call.
        """
        wanted = list(self) if keys is None else keys
        taken = {key: value for key in wanted if (value := self.pop(key, None)) is not None}
        if not taken:
            return set()
        rows = [self._as_row(key, value) for key, value in taken.items()]
        try:
            answers, refused, left = refused_rows.divided(connection, rows, partial(self._write, connection))
        except (psycopg.Error, DatabaseError, OSError) as error:
            if not isinstance(connection, EngineConnection) or is_lost(connection):
                self._put_back(taken)
                raise
            if isinstance(error, TRANSIENT):
                self._put_back(taken)
                return set(taken)
            answers, refused, left = {}, [refused_rows.Refused(row, error) for row in rows], []
        if refused and outage_log.may_log():
            self._log_refusal(len(refused), message_without_detail(refused[0].error))
        locked = {key for key in taken if not answers.get(key.execution_id, True)} | {row.key for row in left}
        self._put_back({key: taken[key] for key in locked})
        return locked

    def _put_back(self, taken: Mapping[ExecutionKey, Value]) -> None:
        for key, value in taken.items():
            self.setdefault(key, value)  # a value that was stored in the meantime is newer


def _progress_row(key: ExecutionKey, note: Note) -> Noted:
    return Noted(key, note.progress, time.monotonic() - note.noted_at)


def _write_progress(connection: Connection, rows: Sequence[Noted]) -> dict[int, bool]:
    noted = completions.note_progress(connection, rows)
    return {execution_id: result.status is not TransitionStatus.LOCKED for execution_id, result in noted.items()}


def _log_refused_progress(count: int, reason: str) -> None:
    extra = event("progress_refused", count=count)
    logger.warning("the progress of %s cannot be written: %s", counted(count), reason, extra=extra)


def _lines_row(key: ExecutionKey, buffer: LogBuffer) -> KeptLog:
    return KeptLog(key, buffer.content())


def _log_refused_lines(count: int, reason: str) -> None:
    extra = event("log_lines_refused", count=count)
    logger.warning("the log lines of %s cannot be written: %s", counted(count), reason, extra=extra)


class Notes:
    """The latest progress of each execution that is not written yet.

    Any thread reports progress. No lock is needed, because each access is one atomic operation on a dict.
    """

    def __init__(self, on_pending: Callable[[], None] = lambda: None) -> None:
        self.on_pending = on_pending
        """Called when there is progress to write and there was none before."""
        self._is_announced = False
        """Whether `on_pending()` was called since there was nothing to write."""
        self._unwritten = Unwritten(_progress_row, _write_progress, _log_refused_progress)
        self.logs = Unwritten(_lines_row, logs.keep_logs, _log_refused_lines)
        """The buffers with lines that are not written yet. A completion that deletes lines removes theirs."""
        self._written_at = float("-inf")

    def __len__(self) -> int:
        return len(self._unwritten) + len(self.logs)

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Record the progress of an attempt. Safe from any thread."""
        self._unwritten[key] = Note(progress, time.monotonic())
        self._announce()

    def open_log(self, key: ExecutionKey) -> Callable[[RecordedLine], None]:
        """Return a function that records a log line of an attempt. Safe from any thread."""
        buffer = LogBuffer()

        def add(line: RecordedLine) -> None:
            buffer.add(line)
            self.logs[key] = buffer
            self._announce()

        return add

    def _announce(self) -> None:
        if not self._is_announced:  # read this after the note or line is stored: see `due_in_seconds`
            self._is_announced = True
            self.on_pending()

    @property
    def due_in_seconds(self) -> float:
        """Seconds until the next write; a minute if there is nothing to write.

        The second check prevents a lost wake-up. It finds every note that was stored before it. A thread that stores a
        note later reads the cleared flag and calls `on_pending()`.
        """
        if not self:
            self._is_announced = False
            if not self:
                return NOTHING_SECONDS
        return max(0.0, self._written_at + WRITE_SECONDS - time.monotonic())

    def write(self, connection: Connection, keys: Collection[ExecutionKey] | None = None) -> set[ExecutionKey]:
        """Write the progress and the log lines of these executions, or of all.

        Return the executions with locked rows, or that time was up for. Their progress is written later. Progress that
        cannot be written for another reason is logged and dropped, because it must not delay the job's completion. An
        error of a lost connection is raised, and then nothing is dropped. Lines never delay a completion.
        """
        if keys is None:
            self._written_at = time.monotonic()
        self.logs.write(connection, keys)
        return self._unwritten.write(connection, keys)


class ProgressSender:
    """Send the progress and the log lines of an isolated job to the worker process, which writes them.

    At most one message is sent per 0.1 s, so that a loop that reports a million steps does not send a million messages.
    The latest progress and lines go with the next message, or with the report at the end of the attempt. The first log
    lines are sent at once, so that the lines before a crash are not lost.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._sent_at = float("-inf")
        self._latest: Progress | None = None
        self._lines: deque[RecordedLine] = deque(maxlen=HALF_LINES)
        self._lines_at_once = HALF_LINES
        self._guard = threading.Lock()
        """Held while a message is sent, because a task's own threads log too: two messages must not mix."""
        self._is_closed = False

    def note(self, key: ExecutionKey, progress: Progress) -> None:
        """Record the progress, and send it unless a message was sent less than 0.1 s ago."""
        self._latest = progress
        now = time.monotonic()
        if now - self._sent_at >= SEND_INTERVAL_SECONDS:
            self._sent_at = now
            self._send_message(key)

    def open_log(self, key: ExecutionKey) -> Callable[[RecordedLine], None]:
        """Return a function that records a log line. The first lines are sent at once, later ones like progress."""

        def add(line: RecordedLine) -> None:
            self._lines.append(line)
            self._lines_at_once -= 1
            if self._lines_at_once >= 0 or time.monotonic() - self._sent_at >= SEND_INTERVAL_SECONDS:
                self._sent_at = time.monotonic()
                self._send_message(key)

        return add

    def _send_message(self, key: ExecutionKey) -> None:
        with self._guard, suppress(OSError):  # the worker process is gone; the end of the attempt will show that
            if not self._is_closed:
                self._send(self.message(key.execution_id))

    def message(self, execution_id: int) -> dict[str, Any]:
        """Return the message with the latest progress and the lines that were not sent yet."""
        message = {"execution_id": execution_id, "progress": self._latest and list(self._latest[:3])}
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        return {**message, "lines": lines} if lines else message

    def last_message(self, execution_id: int) -> dict[str, Any]:
        """Return the message that the report of the attempt contains. Send nothing from now on.

        A thread that the task left behind must not send between the report and the next job.
        """
        with self._guard:
            self._is_closed = True
            return self.message(execution_id)
