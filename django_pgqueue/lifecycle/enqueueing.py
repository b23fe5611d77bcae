"""Add jobs without a unique key, on the caller's connection and in the caller's transaction.

`Task.enqueue()` and `Task.enqueue_many()` call these functions. `unique` has the ones for jobs with a key. `row` is
the name of the task, the headers, and what `options.columns_of()` returns. For one job, it includes the columns of the
limit, if the job has one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django_pgqueue import sql
from django_pgqueue.db import arrays
from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.limits import NO_LIMIT, CallLimit
from django_pgqueue.options import UNSET

from .new_jobs import NewJob, Row
from .types import Enqueued

Limits = Sequence[CallLimit | None]
"""The limits of the calls of one statement, or nothing if no call has a limit."""


def enqueue(connection: Connection, *, arguments: str, **row: Any) -> Enqueued:
    """Add one ready job; `arguments` is JSON text."""
    [added] = execute(connection, sql.enqueueing.ENQUEUE, {"arguments": arguments, **UNSET, **NO_LIMIT, **row})
    return Enqueued._make(added)


def enqueue_many(connection: Connection, *, arguments: str, limits: Limits = (), **row: Any) -> list[int]:
    """Add a ready job for each element of the JSON array `arguments`, in one statement; return the ids in order."""
    params = {"arguments": arguments, "limits": limits_as_json(limits), **UNSET, **row}
    rows = execute(connection, sql.enqueueing.ENQUEUE_MANY, params)
    return [row[0] for row in rows]


def enqueue_each(
    connection: Connection,
    *,
    arguments: str,
    numbers: Sequence[int],
    rows: Sequence[dict[str, Any]],
    limits: Limits = (),
) -> list[int]:
    """Add a ready job for each element of the JSON array `arguments`, in one statement; return the ids in order.

    The job of the element at a place has the row `rows[numbers[place]]`.
    """
    given = {"arguments": arguments, "limits": limits_as_json(limits)}
    params = {**given, "numbers": arrays.numbers(numbers), "options": numbered(rows)}
    return [row[0] for row in execute(connection, sql.enqueueing.ENQUEUE_EACH, params)]


def params_of(jobs: Sequence[NewJob]) -> dict[str, Any]:
    """Return jobs, each with a row of its own, as the statements take them. A row that jobs share is sent once."""
    places: dict[int, int] = {}
    rows: list[Row] = []
    for job in jobs:
        if id(job.row) not in places:
            places[id(job.row)] = len(rows)
            rows.append(job.row if job.uniqueness is None else {**job.row, **job.uniqueness.columns()})
    return {
        "arguments": f"[{','.join(job.arguments for job in jobs)}]",
        "numbers": arrays.numbers(places[id(job.row)] for job in jobs),
        "options": numbered(rows),
        "limits": limits_as_json([job.limit for job in jobs]),
    }


def limits_as_json(limits: Limits) -> str | None:
    """Return the limits of calls as JSON text, or None if no call has a limit."""
    if not any(limits):
        return None
    return json.dumps([{} if limit is None else limit._asdict() for limit in limits])


def numbered(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as JSON text, each with its number from 0."""
    return json.dumps([{"number": number, **row} for number, row in enumerate(rows)], default=datetime.isoformat)
