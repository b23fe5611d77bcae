"""Run a frequent statement of a job on Django's connection, prepared where that is safe.

Django's connections prepare no statements, so the server parses and plans each one anew. That took 0.19 of the 0.3 ms
in which a step of a job was stored. `lifecycle.steps` uses this module.

A transaction pooler can run each statement on another server connection, which lacks the prepared statements. The
worker's engine connections find out whether there is one, so without an engine connection to the same database in this
process nothing is prepared. Inside a transaction nothing is prepared either, because an application that has run
`DISCARD ALL` would get an error, which aborts its transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, cast
from weakref import WeakKeyDictionary

import psycopg
from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg import errors

from .engine_connection import EngineConnection, is_direct
from .statements import Connection, Row, execute

THRESHOLD: Final = 1
"""How often a connection executes a statement before it prepares it, as engine connections do."""
PLAN_SECONDS: Final = 5.0
"""How long a connection keeps its plans. A plan from a time when a table had few rows can read all of it."""

STALE: Final = (errors.InvalidSqlStatementName, errors.FeatureNotSupported)
"""The application has run `DISCARD ALL`, which psycopg does not see here, or a migration has changed a column."""

_planned_at: WeakKeyDictionary[psycopg.Connection[Any], float] = WeakKeyDictionary()


def execute_prepared(connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Do as `execute()`, with a prepared statement if `connection` is Django's, idle, and reaches the server itself."""
    if isinstance(connection, EngineConnection) or not is_direct(connection.alias):
        return execute(connection, statement, params)
    django_connection = cast("BaseDatabaseWrapper", connection)
    django_connection.ensure_connection()
    if django_connection.in_atomic_block or not django_connection.get_autocommit():
        return execute(connection, statement, params)
    try:
        with _preparing(django_connection.connection):
            return execute(connection, statement, params)
    except DatabaseError as error:
        if not isinstance(error.__cause__, STALE):
            raise
    with _preparing(django_connection.connection):
        django_connection.connection.execute("DEALLOCATE ALL")  # psycopg forgets its statements too
    return execute(connection, statement, params)


@contextmanager
def _preparing(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let a psycopg connection of Django prepare statements inside the block."""
    saved = connection.cursor_factory, connection.prepare_threshold
    # Django's cursor puts the parameters into the text of the statement.
    connection.cursor_factory, connection.prepare_threshold = psycopg.Cursor, THRESHOLD
    try:
        if time.monotonic() - _planned_at.setdefault(connection, time.monotonic()) > PLAN_SECONDS:
            connection.execute("DISCARD PLANS", prepare=False)
            _planned_at[connection] = time.monotonic()
        yield
    finally:
        connection.cursor_factory, connection.prepare_threshold = saved
