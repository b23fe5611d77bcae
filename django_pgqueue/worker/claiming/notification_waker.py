"""End the fetcher's sleep when another thread wakes it, or when the server sends a notification.

The fetcher's own thread waits for both. A separate listening thread would have to wake the fetcher, which would cost
0.15 ms of the 1.5 ms from a commit to the start of its job.

Concurrency: as in `Waker`. The listener lends a connection that listens; `_connection_lock` keeps it from taking the
connection back while the fetcher reads from it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.notifications import PAYLOADS
from django_pgqueue.waiting import listener
from django_pgqueue.waker import Waker

AWAITED: Final = listener.AWAITED.encode()


class NotificationWaker(Waker):
    """A `Waker` to which a connection that listens can be lent."""

    def __init__(self, on_awaited: Callable[[str], None] = lambda payload: None) -> None:
        """Create the waker.

        `on_awaited` is called with the payload of each notification that an application waits for jobs. Such a
        notification does not end the sleep.
        """
        super().__init__()
        self._on_awaited = on_awaited
        self._on_lost: Callable[[], None] = lambda: None
        self.error: psycopg.Error | None = None
        self.payloads: set[str] = set()
        """Payloads of the other notifications, until the waiting thread takes them."""
        self._is_new_connection = False
        self._connection: EngineConnection | None = None
        self._connection_lock = threading.Lock()

    def listen(self, connection: EngineConnection, on_lost: Callable[[], None]) -> None:
        """Wait for notifications on this connection too. Do not use it elsewhere until it is lost or taken back.

        `on_lost` is called when the connection has failed. `error` holds the reason then.

        This counts as a notification of every kind, because notifications that were sent before reached no one here.
        """
        with self._connection_lock:
            self._connection, self.error, self._on_lost = connection, None, on_lost
        self._is_new_connection = True
        self.wake()

    def stop_listening(self) -> None:
        """Stop using the connection."""
        with self._connection_lock:
            self._connection = None

    def wait_for_notification(self, timeout_seconds: float) -> bool:
        """Wait for `wake()` or a notification. Return whether there was a notification."""
        until = time.monotonic() + timeout_seconds
        notified = self._wait(timeout_seconds)
        # Also if applications announce awaited jobs all the time: the sleep goes on, but not beyond its end.
        while notified is None and (left_seconds := until - time.monotonic()) > 0:
            notified = self._wait(left_seconds)
        return bool(notified)

    def _wait(self, timeout_seconds: float) -> bool | None:
        """Wait once. Return None if there were only notifications for `on_awaited`, so that the sleep goes on."""
        connection, descriptors = self._connection, []
        if connection is not None:
            with suppress(psycopg.Error):  # it was closed meanwhile: `_read_notifications` finds out
                descriptors.append(connection.fileno())
        ready = self.wait(timeout_seconds, *descriptors)
        is_woken = self.fileno() in ready
        is_new_connection, self._is_new_connection = self._is_new_connection, False
        if is_new_connection:
            self.payloads |= PAYLOADS
        notified = self._read_notifications() if ready - {self.fileno()} else False
        return bool(notified or is_new_connection) if is_woken or is_new_connection else notified

    def _read_notifications(self) -> bool | None:
        notified: bool | None = False
        with self._connection_lock:
            if self._connection is None:
                return False
            try:
                self._connection.pgconn.consume_input()
                while notification := self._connection.pgconn.notifies():
                    payload = notification.extra.decode("ascii", "replace")
                    if notification.relname == AWAITED:
                        notified = notified or None
                        self._on_awaited(payload)
                    else:
                        notified = True
                        self.payloads.add(payload)
            except psycopg.Error as error:
                self._connection, self.error, notified = None, error, bool(notified)
        if self.error is not None:
            self._on_lost()
        return notified
