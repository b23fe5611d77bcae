"""Keeps a connection that notifications arrive on, and lends it to the fetcher, which waits for them.

Polling is what correctness rests on. A transaction pooler accepts LISTEN and delivers nothing, so what is listened on
is tried first: with a notification from another connection.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

from django_pgqueue import db, ends
from django_pgqueue.conf import get_settings

from .bell import Bell
from .link import Link
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

SELF_TEST_SECONDS: Final = 1.0
SELF_TEST_AGAIN_SECONDS: Final = 60.0


class Listener(Service):
    """Connects, tests, lends; begins anew when the connection is lost. Says whether notifications arrive."""

    def __init__(self, link: Link, bell: Bell, on_change: Callable[..., None]) -> None:
        super().__init__("listener")
        self.link = link
        self.bell = bell
        self.bell.on_lost = self.wake
        self.on_change = on_change
        """Told, as `hears=`, whether notifications arrive."""
        self._lent_connected_at = -1.0
        self._deaf_since: float | None = None

    def tick(self) -> float:
        """Connect, test and lend if there is no connection that is lent."""
        error, self.bell.error = self.bell.error, None
        if error is not None:  # told before a new connection is tried, which may take long
            self.link.give_up()
            raise error
        with self.link.use() as connection:
            if self.link.connected_at != self._lent_connected_at:
                return self._begin(connection)
        return 60.0

    def at_end(self) -> None:
        """Close the connection."""
        self.bell.take_back()
        self.link.close()

    def _begin(self, connection: db.EngineConnection) -> float:
        connection.execute(f"LISTEN {db.CHANNEL}")
        connection.execute(f"LISTEN {ends.AWAITED}")
        if self._hears_itself(connection):
            self._lent_connected_at = self.link.connected_at
            self._deaf_since = None
            self.on_change(hears=True)
            self.bell.listen(connection)
            return 0.0
        if self._deaf_since is None:
            self._deaf_since = time.monotonic()
            logger.warning(
                "notifications do not arrive (is there a transaction pooler?): polling every %g s instead; "
                "PGQUEUE['LISTEN_DATABASE'] may name an alias that leads past it",
                get_settings().POLL_INTERVAL_WITHOUT_LISTEN,
            )
        self.link.close()
        return SELF_TEST_AGAIN_SECONDS

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

    def _pause_after(self, error: BaseException) -> float:
        self.on_change(hears=False)
        return super()._pause_after(error)
