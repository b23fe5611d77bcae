"""How an act is run: again after a deadlock and the like, which no act can be harmed by."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from django.db import transaction
from psycopg import errors

from django_pgqueue.db import TRANSIENT, Connection, EngineConnection, Row, execute

TRIES: Final = 5
NOT_FOR_A_LOCK: Final = tuple(error for error in TRANSIENT if error is not errors.LockNotAvailable)
"""For an act that had better come back later than wait for the same lock again."""


def persistently(
    connection: Connection,
    statement: str,
    params: Mapping[str, Any],
    again_for: tuple[type[Exception], ...] = TRANSIENT,
) -> list[Row]:
    """Run an act, again after a deadlock or the like: every act is fenced, so a repeated one finds what is left."""
    for _ in range(TRIES - 1):
        try:
            return execute(connection, statement, params)
        except again_for:
            if not isinstance(connection, EngineConnection):
                raise
    return execute(connection, statement, params)


def savepoint(connection: Connection) -> AbstractContextManager[Any]:
    """Return what an error of the database leaves a caller's open transaction usable after; elsewhere nothing."""
    is_open = getattr(connection, "in_atomic_block", False)  # an engine connection has no such thing
    return transaction.atomic(using=connection.alias) if is_open else nullcontext()
