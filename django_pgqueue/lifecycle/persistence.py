"""How an act is run: again after a deadlock and the like, and in parts where one row makes the statement fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, NamedTuple, TypeVar

import psycopg
from django.db import Error as DjangoDatabaseError
from django.db import transaction
from psycopg import errors

from django_pgqueue.db import TRANSIENT, Connection, EngineConnection, Row, execute, is_lost, is_of_rows

T = TypeVar("T")
R = TypeVar("R")

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


class Refused(NamedTuple, Generic[T]):
    """A row that the database refuses to write, with the error that it gave for this row alone."""

    row: T
    error: Exception


class Divided(NamedTuple, Generic[T, R]):
    """What an act answered for the rows that it could write, and the rows that it could not."""

    answers: dict[int, R]
    refused: list[Refused[T]]


def divided(connection: Connection, rows: Sequence[T], act: Callable[[Sequence[T]], Mapping[int, R]]) -> Divided[T, R]:
    """Run an act on many rows; if a row makes it fail, run it on halves of them until only the bad rows are left out.

    Raises the errors that concern all rows: a lost connection, a deadlock, a server that is shutting down.
    """
    if not rows:
        return Divided({}, [])
    try:
        with savepoint(connection):
            return Divided(dict(act(rows)), [])
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
    parts: Divided[T, R] = Divided({}, [])
    with connection.unprepared() if isinstance(connection, EngineConnection) else nullcontext():
        _divide(connection, rows, act, parts)
    return parts


FAILURES: Final = (psycopg.Error, DjangoDatabaseError, UnicodeError)


def may_divide(connection: Connection, error: Exception) -> bool:
    """Return whether a statement that failed with this error may succeed for other rows on this connection."""
    return is_of_rows(error) and not (isinstance(connection, EngineConnection) and is_lost(connection))


def _divide(
    connection: Connection, rows: Sequence[T], act: Callable[[Sequence[T]], Mapping[int, R]], parts: Divided[T, R]
) -> None:
    try:
        with savepoint(connection):
            parts.answers.update(act(rows))
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
        if len(rows) == 1:
            parts.refused.append(Refused(rows[0], error))
            return
        middle = len(rows) // 2
        _divide(connection, rows[:middle], act, parts)
        _divide(connection, rows[middle:], act, parts)
