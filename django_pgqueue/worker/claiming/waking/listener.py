"""Listen for notifications on a connection of the worker process, and test whether they arrive.

Notifications only shorten the time until a job starts; polling alone finds every job. A transaction pooler accepts
LISTEN and delivers nothing, so each new connection is tested with a notification from another connection.

Started by the worker process as a service. The fetcher's `NotificationWaker` waits for the notifications, and wakes
this service when the connection was closed or replaced. The service reports to the worker process whether notifications
arrive, which decides how often an idle worker polls.

Notifications arrive with the answers of other services' statements. If more arrive than the process can read, each
claim waits for thousands of them, and the server's queue of notifications fills up for all its clients. The service
then stops listening for a while, and the worker polls.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Final

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection, is_lost
from django_pgqueue.db.notifications import CHANNEL, LISTENS
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.waker import is_readable
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.waiting import completion_listener
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_connections import ConnectionInUse, Preference, SharedConnections

from .fetcher_sleep import FLOOD_NOTIFICATIONS, FLOOD_SECONDS, NotificationWaker

logger = logging.getLogger("django_pgqueue.worker")

SELF_TEST: Final = "pgqueue_self_test"
"""A channel of its own, because a notification on the main one makes all idle workers poll."""
SELF_TEST_SECONDS: Final = 1.0
SELF_TEST_AGAIN_SECONDS: Final = 60.0
SELF_TEST_RETRY_SECONDS: Final = 0.1
"""How long until the next self-test if another service used the second connection."""
FLOOD_REST_SECONDS: Final = 10.0
"""How long the worker does not listen after a flood of notifications."""


def listening_connections(
    alias: str, roles: tuple[str, str], listener_role: str, waker: NotificationWaker
) -> tuple[SharedConnections, SharedConnections]:
    """Return the connections of some services, and those of their listener, which are the same if possible.

    A listener that has to bypass a pooler has connections of its own (`PGQUEUE["LISTEN_DATABASE"]`).
    """
    listen_alias = get_settings().listen_alias(alias)
    if listen_alias == alias:
        shared = SharedConnections(alias, roles, waker)
        return shared, shared
    own = SharedConnections(listen_alias, (listener_role, listener_role), waker)
    return SharedConnections(alias, roles), own


class SelfTestNotSent(Exception):
    """The second connection was in use, or it failed."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(reason)
        self.reason = reason


class Listener(Service):
    """Listen on the first connection, and again on each connection that replaces it."""

    def __init__(
        self, connections: SharedConnections, waker: NotificationWaker, on_change: Callable[..., None]
    ) -> None:
        super().__init__("listener")
        self.first = connections.share(Preference.ONLY_FIRST)
        self.second = connections.share(Preference.ONLY_SECOND)
        self.waker = waker
        self.on_change = on_change
        """Called with `listens=`: whether notifications arrive."""
        self._heard_on: EngineConnection | None = None
        """The connection on which notifications arrive."""
        self._failed_since: float | None = None
        self._flooded_until = float("-inf")
        self._flood_is_logged = False

    def tick(self) -> float:
        """Listen on the first connection, unless notifications arrive on it already."""
        error, self.waker.error = self.waker.error, None
        if error is not None:  # report the loss before a new connection is tried, which may take long
            raise error
        rest_seconds = self._flooded_until - time.monotonic()
        if rest_seconds > 0:
            return rest_seconds
        with self.first.use() as connection:
            if self.waker.is_flooded:
                return self._stop_listening(connection)
            if connection is self._heard_on:
                self._flood_is_logged = False
                return SELF_TEST_AGAIN_SECONDS
            self._heard_on = None
            try:
                return self._listen(connection)
            except SelfTestNotSent as not_sent:
                reason = not_sent.reason
        self.on_change(listens=False)
        if not isinstance(reason, ConnectionInUse):
            raise reason
        return SELF_TEST_RETRY_SECONDS

    def _listen(self, connection: EngineConnection) -> float:
        if self._can_listen(connection) and self._passes_self_test(connection):
            connection.execute(f"UNLISTEN {SELF_TEST}", prepare=False)
            self._set_name(connection, LISTENS)
            self._heard_on, self._failed_since = connection, None
            self.on_change(listens=True)
            self.waker.expect_notifications(connection)
            return SELF_TEST_AGAIN_SECONDS
        if self.waker.is_flooded:
            return self._stop_listening(connection)
        self.on_change(listens=False)
        if self._failed_since is None:
            self._failed_since = time.monotonic()
            logger.warning(
                "notifications do not arrive (is there a transaction pooler?): polling every %g s instead; "
                "set PGQUEUE['LISTEN_DATABASE'] to an alias that bypasses the pooler",
                get_settings().POLL_INTERVAL_WITHOUT_LISTEN,
                extra=event("notifications_missing"),
            )
        return SELF_TEST_AGAIN_SECONDS

    def _stop_listening(self, connection: EngineConnection) -> float:
        """Stop listening because of a flood. Return how long to rest."""
        connection.execute("UNLISTEN *", prepare=False)
        self._set_name(connection)
        self._heard_on, self.waker.is_flooded = None, False
        self._flooded_until = time.monotonic() + FLOOD_REST_SECONDS
        self.on_change(listens=False)
        if not self._flood_is_logged:
            self._flood_is_logged = True
            logger.warning(
                "more than %s notifications a second arrive on the channel %s: not listening for %g s, and polling "
                "every %g s instead; find who sends them",
                f"{FLOOD_NOTIFICATIONS / FLOOD_SECONDS:,.0f}",
                CHANNEL,
                FLOOD_REST_SECONDS,
                get_settings().POLL_INTERVAL_WITHOUT_LISTEN,
                extra=event("notifications_flood"),
            )
        return FLOOD_REST_SECONDS

    def _set_name(self, connection: EngineConnection, addition: str = "") -> None:
        name = f"pgqueue:{self.first.role}{addition}"
        connection.execute("SELECT set_config('application_name', %s, false)", (name,), prepare=False)

    @staticmethod
    def _can_listen(connection: EngineConnection) -> bool:
        """Return whether the other end accepts LISTEN. A refusal must not close the connection that others use."""
        try:
            connection.execute(f"LISTEN {CHANNEL}", prepare=False)
            connection.execute(f"LISTEN {completion_listener.AWAITED}", prepare=False)
            connection.execute(f"LISTEN {SELF_TEST}", prepare=False)
        except psycopg.Error:
            if is_lost(connection):
                raise
            return False
        return True

    def _passes_self_test(self, connection: EngineConnection) -> bool:
        """Return whether a notification from another connection arrives.

        A notification sent on this connection would arrive even through a pooler, together with the answer. For the
        same reason, no other thread uses this connection during the test.
        """
        payload = f"{os.getpid()} {time.monotonic()}"
        try:
            self._send(payload)
        except SelfTestNotSent:  # the second connection was probably lost together with the former first one
            self._send(payload)
        deadline = time.monotonic() + SELF_TEST_SECONDS
        while (left_seconds := deadline - time.monotonic()) > 0:
            if is_readable(connection.fileno(), left_seconds) and payload.encode() in self.waker.read(connection):
                return True
        return False

    def _send(self, payload: str) -> None:
        """Send a notification on the second connection. An error of that one must not close the first.

        Raises:
            SelfTestNotSent: if another service uses the second connection, or because of an error.
        """
        try:
            with self.second.use_if_free() as other:
                other.execute("SELECT pg_notify(%s, %s)", (SELF_TEST, payload))
        except (ConnectionInUse, psycopg.Error, OSError) as error:
            raise SelfTestNotSent(error) from error

    def _pause_after(self, error: BaseException) -> float:
        self._heard_on = None
        self.on_change(listens=False)
        return super()._pause_after(error)
