"""Provide a service with a database connection that is opened on first use and reopened after it was lost.

The supervisor, its helper processes and `manage.py pgqueue run` have a `Link` of their own. The services of a worker
process share two (see `shared_connections`), because two threads cannot use a connection at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection, connect, is_lost
from django_pgqueue.db.reconnects import ReconnectGate
from django_pgqueue.settings.conf import get_settings

from . import django_connections
from .clone_guard import clone_guard
from .outages import outage_log
from .shared_memory import health_memory


class ConnectionSource(Protocol):
    """Where a service gets its connection: a `Link` of its own, or the connections that the services share."""

    @property
    def alias(self) -> str: ...

    @property
    def connected_at(self) -> float:
        """When the first connection after the last loss was opened, by the monotonic clock; 0 if none was."""

    def use(self) -> AbstractContextManager[EngineConnection]:
        """Yield a live connection; see `Link.use()`."""


class Link:
    """One connection. It must not be used by two threads at the same time.

    Args:
        alias: Alias of the database.
        role: What the connection is for; its `application_name` contains it.
        on_open: Called with each new connection, by the thread that opens it.
    """

    def __init__(
        self, alias: str, role: str, on_open: Callable[[EngineConnection], None] = lambda connection: None
    ) -> None:
        self.alias = alias
        self.role = role
        self._on_open = on_open
        self.statement_timeout_seconds = get_settings().LEASE / 2
        """No statement takes seconds on a healthy server. Others must time out before the leases expire."""
        self.connected_at = 0.0
        """When the current connection was opened, by the monotonic clock; 0 if none was ever opened."""
        self.restored_at = 0.0
        """When a connection was last opened for the first time or after a loss. A connection that was closed on
        purpose, or after an error of one statement, does not count as lost."""
        self._is_lost = True
        self.gate = ReconnectGate()
        self.open_connection: EngineConnection | None = None
        """The connection, if there is one. It may have been lost since its last use."""

    @contextmanager
    def use(self) -> Iterator[EngineConnection]:
        """Yield a live connection. A database error inside the block closes it, even if the connection is not lost.

        A new connection has the role's current settings and privileges, and no prepared statements that refer to
        tables that were recreated.

        Raises:
            psycopg.OperationalError: if no connection can be opened.
            ForeignDatabase: if the database belongs to another installation (see `clone_guard`).
        """
        connection = self.live()
        try:
            yield connection
        except (psycopg.Error, OSError):
            self.after_error()
            raise
        self.after_use()

    def live(self) -> EngineConnection:
        """Return a live connection. The caller then calls `after_use()` or `after_error()`; see `use()`."""
        connection = self.open_connection
        return self._open() if connection is None or is_lost(connection) else connection

    def after_use(self) -> None:
        """End a use without an error."""
        if health_memory.outage_since:
            outage_log.succeeded()
        if self.open_connection is not None and self.open_connection.is_worn:
            self.close()

    def after_error(self) -> None:
        """Close the connection after a database error, even if it is not lost."""
        if self.open_connection is None or is_lost(self.open_connection):
            self.give_up()
        else:
            self.close()

    def _open(self) -> EngineConnection:
        if self.open_connection is not None:
            self._is_lost = True
        self.gate.check()
        try:
            connection = self._connect()
        except BaseException as error:
            self._is_lost = True
            if (reason := self.gate.failed(error)) is error:
                raise
            raise reason from error
        self.gate.opened()
        self.open_connection, self.connected_at = connection, time.monotonic()
        if self._is_lost:
            self._is_lost, self.restored_at = False, self.connected_at
        self._on_open(connection)
        return connection

    def _connect(self) -> EngineConnection:
        connection = connect(self.alias, self.role, self.statement_timeout_seconds)
        try:
            clone_guard.check(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def give_up(self) -> None:
        """Close the connection because it is lost."""
        self._is_lost = True
        django_connections.distrust_all()  # the connections of the jobs are probably lost too
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self.open_connection = self.open_connection, None
        if connection is not None:
            connection.close()

    def forget_in_child(self) -> None:
        """Drop the inherited connection after a fork without closing it, because the session belongs to the parent."""
        self.open_connection, inherited = None, self.open_connection
        _inherited.append(inherited)


_inherited: list[EngineConnection | None] = []
"""References that prevent garbage collection, because it would close the connection and end the parent's session."""
