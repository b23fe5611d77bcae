"""Add jobs without a unique key, on the caller's connection and in the caller's transaction.

`Task.enqueue()` and `Task.enqueue_many()` call these functions. `unique` has the ones for jobs with a key.
"""

from __future__ import annotations

from typing import Unpack

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute

from .types import DEFAULTS, Enqueued, Row


def enqueue(connection: Connection, *, arguments: str, **row: Unpack[Row]) -> Enqueued:
    """Add one ready job; `arguments` is JSON text."""
    [added] = execute(connection, sql.enqueueing.ENQUEUE, {"arguments": arguments, **DEFAULTS, **row})
    return Enqueued._make(added)


def enqueue_many(connection: Connection, *, arguments: str, **row: Unpack[Row]) -> list[int]:
    """Add a ready job for each element of the JSON array `arguments`, in one statement; return the ids in order."""
    rows = execute(connection, sql.enqueueing.ENQUEUE_MANY, {"arguments": arguments, **DEFAULTS, **row})
    return [row[0] for row in rows]
