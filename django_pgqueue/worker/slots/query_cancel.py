"""Cancel the query that another thread waits for, because no exception reaches a thread that waits for the server.

`ThreadSlot` calls this when it stops a job.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Any, Final
from weakref import WeakSet

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_pgqueue.ground.log_events import event

logger = logging.getLogger("django_pgqueue.worker")

CANCEL_SECONDS: Final = 2.0
"""Limit for one cancellation. It opens its own connection to the server, which may be slow at that moment."""

_connections: dict[int, WeakSet[BaseDatabaseWrapper]] = {}


def watch() -> None:
    """Record from now on which thread opens which of Django's connections. Call it once per process."""
    connection_created.connect(_note, dispatch_uid="pgqueue-query-cancel")


def cancel_queries(thread_id: int) -> None:
    """Cancel the queries that a thread's database connections are running. A failure is only logged.

    This does not wait. Otherwise an unreachable server would delay the deadlines of all other jobs. A cancellation that
    arrives late finds the connection closed, because connections are closed after every job that was stopped.
    """
    for wrapper in list(_connections.get(thread_id, ())):
        raw = wrapper.connection
        if isinstance(raw, psycopg.Connection) and _is_busy(raw):
            threading.Thread(target=_cancel, args=(raw,), name="pgqueue-query-cancel", daemon=True).start()


def _cancel(raw: psycopg.Connection[Any]) -> None:
    try:
        raw.cancel_safe(timeout=CANCEL_SECONDS)
    except (psycopg.Error, OSError) as error:
        logger.warning("a query of a stopped job could not be cancelled: %s", error, extra=event("query_not_cancelled"))


def forget(thread_id: int) -> None:
    """Forget the connections of a thread that ends."""
    _connections.pop(thread_id, None)


def _is_busy(raw: psycopg.Connection[Any]) -> bool:
    with suppress(psycopg.Error):  # its own thread may have closed it a moment ago
        return raw.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE
    return False


def _note(sender: Any, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    _connections.setdefault(threading.get_ident(), WeakSet()).add(connection)
