"""Provide a service with a database connection that is opened on first use and reopened after it was lost.

Every service of the worker and the supervisor has its own `Link`, because two threads cannot share a connection.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from django_pgqueue.conf import get_settings
from django_pgqueue.db.engine_connection import EngineConnection, connect, is_lost

from . import django_connections
from .clone_guard import clone_guard
from .outages import outage_log


class Link:
    """The connection of one service. It must not be used by two threads at the same time."""

    def __init__(self, alias: str, role: str) -> None:
        self.alias = alias
        self.role = role
        self.statement_timeout_seconds = get_settings().LEASE / 2
        """No statement takes seconds on a healthy server. Others must time out before the leases expire."""
        self.connected_at = 0.0
        """When the current connection was opened, by the monotonic clock; 0 if none was ever opened."""
        self._connection: EngineConnection | None = None

    @contextmanager
    def use(self) -> Iterator[EngineConnection]:
        """Yield a live connection. A database error inside the block closes it, even if the connection is not lost.

        A new connection has the role's current settings and privileges, and no prepared statements that refer to
        tables that were recreated.

        Raises:
            psycopg.OperationalError: if no connection can be opened.
            ForeignDatabase: if the database belongs to another installation (see `clone_guard`).
        """
        connection = self._connection
        if connection is None or is_lost(connection):
            connection = self._connection = self._connect()
            self.connected_at = time.monotonic()
        try:
            yield connection
        except (psycopg.Error, OSError):
            if is_lost(connection):
                django_connections.distrust_all()  # the connections of the jobs are probably lost too
            self.close()
            raise
        outage_log.succeeded()
        if connection.is_worn:
            self.close()

    def _connect(self) -> EngineConnection:
        connection = connect(self.alias, self.role, self.statement_timeout_seconds)
        try:
            clone_guard.check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def give_up(self) -> None:
        """Close the connection after a caller outside `use()` has found that it is lost."""
        django_connections.distrust_all()  # as in `use()`
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forget_in_child(self) -> None:
        """Drop the inherited connection after a fork without closing it, because the session belongs to the parent."""
        self._connection, inherited = None, self._connection
        _inherited.append(inherited)


_inherited: list[EngineConnection | None] = []
"""References that prevent garbage collection, because it would close the connection and end the parent's session."""
