"""End the fetcher's sleep when another thread wakes it, or when the server sends a notification.

The fetcher's own thread waits for both. A separate listening thread would have to wake the fetcher, which would cost
0.15 ms of the 1.5 ms from a commit to the start of its job.

Concurrency: as in `Waker`. Notifications arrive on a connection that other services use too. While the fetcher sleeps,
it waits for the connection's socket. If the socket is readable but another thread uses the connection, the bytes are
that thread's answer: the fetcher then waits for the wake-up that the other thread sends when it returns the connection.
A thread that uses the connection passes on the notifications that arrive with its answers. `_guard` protects the
payloads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final

import psycopg
from psycopg.pq.misc import PGnotify

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.notifications import CHANNEL, PAYLOADS
from django_pgqueue.ground.waker import Waker
from django_pgqueue.waiting import completion_listener
from django_pgqueue.worker.runtime.shared_connections import SharedConnections

AWAITED: Final = completion_listener.AWAITED.encode()
JOBS: Final = CHANNEL.encode()
ANY: Final = PAYLOADS | {""}
"""The payloads of all kinds of notifications that matter to a worker."""
FLOOD_NOTIFICATIONS: Final = 5_000
FLOOD_SECONDS: Final = 1.0
"""So many notifications in this time are a flood. To read one takes about 5 µs, and each wakes the fetcher."""


class NotificationWaker(Waker):
    """A `Waker` that also waits for notifications. It observes the connection on which they arrive."""

    def __init__(
        self, on_awaited: Callable[[str], None] = lambda payload: None, on_change: Callable[[], None] = lambda: None
    ) -> None:
        """Create the waker.

        Args:
            on_awaited: Called with the payload of each notification that an application waits for jobs. Such a
                notification does not end the sleep.
            on_change: Called when the connection was opened, closed, lost or flooded. Any thread may call it.
        """
        super().__init__()
        self._on_awaited = on_awaited
        self._on_change = on_change
        self.error: psycopg.Error | None = None
        """Why the connection was lost, until the listener takes it."""
        self.is_flooded = False
        """Whether more notifications arrived than are worth reading. The listener then stops listening for a while."""
        self._received = 0
        self._counted_at = float("-inf")
        """When the number of received notifications was last a multiple of `FLOOD_NOTIFICATIONS`."""
        self._connections: SharedConnections | None = None
        self._connection: EngineConnection | None = None
        self._is_requested = False
        """Whether `wake()` was called, and not only a thread returned the connection."""
        self._awaits_return = False
        """Whether another thread uses the connection. It wakes this one when it returns it."""
        self._payloads: set[str] = set()
        self._guard = threading.Lock()

    def wake(self) -> None:
        """End the present wait, or the next one. Safe from any thread, also after `close()`."""
        self._is_requested = True
        super().wake()

    def wait_for_notifications(self, timeout_seconds: float) -> AbstractSet[str]:
        """Wait for `wake()` or a notification. Return the payloads of the notifications since the last call."""
        until = time.monotonic() + timeout_seconds
        while True:
            is_woken = self._wait(max(0.0, until - time.monotonic()))
            with self._guard:
                payloads, self._payloads = self._payloads, set()
            if payloads or is_woken or time.monotonic() >= until:
                return payloads

    def _wait(self, timeout_seconds: float) -> bool:
        """Wait once. Return whether `wake()` was called. Any other event lets the caller decide whether to go on."""
        connection, descriptors = self._connection, []
        if connection is not None and not self._awaits_return:
            with suppress(psycopg.Error):  # it is closed: the listener opens another one
                descriptors.append(connection.fileno())
        if self.wait(timeout_seconds, *descriptors) - {self.fileno()}:
            self._read_if_free()
        if not self._is_requested:
            return False
        self._is_requested = False  # who has set it since this thread read it has its wake-up answered now
        return True

    def _read_if_free(self) -> None:
        # Set this before the attempt: if the other thread returned the connection between a failed attempt and the
        # assignment, it would wake nobody, and this thread would no longer wait for the socket.
        self._awaits_return = True
        try:
            if self._connections is not None:
                self._connections.use_first_if_free(self._read_here)
        except psycopg.Error:
            pass  # the listener reports it

    def _read_here(self, connection: EngineConnection) -> None:
        self._awaits_return = False
        try:
            connection.pgconn.consume_input()
            while notification := connection.pgconn.notifies():
                self._record(notification)  # without a wake-up, because this thread is awake
        except psycopg.Error as error:
            self.error = error
            raise

    # ---------------------------------------------------------------- the connection, from any thread

    def opened(self, connections: SharedConnections, connection: EngineConnection) -> None:
        """Wait for notifications on a new connection too. The listener has to find out whether any arrive."""
        connection.pgconn.notify_handler = self._receive
        self._connections, self._connection = connections, connection
        super().wake()  # it waits for the former connection's socket
        self._on_change()

    def expect_notifications(self, connection: EngineConnection) -> None:
        """Count a connection on which notifications arrive as a notification of every kind.

        Those that were sent before it listened have reached no one here. The calling thread uses the connection.
        """
        connection.on_wait = self._miss_notifications
        self._miss_notifications()

    def read(self, connection: EngineConnection) -> list[bytes]:
        """Read the notifications that have arrived; return their payloads. The calling thread uses the connection."""
        connection.pgconn.consume_input()
        return self._read_buffered(connection)

    def before_return(self, connection: EngineConnection) -> None:
        """Read the notifications that came with a statement's answer. The socket does not show them any more."""
        with suppress(psycopg.Error):  # it is closed
            self._read_buffered(connection)

    def after_return(self) -> None:
        """Let the fetcher wait for the connection's socket again."""
        if self._awaits_return:
            self._awaits_return = False
            super().wake()
        connection = self._connection
        if connection is not None and connection.closed:
            self._on_change()

    def _read_buffered(self, connection: EngineConnection) -> list[bytes]:
        received = []
        while notification := connection.pgconn.notifies():
            self._receive(notification)
            received.append(notification.extra)
        return received

    def _receive(self, notification: PGnotify) -> None:
        """Take a notification. psycopg calls this for those that arrive with an answer, so it must not raise."""
        if self._record(notification):
            super().wake()

    def _record(self, notification: PGnotify) -> bool:
        """Record a notification. Return whether it ends the sleep."""
        self._received += 1
        if self._received % FLOOD_NOTIFICATIONS == 0:
            self._look_for_flood()
        payload = notification.extra.decode("ascii", "replace")
        if notification.relname == AWAITED:
            self._on_awaited(payload)
        if notification.relname != JOBS:
            return False
        with self._guard:
            self._payloads.add(payload)
        return True

    def _look_for_flood(self) -> None:
        since, self._counted_at = self._counted_at, time.monotonic()
        if self._counted_at - since < FLOOD_SECONDS:
            self.is_flooded = True
            self._on_change()

    def _miss_notifications(self) -> None:
        """Assume that notifications were sent, because a statement keeps the server from delivering any."""
        with self._guard:
            self._payloads |= ANY
        super().wake()


class PollRequests:
    """The requests of other threads to one fetcher. Every method is safe from any thread.

    The worker process creates it before the services, so that the pool, the completer and the reactions can wake the
    fetcher without knowing it.
    """

    def __init__(self, waker: NotificationWaker) -> None:
        self.waker = waker
        self._is_urgent = False

    def wake(self) -> None:
        """End the fetcher's current sleep. Harmless at any time."""
        self.waker.wake()

    def poll_soon(self) -> None:
        """Make the fetcher poll at once, and more often for a while, because jobs have become ready."""
        self._is_urgent = True
        self.wake()

    def take_urgent(self) -> bool:
        """Return whether `poll_soon()` was called since the last call of this method."""
        is_urgent, self._is_urgent = self._is_urgent, False
        return is_urgent
