"""Send, find and remove events, on the caller's connection.

`send_event()` of the package calls `send_event()` here in the application's transaction, a waiting attempt calls
`find_event()`, and the maintenance service `prune_events()`. An event is never changed: several jobs can receive it.
"""

from __future__ import annotations

from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute

from .pruning import PRUNE_LIMIT
from .ranges import rows_in_ranges


class FoundEvent(NamedTuple):
    """An event. `payload` is JSON text, not decoded yet."""

    event_id: int
    payload: str | None


class PrunedEvents(NamedTuple):
    """The result of one call of `prune_events()`.

    `kept` events are old, and unfinished jobs wait for them. `last_id` is the end of the page, or None if the events
    behind it are not old.
    """

    removed: int
    kept: int
    last_id: int | None


def send_event(connection: Connection, event_name: str, event_key: str, payload: str | None) -> int:
    """Add an event, in the caller's transaction, and return its id. `payload` is JSON text."""
    params = {"event_name": event_name, "event_key": event_key, "payload": payload}
    return int(execute(connection, sql.events.SEND_EVENT, params)[0][0])


def find_event(connection: Connection, job_id: int, event_name: str, event_key: str) -> FoundEvent | None:
    """Return the earliest event with this name and key that the job has not received, or None."""
    params = {"job_id": job_id, "event_name": event_name, "event_key": event_key}
    rows = execute(connection, sql.events.FIND_EVENT, params)
    return FoundEvent(*rows[0]) if rows else None


def prune_events(
    connection: Connection, retention_seconds: float, after_id: int = 0, limit: int = PRUNE_LIMIT
) -> PrunedEvents:
    """Remove events that are past their retention, from the page of `limit` events behind the event `after_id`.

    An event stays while an unfinished job waits for it and has not received it. If the database refuses to remove an
    event, the page is read in parts, and the next page begins behind the nearest part that was full.
    """
    params = {"retention_seconds": retention_seconds, "after_id": after_id, "limit": limit}
    parts = rows_in_ranges(connection, "the removal of event", sql.events.PRUNE_EVENTS, params)
    _, old_counts, removed_counts, *_ = zip(*parts, strict=True)
    ends = [last_id for found, _, _, last_id, last_old_id in parts if found >= limit and last_id == last_old_id]
    removed = sum(removed_counts)
    return PrunedEvents(removed, sum(old_counts) - removed, min(ends, default=None))
