"""Run one statement on a Django connection or on an engine connection.

`lifecycle` and `stats` run all their statements here. `execute()` adds the time shift of the testing kit, so that every
statement of the process reads the same clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

import psycopg
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, ProgrammingError
from psycopg import errors
from psycopg.types.datetime import TimestamptzLoader

from .errors import is_stale_plan
from .reconnects import explain_lost_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.abc import Buffer


MISSING: Final = (errors.UndefinedTable, errors.UndefinedColumn)

Row = tuple[Any, ...]
T = TypeVar("T")


class Connection(Protocol):
    """A Django connection or an engine connection."""

    alias: str

    def cursor(self) -> AbstractContextManager[Any]: ...


class _PreparedExecution(Protocol):
    """The methods of an engine connection that a Django connection does not have."""

    def run_statement(self, statement: str, params: Mapping[str, Any]) -> list[Row]: ...

    def stop_preparing(self) -> bool: ...


class _AwareLoader(TimestamptzLoader):
    """Read a timestamp as an aware datetime in UTC. With `USE_TZ = False`, Django's loader removes the time zone."""

    def load(self, data: Buffer) -> datetime:
        """Return the timestamp in UTC: Python subtracts two times of one named zone by their clock faces."""
        return super().load(data).astimezone(UTC)


class _Clock:
    """Time travel of the testing kit: seconds added to the database's clock in every statement of this process."""

    _shift_seconds = 0.0
    shift = "0 s"
    """The same, as each statement takes it. A timedelta of a day would follow the session's daylight saving time."""

    @property
    def shift_seconds(self) -> float:
        """The seconds that are added."""
        return self._shift_seconds

    @shift_seconds.setter
    def shift_seconds(self, seconds: float) -> None:
        self._shift_seconds = seconds
        self.shift = f"{seconds:.6f} s" if seconds else "0 s"


clock = _Clock()


def execute(connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
    """Run one statement and return its rows, in the transaction that is open on `connection`, if there is one.

    Errors pass through: Django's on a Django connection, psycopg's on an engine connection. If a table of this package
    is missing, Django's error says to run `migrate`. If only the prepared form of the statement is outdated, the
    statement is repeated without it. In a transaction that raises the error: see `repeat_if_stale()`.
    """
    params = {**params, "time_shift": clock.shift}
    if not hasattr(connection, "run_statement"):
        return _run_on_django(connection, statement, params)
    engine = cast("_PreparedExecution", connection)
    try:
        return engine.run_statement(statement, params)
    except psycopg.Error as error:
        if not is_stale_plan(error) or not engine.stop_preparing():
            raise
    return engine.run_statement(statement, params)


def repeat_if_stale(function: Callable[[], T]) -> T:
    """Call a function that opens a transaction on an engine connection. Repeat it if a prepared statement was outdated.

    The second call prepares nothing, because `execute()` has switched that off.
    """
    try:
        return function()
    except psycopg.Error as error:
        if not is_stale_plan(error):
            raise
    return function()


def _run_on_django(connection: Connection, statement: str, params: Mapping[str, Any]) -> list[Row]:
    try:
        with connection.cursor() as cursor:
            if not settings.USE_TZ:
                cursor.adapters.register_loader("timestamptz", _AwareLoader)
            cursor.execute(statement, params)
            return cursor.fetchall() if cursor.description is not None else []
    except ProgrammingError as error:
        if isinstance(error.__cause__, MISSING) and "pgqueue_" in str(error):
            raise _not_migrated(connection.alias, error) from error
        raise
    except (OperationalError, InterfaceError) as error:
        explain_lost_connection(connection, error)
        raise


def _not_migrated(alias: str, error: ProgrammingError) -> ProgrammingError:
    option = "" if alias == DEFAULT_DB_ALIAS else f" --database={alias}"
    reason = str(error).partition("\n")[0]
    return ProgrammingError(
        f"{reason}: the database {alias!r} lacks migrations of django_pgqueue. Run `manage.py migrate{option}`."
    )


_joined: Final = ",".join


def numbers(values: Iterable[float]) -> str:
    """Return an array literal of numbers. The statement casts it to the type of its parameter.

    psycopg's own conversion also runs in Python and takes five times as long.
    """
    return "{" + _joined(map(repr, values)) + "}"


def texts(values: Iterable[str]) -> str:
    """Return an array literal of any texts. The statement casts it to the type of its parameter."""
    return "{" + _joined(map(_quoted, values)) + "}"


def exact(instant: datetime | None) -> str:
    """Return a timestamp as text with its microseconds, for an exact comparison; an empty string for None."""
    return "" if instant is None else instant.isoformat()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def sparse(values: Sequence[T | None]) -> list[T | None]:
    """Return the values as a list, or an empty list if all of them are None.

    `unnest()` pads the shorter of several arrays with NULL, so an empty array reads as NULL for every row. A session
    with `array_nulls=off` would read a NULL inside an array as the text "NULL". Django connections use their role's
    settings, and this function keeps NULL out of every array that they send with a single value.
    """
    return [] if values.count(None) == len(values) else list(values)
