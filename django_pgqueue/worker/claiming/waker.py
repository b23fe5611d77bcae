"""End the fetcher's sleep when another thread wakes it, or when the server sends a notification.

The fetcher's own thread waits for both. A separate listening thread would have to wake the fetcher, which would cost
0.15 ms of the 1.5 ms from a commit to the start of its job.

Concurrency: one thread waits. Any thread may wake it. The listener lends a connection that listens; `_connection_lock`
keeps it from taking the connection back while the fetcher reads from it.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.notifications import WORDS
from django_pgqueue.waiting import listener

AWAITED: Final = listener.AWAITED.encode()
MAX_WAIT_SECONDS: Final = 3600.0
"""`poll()` accepts at most 2**31 ms (about 24.8 days)."""


class Waker:
    """The sleep of one thread. Any other thread may end it, or lend a connection that listens."""

    def __init__(self, on_awaited: Callable[[str], None] = lambda payload: None) -> None:
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the borrowed connection has failed. `error` holds the reason."""
        self.on_awaited = on_awaited
        """Called with the payload of each notification that an application waits for jobs. Such a notification does
        not end the sleep."""
        self.error: psycopg.Error | None = None
        self.words: set[str] = set()
        """Payloads of the other notifications, until the waiting thread takes them."""
        self._sender, self._receiver = socket.socketpair()
        for end in (self._sender, self._receiver):
            end.settimeout(0.0)
        self._rung = self._is_new_connection = False
        self._connection: EngineConnection | None = None
        self._connection_lock = threading.Lock()

    def ring(self) -> None:
        """Wake the waiting thread: end its present wait, or its next one. Harmless at any time."""
        if not self._rung:
            self._rung = True
            with suppress(OSError):  # the buffer is full of bytes that were not read yet, or the socket is closed
                self._sender.send(b"!")

    def listen(self, connection: EngineConnection) -> None:
        """Wait for notifications on this connection too. Do not use it elsewhere until it is lost or taken back.

        This counts as a notification of every kind, because notifications that were sent before reached no one here.
        """
        with self._connection_lock:
            self._connection, self.error = connection, None
        self._is_new_connection = True
        self.ring()

    def take_back(self) -> None:
        """Stop using the connection."""
        with self._connection_lock:
            self._connection = None

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for `ring()` or a notification, in whole milliseconds. Return whether there was a notification."""
        until = time.monotonic() + timeout_seconds
        notified = self._wait(timeout_seconds)
        # Also if applications announce awaited jobs all the time: the sleep goes on, but not beyond its end.
        while notified is None and (left_seconds := until - time.monotonic()) > 0:
            notified = self._wait(left_seconds)
        return bool(notified)

    def _wait(self, timeout_seconds: float) -> bool | None:
        """Wait once. Return None if there were only notifications for `on_awaited`, so that the sleep goes on."""
        connection = self._connection
        poll = select.poll()
        poll.register(self._receiver, select.POLLIN)
        if connection is not None:
            with suppress(psycopg.Error):  # it was closed meanwhile: `_read_notifications` finds out
                poll.register(connection.fileno(), select.POLLIN)
        woken = {fd for fd, _ in poll.poll(1000 * min(timeout_seconds, MAX_WAIT_SECONDS))}
        rung = self._receiver.fileno() in woken
        if rung:
            self._receiver.recv(4096)
            woken.remove(self._receiver.fileno())
        self._rung = False  # after the drain: a thread that still sees True does not write, and this round answers it
        is_new_connection, self._is_new_connection = self._is_new_connection, False
        if is_new_connection:
            self.words |= WORDS
        notified = self._read_notifications() if woken else False
        return bool(notified or is_new_connection) if rung or is_new_connection else notified

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
                        self.on_awaited(payload)
                    else:
                        notified = True
                        self.words.add(payload)
            except psycopg.Error as error:
                self._connection, self.error, notified = None, error, bool(notified)
        if self.error is not None:
            self.on_lost()
        return notified

    def close(self) -> None:
        """Close the sockets. A later `ring()` does nothing."""
        self._sender.close()
        self._receiver.close()
