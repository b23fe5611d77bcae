"""Replace a session that the server has ended while nobody used it, before a job sends a statement on it.

The server ends idle sessions by `idle_session_timeout`, a pooler by its own limit, an operator by
`pg_terminate_backend()`. A connection outlives its job, so without this check the next job would fail, which has done
nothing wrong. The check polls the socket, which takes 5 µs on a busy machine and sends nothing. It happens when Django
is about to use the connection, not when the job starts: a job may wait for a minute before its first statement.

`django_connections` decides when a session may be replaced. A session that ends between the check and the statement
still fails the job.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper

from django_pgqueue.waker import is_readable


def check_before_use(connection: BaseDatabaseWrapper, may_replace: Callable[[], bool]) -> None:
    """Make Django close this connection, and open another one, if its session has ended and `may_replace()` agrees.

    Django calls the method that is replaced here before it opens a cursor or begins a transaction, for its own checks.
    `may_replace()` is called at each of these points.
    """
    own = ref(connection)  # a connection that refers to itself would stay open after the end of its thread

    def close_if_ended() -> None:
        connection = own()
        if connection is None:
            return
        if may_replace() and has_ended(connection):
            connection.close()
        type(connection).close_if_health_check_failed(connection)

    connection.close_if_health_check_failed = close_if_ended  # type: ignore[method-assign]


def has_ended(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the server has ended the session of a connection that sends no statement now.

    Other data that waits on the socket, such as a changed setting of the server, is rare. It counts as the end too,
    because a new session costs little.
    """
    raw = connection.connection
    return isinstance(raw, psycopg.Connection) and (raw.closed or is_readable(raw.fileno()))
