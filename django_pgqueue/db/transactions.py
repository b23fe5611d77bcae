"""Inspect and open transactions on Django connections.

Enqueueing, waiting and atomic tasks use it, because their behaviour depends on the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import InterfaceError, OperationalError, connections, transaction
from psycopg.pq import TransactionStatus

from django_pgqueue.exceptions import QueueError

from .reconnects import explain_lost_connection

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")


def open_transaction_elsewhere(connection: BaseDatabaseWrapper) -> str | None:
    """Return an alias with an open transaction in this thread if `connection` itself has none; otherwise None."""
    if connection.in_atomic_block:
        return None
    for other in connections.all(initialized_only=True):
        if other.in_atomic_block:
            return str(other.alias)
    return None


def run_after_commits_elsewhere(alias: str, function: Callable[[], T]) -> T | None:
    """Call a function that writes to `alias`, and return its result; return None if it must wait for a commit.

    It is called at once if a transaction is open on `alias`, which its writes are then part of, or if no transaction is
    open at all. Otherwise it is called when the transactions that are open on other aliases have committed, and never
    if one of them rolls back.
    """
    elsewhere = open_transaction_elsewhere(connections[alias])
    if elsewhere is None:
        return function()
    transaction.on_commit(partial(run_after_commits_elsewhere, alias, function), using=elsewhere)
    return None


def is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a write on this Django connection takes effect only when the caller commits."""
    return connection.in_atomic_block or not connection.get_autocommit()


@contextmanager
def atomic_unless_open(connection: BaseDatabaseWrapper) -> Iterator[None]:
    """Open a transaction on a Django connection, unless one is open."""
    if connection.in_atomic_block:
        yield
        return
    try:
        with transaction.atomic(using=connection.alias):
            yield
    except (OperationalError, InterfaceError) as error:
        explain_lost_connection(connection, error)
        raise


def raise_if_aborted(connection: BaseDatabaseWrapper, responses: Iterable[tuple[Any, Any]]) -> None:
    """Raise `QueueError` if a query of a signal receiver failed, so that PostgreSQL aborted the caller's transaction.

    Django logs the exceptions of receivers and continues. Without this check, the caller would continue too, and its
    COMMIT would become a ROLLBACK without an error. `responses` is what `send_robust()` returned.
    """
    inner = connection.connection
    if inner is None or inner.info.transaction_status != TransactionStatus.INERROR:
        return
    raise QueueError(
        "A query of a signal receiver failed, and PostgreSQL has aborted your transaction, so nothing in it can be "
        "committed. Wrap the queries of the receiver in transaction.atomic(), or run them in a task."
    ) from next((response for _, response in responses if isinstance(response, Exception)), None)


def sees_new_commits(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the transaction open on a Django connection sees what others commit while it is open."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0]) in ("read committed", "read uncommitted")


@contextmanager
def read_committed(connection: BaseDatabaseWrapper) -> Iterator[bool]:
    """Open a transaction at READ COMMITTED, whatever the database's default is; yield whether it is the outermost one.

    At REPEATABLE READ, completing an atomic task would fail whenever a heartbeat has updated its execution.
    """
    outermost = not connection.in_atomic_block
    with transaction.atomic(using=connection.alias):
        if outermost:  # inside another transaction, as in a test, the level can no longer be changed
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield outermost
