"""Claim one job with a limit by its id.

The foreground runs call these functions, both in one transaction: the second statement must begin after the first one
has locked the key.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute

from .claims import received
from .limits import COLUMNS_OF_JOB, microseconds
from .types import Claimed

if TYPE_CHECKING:
    from django_pgqueue.limit_policies import KeyPolicy


class KeyOfJob(NamedTuple):
    """The limit key of a ready job."""

    limit_key: str
    is_locked: bool
    """Whether this session has locked the key."""


class LimitWait(NamedTuple):
    """The reasons why the limit of a job does not admit it."""

    first_job_id: int | None
    """The job that comes first. None if the key is not ordered, or if it is this job."""
    first_state: str | None
    used_slots: int | None
    """None: the limit has no maximum."""
    held_seconds: float
    """Seconds until the hold of the key ends. 0: it is not held."""
    token_seconds: float
    """Seconds until the rate has the tokens of the job again. 0: it has them, or there is no rate."""
    weight: int
    """The slots and tokens that the job takes, up to all that the limit has."""


class LimitedClaim(NamedTuple):
    """The claimed job, or what it waits for. Both are None if it is not ready, or if its row is locked."""

    claimed: Claimed | None
    wait: LimitWait | None


def lock_key_of(connection: Connection, job_id: int) -> KeyOfJob | None:
    """Lock the limit key of a ready job until the transaction ends. Return None if no such job has a limit."""
    rows = execute(connection, sql.limited_job.LOCK_KEY_OF_JOB, {"job_id": job_id})
    return KeyOfJob(*rows[0]) if rows and rows[0][0] is not None else None


def claim_limited_job(
    connection: Connection,
    job_id: int,
    limit_key: str,
    policy: KeyPolicy,
    *,
    worker_id: int,
    lease_seconds: float,
    only_due: bool = False,
) -> LimitedClaim:
    """Claim this job, due or not, if the policy of its key admits it now, and open an execution for it.

    The caller's transaction must have locked the key with an earlier statement. With `only_due`, a job that is not due
    counts as not ready.
    """
    sent_at = time.monotonic()
    rows = execute(
        connection,
        sql.limited_job.CLAIM_LIMITED_JOB,
        {
            "job_id": job_id,
            "limit_key": limit_key,
            "concurrency": policy.concurrency or 0,
            "interval_us": microseconds(policy.interval_seconds),
            "burst": policy.burst if policy.interval_seconds else 0,
            "is_ordered": policy.is_ordered,
            "worker_id": worker_id,
            "lease_seconds": lease_seconds,
            "only_due": only_due,
        },
    )
    if not rows:
        return LimitedClaim(None, None)
    [row] = rows
    if row[0] is None:
        return LimitedClaim(None, LimitWait(*row[COLUMNS_OF_JOB:]))
    [claimed] = received([row[:COLUMNS_OF_JOB]], sent_at)
    return LimitedClaim(claimed._replace(limit_key=limit_key), None)
