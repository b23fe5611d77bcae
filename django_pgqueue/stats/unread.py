"""Read each figure of a page alone, so that one row which cannot be read hides one figure only.

`overview()`, the gauges and the pages of the console use it. The invariant: an error that every figure would meet, such
as an outage, a missing table or a timeout, passes through.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

import psycopg
from django.db import Error, transaction

from django_pgqueue.db.errors import message_without_detail

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("django_pgqueue.stats")

T = TypeVar("T")

OF_VALUES: Final = ("22", "23")
"""Classes of SQLSTATE that a value in a row causes: it is out of range, or it violates a constraint."""
OF_PYTHON: Final = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
"""Python raises these for a value that no code of this package writes."""


def unreadable(error: Exception) -> str | None:
    """Return why a figure cannot be read, if a value in a row can be the cause. Otherwise return None."""
    if not isinstance(error, Error):
        return f"{type(error).__name__}: {error}" if isinstance(error, OF_PYTHON) else None
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error):
        return None
    is_of_value = isinstance(cause, psycopg.DataError) if cause.sqlstate is None else cause.sqlstate[:2] in OF_VALUES
    return message_without_detail(cause).partition("\n")[0] if is_of_value else None


class Figures:
    """Reads figures one by one. `unread` has those that could not be read, with the reason of each.

    Args:
        connection: The connection that reads them.
        is_strict: Whether the first error ends the reading. An answer without a place for `unread` is strict.
    """

    def __init__(self, connection: BaseDatabaseWrapper, *, is_strict: bool = True) -> None:
        self._connection = connection
        self._is_strict = is_strict
        self.unread: dict[str, str] = {}

    def read(self, name: str, read: Callable[[], T], otherwise: T) -> T:
        """Return what `read` returns. If a value in a row makes it fail, note that, and return `otherwise`."""
        if self._is_strict:
            return read()
        try:
            with protected(self._connection):
                return read()
        except Exception as error:
            reason = unreadable(error)
            if reason is None:
                raise
            alias = self._connection.alias
            logger.warning("the figure %r of the database %r could not be read: %s", name, alias, reason)
            self.unread[name] = reason
            return otherwise


def read_each(connection: BaseDatabaseWrapper, read: Callable[[Figures], T]) -> T:
    """Read all figures together. If a value in a row makes one fail, read them again, each alone.

    So no figure needs a savepoint of its own while all of them can be read.
    """
    try:
        with protected(connection):
            return read(Figures(connection))
    except Exception as error:
        if unreadable(error) is None:
            raise
    return read(Figures(connection, is_strict=False))


def protected(connection: BaseDatabaseWrapper) -> AbstractContextManager[None]:
    """Return a savepoint if a transaction is open, which a failed statement would end otherwise."""
    return transaction.atomic(using=connection.alias) if connection.in_atomic_block else nullcontext()
