"""Listens for notifications and wakes the fetcher; polling is what correctness rests on.

A transaction pooler accepts LISTEN and delivers nothing, so what is listened on is tried: with a notification from
another connection.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

from django_pgqueue import db
from django_pgqueue.conf import get_settings

from .link import Link
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

SELF_TEST_SECONDS: Final = 1.0
SELF_TEST_AGAIN_SECONDS: Final = 60.0
SLICE_SECONDS: Final = 1.0
"""How long one wait lasts: as long as a stop may take to be seen."""


class Listener(Service):
    """Wakes on notifications, and says how long the fetcher may sleep."""

    def __init__(self, link: Link, notified: Callable[[], None], may_sleep: Callable[[float], None]) -> None:
        super().__init__("listener")
        self.link = link
        link.statement_timeout_seconds = max(link.statement_timeout_seconds, 5 * SLICE_SECONDS)
        self.notified = notified
        self.may_sleep = may_sleep
        self._tested_connected_at = -1.0
        self._deaf_since: float | None = None

    def tick(self) -> float:
        """Listen for a slice of time; connect and test first if need be."""
        with self.link.use() as connection:
            if self.link.connected_at != self._tested_connected_at:
                return self._begin(connection)
            if list(connection.notifies(timeout=SLICE_SECONDS, stop_after=1)):
                self.notified()
        return 0.0

    def at_end(self) -> None:
        """Close the connection."""
        self.link.close()

    def _begin(self, connection: db.EngineConnection) -> float:
        connection.execute(f"LISTEN {db.CHANNEL}")
        if self._hears_itself(connection):
            self._tested_connected_at = self.link.connected_at
            self._deaf_since = None
            self.may_sleep(get_settings().POLL_INTERVAL)
            self.notified()  # whatever was enqueued before LISTEN told nobody
            return 0.0
        if self._deaf_since is None:
            self._deaf_since = time.monotonic()
            logger.warning(
                "notifications do not arrive (is there a transaction pooler?): polling every %g s instead; "
                "PGQUEUE['LISTEN_DATABASE'] may name an alias that leads past it",
                get_settings().POLL_INTERVAL_WITHOUT_LISTEN,
            )
        self.link.close()
        self._stopping.wait(SELF_TEST_AGAIN_SECONDS)
        return 0.0

    def _hears_itself(self, connection: db.EngineConnection) -> bool:
        """Say whether what others tell arrives. Told from here it would, also through a pooler: with the answer."""
        word = f"self-test {os.getpid()} {time.monotonic()}"
        with db.connect(self.link.alias, "listener") as other:
            other.execute("SELECT pg_notify(%s, %s)", (db.CHANNEL, word))
        deadline = time.monotonic() + SELF_TEST_SECONDS
        while (left_seconds := deadline - time.monotonic()) > 0:
            if any(notice.payload == word for notice in connection.notifies(timeout=left_seconds, stop_after=1)):
                return True
        return False

    def _pause_after(self, error: Exception) -> float:
        self.may_sleep(get_settings().POLL_INTERVAL_WITHOUT_LISTEN)
        return super()._pause_after(error)
