"""Helpers for tests of limits: they add jobs with a limit key, and claim them as a worker does."""

from __future__ import annotations

from typing import Any

from django_pgqueue import lifecycle
from django_pgqueue.lifecycle import Cursor, Lane
from django_pgqueue.lifecycle.limits import KeyClaim, KeyToClaim
from django_pgqueue.limit_policies import policy_of
from django_pgqueue.limits import Limit
from tests import helpers

LANE = Lane("default", 0, is_limited=True)
ADD = (
    "INSERT INTO pgqueue_job (task_name, arguments, limit_key, limit_order, limit_weight, queue_name, run_after) "
    'SELECT %(task_name)s, \'{"args":[],"kwargs":{}}\', %(limit_key)s, %(order)s, %(weight)s, %(queue_name)s, '
    "statement_timestamp() + make_interval(secs => %(delay)s) FROM generate_series(1, %(count)s) RETURNING id"
)


def add(connection: Any, limit_key: str, count: int = 1, **changes: Any) -> list[int]:
    """Add ready jobs with a limit key, and return their ids."""
    values = {"task_name": helpers.NOOP, "order": None, "weight": None, "queue_name": "default", "delay": 0.0}
    rows = connection.execute(ADD, {**values, "limit_key": limit_key, "count": count, **changes}).fetchall()
    return [job_id for (job_id,) in rows]


def found(connection: Any, *, after_key: str = "", known: dict[str, Cursor] | None = None, **bounds: int) -> Any:
    """Search the keys of the default lane."""
    bounds = {"wanted": 100, "visits": 1000, **bounds}
    return lifecycle.limits.find_keys(connection, LANE, after_key=after_key, known=known or {}, **bounds)


def claim(
    connection: Any,
    limit: Limit,
    *keys: str,
    count: int = 100,
    free_slots: int | None = None,
    open_after: int = 0,
    cursor: Cursor = Cursor(),  # noqa: B008 -- immutable
    **options: Any,
) -> KeyClaim:
    """Lock the keys, or those with due jobs, and claim from them in the same transaction."""
    with connection.transaction():
        locked = (
            lifecycle.limits.lock_keys(connection, keys)
            if keys
            else [key.limit_key for key in found(connection) if key.is_locked]
        )
        if not locked:
            return KeyClaim([], [])
        return lifecycle.limits.claim_keys(
            connection,
            LANE,
            [KeyToClaim(key, policy_of(limit), cursor, open_after) for key in locked],
            limit=count,
            free_slots=count if free_slots is None else free_slots,
            worker_id=1,
            lease_seconds=30.0,
            **options,
        )


def ids(claim: KeyClaim) -> list[int]:
    """Return the ids of the claimed jobs."""
    return [job.job_id for job in claim.claimed]


def finish(connection: Any, claim: KeyClaim) -> None:
    """Complete the claimed jobs."""
    lifecycle.succeed(connection, helpers.succeeded(*(job.key for job in claim.claimed)))
