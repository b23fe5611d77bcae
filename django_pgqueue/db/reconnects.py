"""Decide when to try again after a lost connection: at once, then after milliseconds, and more and more rarely.

The worker, and the waits of applications, call this. It protects the server: while it is down or starts, each process
tries to connect a bounded number of times, and the tries of many processes are spread.
"""

from __future__ import annotations

import random
import time
from typing import Any, Final

import psycopg

from django_pgqueue.exceptions import StatementTimeout

FIRST_PAUSE_SECONDS: Final = 0.025
"""The pause before the second retry. The first retry comes at once."""
GROWTH: Final = 2.0
LIMIT_SECONDS: Final = 5.0
"""The longest pause, without the jitter of 30 %."""
LOSSES: Final = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
"""SQLSTATEs, besides class 08, with which the server ends a session or refuses one: by an administrator, a crash, a
start or a shutdown, or because it was idle."""


class NotConnected(psycopg.OperationalError):
    """No connection could be opened, or it is too early for another try."""

    def __init__(self, message: str, retry_at: float) -> None:
        super().__init__(message)
        self.retry_at = retry_at
        """When the next try is allowed, by the monotonic clock."""


def is_lost_connection(error: BaseException) -> bool:
    """Return whether an error says that a connection was lost or could not be opened.

    A server that does not answer in time is another case: a retry at once would only add to its load.
    """
    if isinstance(error, StatementTimeout):
        return False
    if isinstance(error, psycopg.Error) and error.sqlstate is not None:
        return error.sqlstate[:2] == "08" or error.sqlstate in LOSSES
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | ConnectionError)


def pause_seconds(losses: int, limit_seconds: float = LIMIT_SECONDS) -> float:
    """Return how long to wait after a loss that follows this many others without a success."""
    if not losses:
        return 0.0
    grown = FIRST_PAUSE_SECONDS * GROWTH ** min(losses - 1, 20)
    return min(grown, limit_seconds) * random.uniform(0.7, 1.3)  # noqa: S311 -- spreads load, hides nothing


def explain_lost_connection(connection: Any, error: BaseException) -> None:
    """Add a note to the error of a Django connection that is lost and stays in use, as in a script.

    Django closes lost connections only between two requests, and at the end of a transaction.
    """
    inner = connection.connection
    has_note = any("is lost" in note for note in getattr(error, "__notes__", ()))
    if inner is None or not inner.closed or connection.in_atomic_block or has_note:
        return
    error.add_note(
        f"The connection {connection.alias!r} is lost, and Django keeps it until the end of a request. In a script or "
        f"another long-running process, call django.db.connections[{connection.alias!r}].close(), or "
        "close_old_connections(), and try again."
    )


class ReconnectGate:
    """Admits the tries of one process to open one connection. Several threads may want it, but one uses it at a time.

    A thread that comes too early gets the last error at once. Without the gate, each service of a worker would try to
    connect by itself.
    """

    def __init__(self) -> None:
        self.limit_seconds = LIMIT_SECONDS
        self._failures = 0
        self._opens_at = 0.0
        self._message = ""

    def check(self) -> None:
        """Raise `NotConnected` if it is too early for another try."""
        if time.monotonic() < self._opens_at:
            raise NotConnected(self._message, self._opens_at)

    def failed(self, error: BaseException) -> BaseException:
        """Record that a try has failed. Return the error to raise."""
        if not is_lost_connection(error):
            return error
        self._opens_at = time.monotonic() + pause_seconds(self._failures, self.limit_seconds)
        self._failures += 1
        self._message = str(error)
        return NotConnected(self._message, self._opens_at)

    def opened(self) -> None:
        """Record that a try has succeeded."""
        self._failures, self._opens_at = 0, 0.0
