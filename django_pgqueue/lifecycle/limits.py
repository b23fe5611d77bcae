"""Claim jobs with a limit: find and lock keys, then claim from them what their limits admit.

The fetcher, the testing kit and runs in the foreground claim with `KeyClaims`. It calls `lock_keys()` and
`claim_keys()` in one transaction, in this order. `claim_keys()` counts the open executions of the locked keys, so its
statement must begin after the keys are locked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers, texts
from django_pgqueue.declared.chunks import is_chunk_key
from django_pgqueue.declared.limits import name_of

from .claims import AHEAD_BYTES, EXECUTION_ID, claim_params, exclusions, received
from .execute import idle_wait
from .pruning import PRUNE_LIMIT
from .ranges import PrunedPage, page_in_ranges
from .types import Claimed, Cursor, Lane, ReadyPlace

if TYPE_CHECKING:
    from datetime import datetime

    from django_pgqueue.declared.limit_policies import KeyPolicy

    from .chunks import ChunkRule

FIRST_PLACE: Final = ReadyPlace("", 32768)
"""Comes before all keys: no queue has an empty name, and no job has this priority."""
COLUMNS_OF_JOB: Final = 17
"""The first columns of a row of CLAIM_KEYS are those of a claimed job."""


class FoundKey(NamedTuple):
    """A limit key or chunk key with ready jobs in a lane."""

    place: ReadyPlace
    run_after: datetime
    due_seconds: float
    """Seconds until its first job is due, 0 or less if it is due now."""
    full_seconds: float | None = None
    """Seconds until the chunk is due. None: it is no chunk key of the rules."""


class KeyScan(NamedTuple):
    """A page of keys, in the order of the index."""

    found: list[FoundKey]
    has_controls: bool
    """Whether claims must read what operators have changed, by `limit_overrides.controls_of()`."""


class LimitedJob(NamedTuple):
    """A ready job with a limit."""

    lane: Lane
    limit_key: str
    weight: int
    due_seconds: float
    """Seconds until it is due, 0 or less if it is due now."""


class KeyToClaim(NamedTuple):
    """A locked key, the policy that its claim obeys, and where the search and the count begin."""

    limit_key: str
    policy: KeyPolicy
    cursor: Cursor
    open_after_id: int = 0
    """All executions of the key up to this one have ended, so the count of open executions begins after it."""


class KeyResult(NamedTuple):
    """The result of a claim for one key."""

    limit_key: str
    is_claimed: bool
    """Whether it claimed a job of the key."""
    admits_more: bool
    """Whether the limit admits another job now."""
    due_seconds: float | None
    """Seconds until the limit admits the next job, if only time can help."""
    open_after_id: int | None
    """See `KeyToClaim`."""
    is_held: bool = False
    """Whether a task has raised `Throttled`, so that no job of the key starts before a certain time."""

    @property
    def may_have_more(self) -> bool:
        """Whether a further claim might find a job that the limit admits now."""
        return self.is_claimed and self.admits_more and self.due_seconds is None

    @property
    def is_left(self) -> bool:
        """Whether the claim has left the key, although its limit admits a job."""
        return not self.is_claimed and self.admits_more and self.due_seconds is None


class KeyClaim(NamedTuple):
    """The claimed jobs, and the results of all keys."""

    claimed: list[Claimed]
    results: list[KeyResult]


def scan_keys(
    connection: Connection, rules: Mapping[str, ChunkRule], *, after: ReadyPlace | None = None, limit: int
) -> KeyScan:
    """Return up to `limit` keys with ready jobs that follow a place, and when the chunks are due, by their rules."""
    params = {
        **dict(zip(("after_queue", "after_priority", "after_key"), after or FIRST_PLACE, strict=True)),
        "chunk_keys": texts(rules),
        "sizes": numbers(rule.size for rule in rules.values()),
        "waits_seconds": numbers(rule.wait_seconds for rule in rules.values()),
        "limit": limit,
    }
    rows = execute(connection, sql.limits.KEYS, params)
    found = [FoundKey(ReadyPlace(*row[:3]), *row[3:6]) for row in rows]
    return KeyScan(found, any(has_controls for *_, has_controls in rows))


def newest_keys(connection: Connection, *, limit: int) -> list[FoundKey]:
    """Return the keys of the newest `limit` jobs, as far as these are ready. Those of paused queues are included."""
    rows = execute(connection, sql.claims.NEWEST_READY, {"limit": limit})
    return [FoundKey(ReadyPlace(*row[:3]), *row[3:]) for row in rows if row[2] is not None]


def scan_limited_lanes(connection: Connection) -> list[Lane]:
    """Return the lanes that have ready jobs with a limit."""
    rows = execute(connection, sql.limits.LIMITED_LANES, {})
    return [Lane(queue_name, priority, is_limited=True) for queue_name, priority in rows]


def lock_keys(connection: Connection, limit_keys: Sequence[str]) -> list[str]:
    """Lock these keys, and return those that no other session has locked, in the same order."""
    params = {"limit_keys": texts(limit_keys), "idle_wait": idle_wait(connection)}
    return [key for [key] in execute(connection, sql.limits.LOCK_KEYS, params)]


def limited_job(connection: Connection, job_id: int) -> LimitedJob | None:
    """Return the lane and the limit key of a job. None: it is not ready, or has no limit."""
    for queue_name, priority, limit_key, *others in execute(connection, sql.limits.LIMITED_JOB, {"job_id": job_id}):
        if limit_key is not None and not is_chunk_key(limit_key):
            return LimitedJob(Lane(queue_name, priority, is_limited=True), limit_key, *others)
    return None


def key_ranges(limit_key: str) -> list[tuple[str, str]]:
    """Return the ranges of a limit key, or of all keys of a limit, each with its end, which is not in it.

    The keys of a limit are its name, and those between "name:" and "name;" in the order of bytes. No key can be between
    a key and the same with the character after NUL.
    """
    own, others = (limit_key, f"{limit_key}\x01"), keys_of_limit(limit_key)
    return [own, others] if any(others) else [own]


def keys_of_limit(limit_key: str) -> tuple[str, str]:
    """Return the first key after the name of a limit and the end of its keys, in the order of bytes; "" for one key."""
    return (f"{limit_key}:", f"{limit_key};") if name_of(limit_key) == limit_key else ("", "")


def next_of_key(
    connection: Connection,
    lane: Lane,
    key: str,
    *,
    is_ordered: bool,
    skipped_ids: Iterable[int] = (),
    paused_tasks: Iterable[str] = (),
) -> int | None:
    """Return the id of the job of a key that a claim would take first, or None if there is no such job."""
    params = {
        "queue_name": lane.queue_name,
        "priority": lane.priority,
        "limit_key": key,
        "is_ordered": is_ordered,
        **exclusions(skipped_ids, paused_tasks),
    }
    rows = execute(connection, sql.limits.NEXT_OF_KEY, params)
    return rows[0][0] if rows else None


def claim_keys(
    connection: Connection,
    lane: Lane,
    keys: Sequence[KeyToClaim],
    *,
    limit: int,
    free_slots: int,
    worker_id: int,
    lease_seconds: float,
    skipped_ids: Iterable[int] = (),
    paused_tasks: Iterable[str] = (),
    ahead_bytes: int = AHEAD_BYTES,
    job_id: int | None = None,
    is_early: bool = False,
) -> KeyClaim:
    """Claim up to `limit` due jobs of these keys in a lane, in turns, and open an execution for each.

    The caller's transaction must have locked the keys with an earlier statement. With `job_id`, claim only this job,
    and with `is_early` also if it is not due. The other arguments and the errors are those of `claim()`.
    """
    policies, sent_at = [key.policy for key in keys], time.monotonic()
    rows = execute(
        connection,
        sql.limits.CLAIM_KEYS,
        {
            "queue_name": lane.queue_name,
            "priority": lane.priority,
            "limit_keys": texts(key.limit_key for key in keys),
            "concurrencies": numbers(each.concurrency or 0 for each in policies),
            "intervals_us": numbers(microseconds(each.interval_seconds) for each in policies),
            "bursts": numbers(each.burst if each.interval_seconds else 0 for each in policies),
            "shares": numbers(each.share for each in policies),
            "are_ordered": texts(str(each.is_ordered) for each in policies),
            "after_ats": texts(key.cursor.run_after.isoformat() for key in keys),
            "after_ids": numbers(key.cursor.job_id for key in keys),
            "open_after_ids": numbers(key.open_after_id for key in keys),
            "limit_of_key": math.ceil(limit / len(keys)),
            "limit": limit,
            "free_slots": free_slots,
            **claim_params(worker_id, lease_seconds),
            **exclusions(skipped_ids, paused_tasks),
            "ahead_bytes": ahead_bytes,
            "job_id": job_id,
            "is_early": is_early,
        },
    )
    jobs = sorted((row for row in rows if row[0] is not None), key=EXECUTION_ID)
    claimed = [
        job._replace(limit_key=row[COLUMNS_OF_JOB])
        for job, row in zip(received([row[:COLUMNS_OF_JOB] for row in jobs], sent_at), jobs, strict=True)
    ]
    return KeyClaim(claimed, [KeyResult(*row[COLUMNS_OF_JOB:]) for row in rows if row[0] is None])


def prune_limit_states(connection: Connection, after_id: int = 0, limit: int = PRUNE_LIMIT) -> PrunedPage:
    """Remove the states of keys that have all their tokens again, from the page of `limit` rows behind `after_id`."""
    params = {"after_id": after_id, "limit": limit}
    return page_in_ranges(connection, "the removal of limit state", sql.limits.PRUNE_LIMIT_STATES, params)


def microseconds(seconds: float | None) -> int:
    """Return the interval of a token, rounded up: rounded down, the starts of a period would exceed the rate."""
    return math.ceil(round((seconds or 0.0) * 1e6, 3))
