"""Write the log lines of running jobs, together with their progress.

`Notes` owns the lines that are not written yet. Lines never delay the completion of their job: those that the database
refuses are dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

import psycopg
from django.db import DatabaseError

from django_pgqueue import lifecycle
from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.errors import TRANSIENT, message_without_detail
from django_pgqueue.db.statements import Connection
from django_pgqueue.job_log import LogBuffer
from django_pgqueue.lifecycle import ExecutionKey, KeptLog
from django_pgqueue.log_events import event
from django_pgqueue.worker.runtime.outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")


class UnwrittenLogs:
    """The buffers that have lines that are not written yet. Each access is one atomic operation on a dict."""

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
            done = lifecycle.divided(connection, rows, lambda part: lifecycle.keep_logs(connection, part))
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
