"""Run the statement of a transition: retry transient errors, in a transaction that fits the connection.

The other modules of `lifecycle` call it, as do workers. `refused_rows` divides the rows of a statement that fails.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from django.db import transaction
from psycopg import errors
from psycopg.pq import TransactionStatus

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import TRANSIENT
from django_pgqueue.db.statements import Connection, Row, execute, repeat_if_stale
from django_pgqueue.db.transactions import is_in_transaction, read_committed, sees_new_commits

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger("django_pgqueue.lifecycle")

T = TypeVar("T")
R = TypeVar("R")

TRIES: Final = 5
IDLE_WAIT: Final = "5s"
"""How long a transaction of the engine that has locked rows may wait for its next statement."""
TRANSIENT_EXCEPT_LOCKS: Final = tuple(error for error in TRANSIENT if error is not errors.LockNotAvailable)
"""Errors to retry for a transition that should be repeated later instead of waiting again for the same lock."""


def execute_with_retry(
    connection: Connection,
    statement: str,
    params: Mapping[str, Any],
    retry_on: tuple[type[Exception], ...] = TRANSIENT,
) -> list[Row]:
    """Run the statement of a transition, up to `TRIES` times on an engine connection if it fails with `retry_on`.

    A retry is safe because every transition is fenced: it finds only the rows that still need it. On a Django
    connection, and in a transaction, the error is raised, because only the caller can repeat its transaction.
    """
    for _ in range(TRIES - 1):
        try:
            return execute(connection, statement, params)
        except retry_on:
            if not _may_repeat(connection):
                raise
    return execute(connection, statement, params)


def pages(connection: Connection, statement: str, after: Mapping[str, Any], **params: Any) -> Iterator[list[Row]]:
    """Yield the rows of a statement, `limit` at a time. Each page begins behind the last row of the one before.

    The first columns of a row are its position: the values of `after` for the next page.
    """
    while rows := execute(connection, statement, {**params, **after}):
        yield rows
        if len(rows) < params["limit"]:
            return
        after = dict(zip(after, rows[-1], strict=False))


def transaction_with_retry(
    connection: Connection, run: Callable[[], T], retry_on: tuple[type[Exception], ...] = TRANSIENT
) -> T:
    """Run the statements of a transition in a transaction, or in a savepoint if the caller has a transaction open.

    The retries are those of `execute_with_retry()`. An error undoes these statements only.
    """

    def run_inside() -> T:
        with inner_transaction(connection):
            return run()

    for _ in range(TRIES - 1):
        try:
            return repeat_if_stale(run_inside)
        except retry_on:
            if not _may_repeat(connection):
                raise
    return repeat_if_stale(run_inside)


def _may_repeat(connection: Connection) -> bool:
    """Return whether a transition can be repeated here after it has failed: no caller has a transaction open."""
    return isinstance(connection, EngineConnection) and not _is_in_transaction(connection)


def savepoint(connection: Connection) -> AbstractContextManager[Any]:
    """Return a savepoint if the caller has a transaction open, so that it stays usable after a database error.

    Otherwise return a context manager that does nothing.
    """
    if isinstance(connection, EngineConnection):
        return connection.transaction() if _is_in_transaction(connection) else nullcontext()
    is_open = getattr(connection, "in_atomic_block", False)  # the testing kit's own connections may not have it
    return inner_transaction(connection) if is_open else nullcontext()


def inner_transaction(connection: Connection) -> AbstractContextManager[Any]:
    """Return a transaction, or a savepoint if the caller has one open. An error in the block undoes the block only."""
    if isinstance(connection, EngineConnection):
        return connection.transaction()
    return transaction.atomic(using=connection.alias)


@contextmanager
def own_transaction(connection: Connection) -> Iterator[bool]:
    """Open a transaction unless the caller has one. Yield whether its statements see what others commit."""
    if isinstance(connection, EngineConnection):
        with connection.transaction():
            yield True
        return
    django_connection = cast("BaseDatabaseWrapper", connection)
    is_open = is_in_transaction(django_connection)
    with nullcontext() if is_open else read_committed(django_connection):
        yield sees_new_commits(django_connection) if is_open else True


def idle_wait(connection: Connection) -> str | None:
    """Return how long a transaction of the engine may wait for its next statement. None: the session's own limit.

    A process that is frozen between two statements would keep its rows locked, and no other worker could change them.
    """
    return IDLE_WAIT if isinstance(connection, EngineConnection) else None


def transaction_of(connection: Connection) -> AbstractContextManager[Any]:
    """Return a context manager that opens a transaction unless the caller has one."""
    if isinstance(connection, EngineConnection):
        return nullcontext() if _is_in_transaction(connection) else connection.transaction()
    django_connection = cast("BaseDatabaseWrapper", connection)
    return nullcontext() if is_in_transaction(django_connection) else read_committed(django_connection)


def _is_in_transaction(connection: EngineConnection) -> bool:
    """Return whether the caller has opened a transaction, as a batch of a bulk act does."""
    return connection.info.transaction_status != TransactionStatus.IDLE


class LockWait:
    """Spaces the tries of an operator's transition to get rows that other sessions have locked."""

    def __init__(self, seconds: float) -> None:
        self._deadline, self._interval = time.monotonic() + seconds, 0.005

    def sleep(self) -> bool:
        """Sleep before the next try, and return True; return False at once if the time for tries is over."""
        if time.monotonic() > self._deadline:
            return False
        time.sleep(self._interval)
        self._interval = min(2 * self._interval, 0.25)
        return True
