"""Adding jobs that are to be the only ones with their key: on the caller's connection, in the caller's transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Unpack

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute

from .persistence import persistently
from .values import DEFAULTS, Enqueued, Row

HOLDS_PRUNED: Final = 1000
"""Holds that one statement forgets."""


def enqueue_unique(
    connection: Connection, *, arguments: str, unique_key: str, ready_only: bool, **row: Unpack[Row]
) -> Enqueued | None:
    """Add one ready job, if no other has its key; None if one has.

    `ready_only`: others are kept away only until it is claimed for the first time, else until it has ended. Waits for
    the end of a transaction that has just taken the key.
    """
    return _enqueue(connection, sql.ENQUEUE_UNIQUE, arguments, unique_key, ready_only=ready_only, row=row)


def replace(
    connection: Connection, *, arguments: str, unique_key: str, ready_only: bool, **row: Unpack[Row]
) -> Enqueued | None:
    """Put a call in the place of the job that waits with its key, or add one; None if that job runs already."""
    return _enqueue(connection, sql.ENQUEUE_OR_REPLACE, arguments, unique_key, ready_only=ready_only, row=row)


def _enqueue(
    connection: Connection, statement: str, arguments: str, unique_key: str, *, ready_only: bool, row: Row
) -> Enqueued | None:
    key = {"unique_key": unique_key, "unique_ready_only": ready_only or None}
    rows = execute(connection, statement, {"arguments": arguments, **DEFAULTS, **row, **key})
    return Enqueued._make(rows[0]) if rows else None


def enqueue_many_unique(
    connection: Connection, *, calls: str, ready_only: bool, replace: bool, **row: Unpack[Row]
) -> list[tuple[int, str | None]]:
    """Do so for each of `calls`, a JSON array of objects of `call` and `key`, in one statement.

    Returns the ids of the jobs that were added or replaced, with their keys, by id: new ones in the order given. A null
    key takes part in nothing of this.
    """
    statement = sql.ENQUEUE_MANY_OR_REPLACE if replace else sql.ENQUEUE_MANY_UNIQUE
    params = {"arguments": calls, **DEFAULTS, **row, "unique_ready_only": ready_only or None}
    rows = execute(connection, statement, params)
    return sorted(((found[0], found[1]) for found in rows), key=lambda each: each[0])


def holders(connection: Connection, task_name: str, unique_keys: Collection[str]) -> dict[str, int]:
    """Return, by key, the ids of the jobs of a task that have these keys now."""
    rows = execute(connection, sql.HOLDERS, {"task_name": task_name, "unique_keys": list(unique_keys)})
    return dict(rows)


def enqueue_for_period(
    connection: Connection, *, calls: str, period_seconds: float, **row: Unpack[Row]
) -> list[Enqueued]:
    """Add those of `calls` whose keys nobody holds, and hold these for so long; return the new jobs, in that order.

    `calls` is a JSON array as `enqueue_many_unique` takes it, no key in it twice; one without a key is added. Waits for
    the end of a transaction that has just taken one of the keys.
    """
    params = {**DEFAULTS, **row, "calls": calls, "period_seconds": period_seconds}
    return list(map(Enqueued._make, execute(connection, sql.ENQUEUE_FOR_PERIOD, params)))


def replace_for_period(connection: Connection, *, calls: str, **row: Unpack[Row]) -> list[tuple[Enqueued, str]]:
    """Put each of `calls` in the place of the job that holds its key, if that waits; return those jobs and keys."""
    params: dict[str, object] = {**DEFAULTS, **row, "calls": calls}
    params.pop("queue_name")  # the job stays in its own
    rows = execute(connection, sql.REPLACE_FOR_PERIOD, params)
    return [(Enqueued._make(found[:4]), found[4]) for found in rows]


def holds(
    connection: Connection, task_name: str, unique_keys: Collection[str], job_ids: Sequence[int] = ()
) -> dict[str, int]:
    """Return, by key, the ids of the jobs that these keys of a task are held for, ended or gone though they may be.

    `job_ids`: those that are to be among them even where their period is over by now.
    """
    params = {"task_name": task_name, "unique_keys": list(unique_keys), "job_ids": list(job_ids)}
    return dict(execute(connection, sql.HOLDS, params))


def prune_holds(connection: Connection, limit: int = HOLDS_PRUNED) -> int:
    """Forget up to `limit` holds whose period is over; return how many."""
    return len(persistently(connection, sql.PRUNE_HOLDS, {"limit": limit}))
