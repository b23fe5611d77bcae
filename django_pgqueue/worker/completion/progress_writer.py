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
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final, NamedTuple

import psycopg
from django.db import DatabaseError

from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.errors import TRANSIENT, message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.job_log import HALF_LINES, LogBuffer, RecordedLine
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.progress import Progress
from django_pgqueue.lifecycle import completions, execute, logs
from django_pgqueue.lifecycle.logs import KeptLog
from django_pgqueue.lifecycle.types import ExecutionKey, Noted, TransitionStatus
from django_pgqueue.worker.runtime.outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")

WRITE_SECONDS: Final = 1.0
"""Interval between two writes of changed progress."""
NOTHING_SECONDS: Final = 60.0
SEND_INTERVAL_SECONDS: Final = 0.1
"""Interval between two progress messages of an isolated process."""


class Note(NamedTuple):
    """A reported progress, and when it was reported, by the monotonic clock."""

    progress: Progress
    noted_at: float


class Notes:
    """The latest progress of each execution that is not written yet.

    Any thread reports progress. No lock is needed, because each access is one atomic operation on a dict.
    """

    def __init__(self, on_pending: Callable[[], None] = lambda: None) -> None:
        self.on_pending = on_pending
        """Called when there is progress to write and there was none before."""
        self._is_announced = False
        """Whether `on_pending()` was called since there was nothing to write."""
        self._unwritten: dict[ExecutionKey, Note] = {}
        self.logs = UnwrittenLogs()
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
            self.logs.changed(key, buffer)
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
        error of a lost connection is raised, and then nothing is dropped.
        """
        if keys is None:
            self._written_at = time.monotonic()
        self.logs.write(connection, keys)
        wanted = list(self._unwritten) if keys is None else keys
        taken = {key: note for key in wanted if (note := self._unwritten.pop(key, None)) is not None}
        if not taken:
            return set()
        try:
            results, refused, left = execute.divided(
                connection, _as_rows(taken), lambda part: completions.note_progress(connection, part)
            )
        except (psycopg.Error, DatabaseError, OSError) as error:
            if not isinstance(connection, EngineConnection) or is_lost(connection):
                self._put_back(taken)
                raise
            if isinstance(error, TRANSIENT):
                self._put_back(taken)
                return set(taken)
            if outage_log.may_log():
                logger.warning(
                    "the progress of %d jobs cannot be written: %s",
                    len(taken),
                    message_without_detail(error),
                    extra=event("progress_refused", count=len(taken)),
                )
            return set()
        if refused and outage_log.may_log():
            logger.warning(
                "the progress of %d jobs cannot be written: %s",
                len(refused),
                message_without_detail(refused[0].error),
                extra=event("progress_refused", count=len(refused)),
            )
        locked_ids = {key for key, result in results.items() if result.status is TransitionStatus.LOCKED}
        locked = {key for key in taken if key.execution_id in locked_ids} | {row.key for row in left}
        self._put_back({key: taken[key] for key in locked})
        return locked

    def _put_back(self, taken: dict[ExecutionKey, Note]) -> None:
        for key, note in taken.items():
            self._unwritten.setdefault(key, note)  # a note that was stored in the meantime is newer


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


def _as_rows(taken: dict[ExecutionKey, Note]) -> list[Noted]:
    now = time.monotonic()
    return [Noted(key, note.progress, now - note.noted_at) for key, note in taken.items()]


class UnwrittenLogs:
    """The buffers that have lines that are not written yet. Each access is one atomic operation on a dict.

    `Notes` owns the lines that are not written yet. Lines never delay the completion of their job: those that the
    database refuses are dropped.
    """

    def __init__(self) -> None:
        self._unwritten: dict[ExecutionKey, LogBuffer] = {}

    def __len__(self) -> int:
        return len(self._unwritten)

    def changed(self, key: ExecutionKey, buffer: LogBuffer) -> None:
        """Record that a buffer has lines to write. Safe from any thread."""
        self._unwritten[key] = buffer

    def discard(self, key: ExecutionKey) -> None:
        """Forget the lines of an execution that its completion deletes."""
        self._unwritten.pop(key, None)

    def write(self, connection: Connection, keys: Collection[ExecutionKey] | None) -> None:
        """Write the lines of these executions, or of all. An error of a lost connection is raised, and drops nothing.

        A buffer is removed before it is read, so that a line that arrives meanwhile is written by the next call.
        """
        if not self._unwritten:
            return
        wanted = list(self._unwritten) if keys is None else keys
        taken = {key: buffer for key in wanted if (buffer := self._unwritten.pop(key, None)) is not None}
        rows = [KeptLog(key, buffer.content()) for key, buffer in taken.items()]
        try:
            done = execute.divided(connection, rows, lambda part: logs.keep_logs(connection, part))
        except (psycopg.Error, DatabaseError, OSError) as error:
            if not isinstance(connection, EngineConnection) or is_lost(connection):
                self._put_back(taken)
                raise
            if isinstance(error, TRANSIENT):
                self._put_back(taken)
            else:
                _log_refusal(len(taken), error)
            return
        self._put_back({row.key: taken[row.key] for row in done.left})
        if done.refused:
            _log_refusal(len(done.refused), done.refused[0].error)

    def _put_back(self, taken: dict[ExecutionKey, LogBuffer]) -> None:
        for key, buffer in taken.items():
            self._unwritten.setdefault(key, buffer)


def _log_refusal(count: int, error: Exception) -> None:
    if outage_log.may_log():
        logger.warning(
            "the log lines of %d jobs cannot be written: %s",
            count,
            message_without_detail(error),
            extra=event("log_lines_refused", count=count),
        )
