"""Run one statement on a Django connection or on an engine connection.

`lifecycle` and `stats` run all their statements here. `execute()` adds the time shift of the testing kit, so that every
statement of the process reads the same clock.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

Row = tuple[Any, ...]


class Connection(Protocol):
    """A Django connection or an engine connection."""

    alias: str

    def cursor(self) -> AbstractContextManager[Any]: ...


class _Clock:
    """Time travel of the testing kit: seconds added to the database's clock in every statement of this process."""

    shift_seconds = 0.0


clock = _Clock()


def execute(connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run one statement and return its rows, in the transaction that is open on `connection`, if there is one.

    Errors pass through: Django's on a Django connection, psycopg's on an engine connection.
    """
    with connection.cursor() as cursor:
        cursor.execute(statement, {**params, "time_shift_seconds": clock.shift_seconds})
        return cursor.fetchall() if cursor.description is not None else []
