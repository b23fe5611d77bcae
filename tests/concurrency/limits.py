"""Helpers for tests of limits: they add jobs with a limit key, and claim them as a worker does."""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limit_policies import policy_of
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import completions, limits
from django_pgqueue.lifecycle.limits import KeyClaim, KeyToClaim
from django_pgqueue.lifecycle.types import Claimed, Cursor, Lane
from django_pgqueue.worker.claiming.limited.key_pages import KeyPages
from tests import helpers

LANE = Lane("default", 0, is_limited=True)
OPTIONS: Final[dict[str, Any]] = {"free_slots": 100, "worker_id": 1, "lease_seconds": 60.0}
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


class FoundAndLocked(NamedTuple):
    """A key with ready jobs, and whether this session has locked it. None: no job is due."""

    limit_key: str
    due_seconds: float
    is_locked: bool | None


def found(connection: Any, limit: int = 1000) -> list[FoundAndLocked]:
    """Read the keys of the default lane, and lock those with a due job."""
    keys = [
        each
        for each in limits.scan_keys(connection, {}, limit=limit).found
        if each.place[:2] == LANE[:2] and not is_chunk_key(each.place.limit_key)
    ]
    due = [each.place.limit_key for each in keys if each.due_seconds <= 0]
    locked = set(limits.lock_keys(connection, due))
    return [
        FoundAndLocked(key := each.place.limit_key, each.due_seconds, key in locked if key in due else None)
        for each in keys
    ]


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
            limits.lock_keys(connection, keys)
            if keys
            else [key.limit_key for key in found(connection) if key.is_locked]
        )
        if not locked:
            return KeyClaim([], [])
        return limits.claim_keys(
            connection,
            LANE,
            [KeyToClaim(key, policy_of(limit), cursor, open_after) for key in locked],
            limit=count,
            free_slots=count if free_slots is None else free_slots,
            worker_id=1,
            lease_seconds=30.0,
            **options,
        )


class LimitedWorker:
    """The limited lanes of a worker that scans before each claim, and whose keys wait for nothing."""

    def __init__(self) -> None:
        self.keyed = KeyPages([], time.monotonic)

    def scan(self, connection: Any) -> None:
        """Read the keys, and let none of them wait."""
        self.keyed.scan_again()
        self.keyed.read(connection, 0, paused_queues=(), paused_tasks=())

    def claim(self, connection: Any, lane: Lane = LANE, **options: Any) -> list[Claimed]:
        """Claim jobs of a lane."""
        return self.keyed.limited.claim(connection, lane, **options)

    def take(self, connection: Any, limit: int = 100) -> list[int]:
        """Return the ids of the jobs that one claim takes."""
        self.scan(connection)
        return [job.job_id for job in self.claim(connection, limit=limit, **OPTIONS)]

    @property
    def rest_seconds(self) -> float:
        """How long all keys of the lane wait."""
        return 0.0 if self.keyed.limited.has_keys(LANE) else self.keyed.limited.later.next_due_at - time.monotonic()


def ids(claim: KeyClaim) -> list[int]:
    """Return the ids of the claimed jobs."""
    return [job.job_id for job in claim.claimed]


def finish(connection: Any, claim: KeyClaim) -> None:
    """Complete the claimed jobs."""
    completions.succeed(connection, helpers.succeeded(*(job.key for job in claim.claimed)))
