"""An engine connection that comes back: opened when first needed, given up when lost, opened again."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from django_pgqueue import db
from django_pgqueue.conf import get_settings

from . import hygiene
from .trouble import trouble


class Link:
    """One service's connection. Not for two threads at once."""

    def __init__(self, alias: str, role: str) -> None:
        self.alias = alias
        self.role = role
        self.statement_timeout_seconds = get_settings().LEASE / 2
        """No statement takes seconds in health; one that has no answer by then must not cost the leases."""
        self.connected_at = 0.0
        """When the present connection was opened, on the monotonic clock."""
        self._connection: db.EngineConnection | None = None

    @contextmanager
    def use(self) -> Iterator[db.EngineConnection]:
        """Give a live connection; an error of the database that comes out of its use closes it.

        Also one that is not lost: a new one has the role's present settings and rights, and no prepared statements of
        tables that were made anew. Raises `psycopg.OperationalError` if none can be opened.
        """
        connection = self._connection
        if connection is None or db.is_lost(connection):
            connection = self._connection = db.connect(self.alias, self.role, self.statement_timeout_seconds)
            self.connected_at = time.monotonic()
        try:
            yield connection
        except (psycopg.Error, OSError):
            if db.is_lost(connection):
                hygiene.distrust_all()  # the jobs' connections will have gone the same way
            self.close()
            raise
        trouble.succeeded()
        if connection.is_worn:
            self.close()

    def give_up(self) -> None:
        """Close the connection, which somebody who had it lent has found lost."""
        hygiene.distrust_all()  # as in `use()`
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def forget_in_child(self) -> None:
        """After a fork: drop the inherited connection without a word to the server, it is the parent's."""
        self._connection, inherited = None, self._connection
        _inherited.append(inherited)


_inherited: list[db.EngineConnection | None] = []
"""Kept from being collected: closing one here would end the parent's session."""
