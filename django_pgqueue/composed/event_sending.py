"""Send events to the jobs that wait for them: `send_event()` and `asend_event()`.

The event is one row, in the caller's transaction. The jobs that wait for it are woken after the commit: by the sender,
which is the quickest way, or if its database role may not change jobs, by the workers, which it notifies. If that
fails, a sweep of the workers wakes them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error as DatabaseError
from django.db import connections, router, transaction
from psycopg.errors import InsufficientPrivilege

from django_pgqueue.db.notifications import notify_event_sent, wake_workers_after_commit
from django_pgqueue.db.transactions import is_in_transaction
from django_pgqueue.declared.steps import EventKey, checked_name, key_text
from django_pgqueue.encoding.serialization import encode_result
from django_pgqueue.enqueue.mistaken_calls import called_in_coroutine
from django_pgqueue.lifecycle import events, steps

logger = logging.getLogger("django_pgqueue")

PAGES: Final = 10
"""Statements with which a sender wakes jobs, each up to 1,000 jobs. The sweep wakes the others."""
_left_to_workers: set[str] = set()
"""The aliases whose role may not wake jobs. It was refused once, and is not tried again."""


def send_event(name: str, key: EventKey = None, payload: Any = None, *, using: str | None = None) -> int | None:
    """Send an event to the jobs that wait for it, now or later, with `TaskContext.wait_for_event()`.

    The event is a row in the transaction that is open on the connection, if any, so it is sent exactly if that
    transaction commits. Each job that waits for the name and the key receives it, also a job that begins to wait later.
    Events are kept for `PGQUEUE["EVENT_RETENTION"]`.

    Args:
        name: Name of the event.
        key: Key of the event: a string, a whole number or a UUID. Numbers and UUIDs become text.
        payload: Any value that JSON can represent. `wait_for_event()` returns it.
        using: Alias of the database of the jobs. By default the one that the routers name for writes of jobs.

    Returns:
        How many waiting jobs it has woken. 0: none waits yet, and the event is kept for those to come. None: it is not
        known, because a transaction is open, after whose commit they are woken, or because workers wake them.

    Raises:
        TypeError: The name or the key has the wrong type, or JSON cannot represent the payload.
        ValueError: The name, the key or the payload cannot be stored. A payload can be as large as a result.

    Example:
        >>> with transaction.atomic():
        ...     order.approve()
        ...     send_event("approved", order.pk, {"by": "anna"})
    """
    from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

    event_name, event_key = checked_name(name, "event"), key_text(key)
    connection = connections[using or router.db_for_write(Job)]
    stored = None if payload is None else encode_result(payload, "the payload of the event")
    try:
        event_id = events.send_event(connection, event_name, event_key, stored)
    except SynchronousOnlyOperation as error:
        raise called_in_coroutine(f"the event {event_name!r}", "asend_event(…)", "sent") from error
    wake = partial(_wake, connection.alias, event_id, event_name, event_key)
    if connection.in_atomic_block:
        transaction.on_commit(wake, using=connection.alias, robust=True)
    elif not is_in_transaction(connection):
        return wake()
    return None


async def asend_event(name: str, key: EventKey = None, payload: Any = None, *, using: str | None = None) -> int | None:
    """Do as `send_event()` from a coroutine."""
    return await sync_to_async(send_event)(name, key, payload, using=using)


def _wake(alias: str, event_id: int, event_name: str, event_key: str) -> int | None:
    """Wake the jobs that wait for an event, or let the workers do it. A failure never reaches the sender.

    Return how many it has woken. None: workers wake them, or the rest of them.
    """
    connection = connections[alias]
    if alias in _left_to_workers:
        notify_event_sent(connection, event_id)
        return None
    try:
        after_id, woken, is_complete = 0, 0, False
        for _ in range(PAGES):
            job_ids, next_id = steps.wake(connection, event_name, event_key, after_id)
            woken += len(job_ids)
            if next_id is None:
                is_complete = True
                break
            after_id = next_id
    except DatabaseError as error:
        if isinstance(error.__cause__, InsufficientPrivilege):
            _left_to_workers.add(alias)
        else:  # without the key, which can be made of arguments
            logger.warning(
                "the jobs that wait for the event %s could not be woken; a worker wakes them", event_name, exc_info=True
            )
        notify_event_sent(connection, event_id)
        return None
    if woken:
        wake_workers_after_commit(connection)
    return woken if is_complete else None
