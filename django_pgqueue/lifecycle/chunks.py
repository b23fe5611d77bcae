"""Claim the jobs of tasks with `chunk`, with one statement for each chunk.

The worker's fetcher and the testing kit call these functions. A chunk is claimed when it is full or has waited long
enough; the statement itself decides that, so a chunk that waits has no lease and takes no slot.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection
from django_pgqueue.declared.chunks import task_of_key

from .claims import AHEAD_BYTES, claim_params, exclusions, received
from .execute import execute_with_retry
from .types import Claimed, Cursor, Lane


class ChunkRule(NamedTuple):
    """When a chunk is due: when it has this many due jobs, or when its first job has been due for this long."""

    size: int
    wait_seconds: float


class ChunkClaim(NamedTuple):
    """The claimed chunk: its first job, which has the others. None if no chunk was claimed.

    A row of another task, which was added by SQL with this chunk key, is claimed alone and is no chunk.
    """

    first: Claimed | None
    due_seconds: float | None
    """Seconds until the chunk is due, if it was not claimed. None: no job is due."""


def claim_chunk(
    connection: Connection,
    lane: Lane,
    rule: ChunkRule,
    *,
    worker_id: int,
    lease_seconds: float,
    cursor: Cursor = Cursor(),  # noqa: B008 -- immutable
    skipped_ids: Iterable[int] = (),
    paused_tasks: Iterable[str] = (),
    max_bytes: int = AHEAD_BYTES,
) -> ChunkClaim:
    """Claim the chunk of a lane if it is due, and open an execution for each of its jobs.

    The arguments of its jobs add up to `max_bytes` at most, unless it has one job. The errors are those of `claim()`.
    """
    sent_at, chunk_key = time.monotonic(), lane.chunk_key or ""
    task_name = task_of_key(chunk_key)
    [*rows, (*_, due_seconds)] = execute_with_retry(
        connection,
        sql.chunks.CLAIM_CHUNK,
        {
            "queue_name": lane.queue_name,
            "priority": lane.priority,
            "chunk_key": chunk_key,
            "task_name": task_name,
            "after_at": cursor.run_after.isoformat(),
            "after_id": cursor.job_id,
            "size": rule.size,
            "wait_seconds": rule.wait_seconds,
            **claim_params(worker_id, lease_seconds),
            **exclusions(skipped_ids, paused_tasks),
            "max_bytes": max_bytes,
        },
    )
    if not rows:
        return ChunkClaim(None, due_seconds)
    first, *others = received([row[:-1] for row in rows], sent_at)
    is_chunk = first.task_name == task_name
    return ChunkClaim(first._replace(chunk_key=chunk_key, others=tuple(others) if is_chunk else None), None)
