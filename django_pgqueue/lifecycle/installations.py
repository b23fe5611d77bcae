"""Read and write who works on a database: its installations.

The clone guard of the worker reads them, and `manage.py pgqueue adopt` replaces them. They keep the workers of one
installation from running the jobs of another, whose dump was restored.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from psycopg import errors

from django_pgqueue import sql
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import execute
from django_pgqueue.ground.identity import Identity

UNREADABLE: Final = (errors.InsufficientPrivilege, errors.UndefinedFunction, errors.FeatureNotSupported)
"""Errors of a server that hides its identifier from this role."""


class Adopted(NamedTuple):
    """A recorded installation: who recorded it, and when, for people to read."""

    identity: Identity
    adopted_by: str
    adopted_at: str


def read_installations(connection: EngineConnection, environment: str) -> tuple[Identity, list[Adopted]]:
    """Return the identity of this installation, and all installations that are recorded in the database."""
    rows = execute(connection, sql.installations.INSTALLATIONS, {})
    identity = Identity(_system_identifier(connection), rows[0][0], environment)
    return identity, [Adopted(Identity(*row[1:4]), *row[4:]) for row in rows if row[1] is not None]


def record_installation(connection: EngineConnection, identity: Identity, adopted_by: str) -> None:
    """Record an installation unless one is recorded."""
    execute(connection, sql.installations.RECORD_INSTALLATION, {**identity._asdict(), "adopted_by": adopted_by})


def adopt(connection: EngineConnection, identity: Identity, adopted_by: str) -> None:
    """Record an installation, and remove all others."""
    execute(connection, sql.installations.ADOPT, {**identity._asdict(), "adopted_by": adopted_by})


def _system_identifier(connection: EngineConnection) -> str:
    try:
        return str(execute(connection, sql.installations.SYSTEM_IDENTIFIER, {})[0][0])
    except UNREADABLE:
        return ""
