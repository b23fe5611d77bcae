"""Cancelling the query that another thread waits for: no exception reaches a thread that waits for the server."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

logger = logging.getLogger("django_pgqueue.worker")

CANCEL_SECONDS: Final = 2.0
"""A cancellation is a connection of its own to the server, which may be slow just now."""

_connections: dict[int, WeakSet[BaseDatabaseWrapper]] = {}


def watch() -> None:
    """From now on, note which thread opens which of Django's connections; once per process."""
    connection_created.connect(_note, dispatch_uid="pgqueue-cancelling")


def cancel_queries(thread_id: int) -> None:
    """Cancel what a thread's database connections are busy with, if anything; tells of no failure but in the log.

    Does not wait: with the server out of reach, the deadlines of all other jobs would wait too. A cancellation that
    comes late finds the connection closed, as it is after every job that was stopped.
    """
    for wrapper in list(_connections.get(thread_id, ())):
        raw = wrapper.connection
        if isinstance(raw, psycopg.Connection) and _is_busy(raw):
            threading.Thread(target=_cancel, args=(raw,), name="pgqueue-cancelling", daemon=True).start()


def _cancel(raw: psycopg.Connection[Any]) -> None:
    try:
        raw.cancel_safe(timeout=CANCEL_SECONDS)
    except (psycopg.Error, OSError) as error:
        logger.warning("a query could not be cancelled: %s", error)


def forget(thread_id: int) -> None:
    """A thread ends: forget its connections."""
    _connections.pop(thread_id, None)


def _is_busy(raw: psycopg.Connection[Any]) -> bool:
    with suppress(psycopg.Error):  # closed by its own thread a moment ago
        return raw.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
    return False


def _note(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    _connections.setdefault(threading.get_ident(), WeakSet()).add(connection)
