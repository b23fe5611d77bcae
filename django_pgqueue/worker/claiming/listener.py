"""Keep a connection on which notifications arrive, and lend it to the fetcher, which waits for them.

Notifications only shorten the time until a job starts; polling alone finds every job. A transaction pooler accepts
LISTEN and delivers nothing, so each connection is tested first with a notification from another connection.

Started by the worker process as a service. It reports to the worker process whether notifications arrive, which decides
how often an idle worker polls.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

from django_pgqueue.conf import get_settings
from django_pgqueue.db.engine_connection import EngineConnection, connect
from django_pgqueue.db.notifications import CHANNEL
from django_pgqueue.log_events import event
from django_pgqueue.waiting import listener
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.service import Service

from .notification_waker import NotificationWaker

logger = logging.getLogger("django_pgqueue.worker")

SELF_TEST_SECONDS: Final = 1.0
SELF_TEST_AGAIN_SECONDS: Final = 60.0


class Listener(Service):
    """Connect, test and lend a connection. Start again when the connection is lost."""

    def __init__(self, link: Link, waker: NotificationWaker, on_change: Callable[..., None]) -> None:
        super().__init__("listener")
        self.link = link
        self.waker = waker
        self.on_change = on_change
        """Called with `listens=`: whether notifications arrive."""
        self._lent_connected_at = -1.0
        self._failed_since: float | None = None

    def tick(self) -> float:
        """Connect, test and lend a connection if none is lent."""
        error, self.waker.error = self.waker.error, None
        if error is not None:  # report the loss before a new connection is tried, which may take long
            self.link.give_up()
            raise error
        with self.link.use() as connection:
            if self.link.connected_at != self._lent_connected_at:
                return self._listen(connection)
        return 60.0

    def at_end(self) -> None:
        """Close the connection."""
        self.waker.stop_listening()
        self.link.close()

    def _listen(self, connection: EngineConnection) -> float:
        connection.execute(f"LISTEN {CHANNEL}")
        connection.execute(f"LISTEN {listener.AWAITED}")
        if self._passes_self_test(connection):
            self._lent_connected_at = self.link.connected_at
            self._failed_since = None
            self.on_change(listens=True)
            self.waker.listen(connection, self.wake)
            return 0.0
        if self._failed_since is None:
            self._failed_since = time.monotonic()
            logger.warning(
                "notifications do not arrive (is there a transaction pooler?): polling every %g s instead; "
                "set PGQUEUE['LISTEN_DATABASE'] to an alias that bypasses the pooler",
                get_settings().POLL_INTERVAL_WITHOUT_LISTEN,
                extra=event("notifications_missing"),
            )
        self.link.close()
        return SELF_TEST_AGAIN_SECONDS

    def _passes_self_test(self, connection: EngineConnection) -> bool:
        """Return whether a notification from another connection arrives.

        A notification sent on this connection would arrive even through a pooler, together with the answer.
        """
        payload = f"self-test {os.getpid()} {time.monotonic()}"
        with connect(self.link.alias, "listener") as other:
            other.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
        deadline = time.monotonic() + SELF_TEST_SECONDS
        while (left_seconds := deadline - time.monotonic()) > 0:
            if any(notice.payload == payload for notice in connection.notifies(timeout=left_seconds, stop_after=1)):
                return True
        return False

    def _pause_after(self, error: BaseException) -> float:
        self.on_change(listens=False)
        return super()._pause_after(error)
