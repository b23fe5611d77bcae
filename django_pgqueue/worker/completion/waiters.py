"""Notify applications that wait for a job when this process has written the end of that job.

Waiting applications announce job ids by NOTIFY and repeat the announcement while they wait;
`waiting.completion_listener` is their side. The fetcher's connection receives the announcements, and all writers of
this process report finished jobs. Notifications are only a hint: a waiter also polls the job's row, so a lost or
superfluous notification delays or repeats a poll and never changes a result. While no application waits, no statement
is sent.

The table is used from several threads; `_lock` guards it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import Connection
from django_pgqueue.waiting import completion_listener

logger = logging.getLogger("django_pgqueue.worker")

LIMIT: Final = 10_000
"""Maximum number of ids. When the table is full, the oldest id is dropped and its waiter falls back to polling."""
FORGET_SECONDS: Final = 4 * completion_listener.REPEAT_SECONDS
"""An id that was not announced again for this long has no waiter any more."""


class Waiters:
    """Job ids that applications wait for, with the time of their last announcement."""

    def __init__(self) -> None:
        self._heard_at: OrderedDict[int, float] = OrderedDict()
        self._lock = threading.Lock()

    def exist(self) -> bool:
        """Return whether any application waits. Safe from any thread."""
        return bool(self._heard_at)

    def hear(self, payload: str) -> None:
        """Remember the job ids that a notification announces."""
        now = time.monotonic()
        with self._lock:
            for job_id in completion_listener.ids_in(payload):
                self._heard_at[job_id] = now
                self._heard_at.move_to_end(job_id)
            self._forget(now)

    def notify(self, connection: Connection, job_ids: Iterable[int]) -> None:
        """Notify the applications that wait for one of these finished jobs. Raise nothing.

        Call this after the commit. A waiter that is notified earlier reads the old row and waits for its next poll.
        """
        with self._lock:
            self._forget(time.monotonic())
            over = [job_id for job_id in job_ids if self._heard_at.pop(job_id, None) is not None]
        if not over or not isinstance(connection, EngineConnection):
            return
        try:
            completion_listener.notify(connection, completion_listener.OVER, over)
        except (psycopg.Error, OSError):
            logger.debug("could not notify the applications that wait for %d finished jobs", len(over), exc_info=True)

    def _forget(self, now: float) -> None:
        """Drop expired ids and, above `LIMIT`, the oldest ones. Requires `_lock`."""
        while self._heard_at:
            oldest_at = next(iter(self._heard_at.values()))
            if len(self._heard_at) <= LIMIT and now - oldest_at <= FORGET_SECONDS:
                return
            self._heard_at.popitem(last=False)
