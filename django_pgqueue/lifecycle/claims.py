"""Claiming jobs, and keeping the leases on them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from django_pgqueue import sql
from django_pgqueue.db import Connection, execute

from .arrays import numbers, texts
from .maintenance import open_executions
from .persistence import FAILURES, divided, may_divide, persistently, savepoint
from .values import Beat, Claimed, Cursor, Lane, Look

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Arguments of the jobs that a worker claims ahead of its slots, at the most."""


def claim(
    connection: Connection,
    cursors: Mapping[Lane, Cursor],
    *,
    limit: int,
    free_slots: int,
    worker_id: int,
    lease_seconds: float,
    skipped_ids: Iterable[int] = (),
    paused_tasks: Iterable[str] = (),
    ahead_bytes: int = AHEAD_BYTES,
) -> list[Claimed]:
    """Take up to `limit` due jobs of the lanes, in the order of `cursors`, opening an execution for each.

    Left out are `skipped_ids`, and jobs under the names of `paused_tasks`. Of what goes beyond `free_slots` no job is
    on its last attempt, or reaches over `ahead_bytes` of arguments.
    Raises what the database raises if a row cannot be claimed: then nothing was, and `next_in_line` tells which.
    """
    sent_at = time.monotonic()
    rows = persistently(
        connection,
        sql.CLAIM,
        {
            **_lane_params(cursors),
            "limit": limit,
            "free_slots": free_slots,
            "worker_id": worker_id,
            "lease_seconds": lease_seconds,
            "skipped_ids": numbers(skipped_ids),
            "paused_task_names": texts(paused_tasks),
            "ahead_bytes": ahead_bytes,
        },
    )
    return _received(rows, sent_at)


def claim_one(
    connection: Connection, job_id: int, *, worker_id: int, lease_seconds: float, only_due: bool = False
) -> Claimed | None:
    """Take this job, due or not, and open an execution for it; None if it is not ready, or somebody has it locked."""
    params = {"job_id": job_id, "worker_id": worker_id, "lease_seconds": lease_seconds, "only_due": only_due}
    sent_at = time.monotonic()
    rows = persistently(connection, sql.CLAIM_ONE, params)
    return next(iter(_received(rows, sent_at)), None)


def _received(rows: Sequence[Any], sent_at: float) -> list[Claimed]:
    """Return claimed jobs, whose time to start by comes as seconds from the statement's start.

    Not from the answer's arrival: the commit may have waited long, as for a standby.
    """
    claimed = map(Claimed._make, rows)
    return [one if one.start_by is None else one._replace(start_by=sent_at + one.start_by) for one in claimed]


def next_in_line(
    connection: Connection,
    cursors: Mapping[Lane, Cursor],
    *,
    skipped_ids: Iterable[int] = (),
    paused_tasks: Iterable[str] = (),
) -> int | None:
    """Return the id of the job that a claim would take first, or None."""
    left_out = {"skipped_ids": numbers(skipped_ids), "paused_task_names": texts(paused_tasks)}
    rows = execute(connection, sql.NEXT_IN_LINE, {**_lane_params(cursors), **left_out})
    return rows[0][0] if rows else None


def set_aside(connection: Connection, job_id: int, *, worker_id: int, exception_class: str, error: str) -> bool:
    """End a ready job that no claim can take as dead, with the reason; say whether it was there to end."""
    params = {"job_id": job_id, "worker_id": worker_id, "exception_class": exception_class, "error": error}
    return bool(persistently(connection, sql.SET_ASIDE, params))


def look(connection: Connection) -> Look:
    """Return what waits where: the lanes that hold ready jobs, and what is paused."""
    rows = execute(connection, sql.LANES, {})
    due_in = {
        Lane(name, priority): max(due, resumes or due) for name, priority, due, resumes, *_ in rows if name is not None
    }
    [(paused_queues, paused_tasks, seen_at)] = [row[4:] for row in rows if row[0] is None]
    return Look(due_in, tuple(paused_queues), tuple(paused_tasks), seen_at)


def _lane_params(cursors: Mapping[Lane, Cursor]) -> dict[str, Any]:
    return {
        "queue_names": texts(lane.queue_name for lane in cursors),
        "priorities": numbers(lane.priority for lane in cursors),
        "after_ats": texts(cursor.run_after.isoformat() for cursor in cursors.values()),
        "after_ids": numbers(cursor.job_id for cursor in cursors.values()),
    }


def extend(
    connection: Connection,
    worker_ids: Sequence[int],
    *,
    lease_seconds: float,
    started_ids: Sequence[int] = (),
    first_id: int = 0,
    on_refused: Callable[[int, Exception], None] = lambda execution_id, error: None,
) -> list[Beat]:
    """Extend the leases of these workers' open executions from `first_id` on; return all that are open.

    An execution that the database refuses to extend goes to `on_refused`; its lease runs out, and the others are kept.
    """
    params = {"lease_seconds": lease_seconds, "started_ids": list(started_ids)}
    try:
        with savepoint(connection):
            every = {"worker_ids": list(worker_ids), "first_id": first_id, **params}
            return list(map(Beat._make, persistently(connection, sql.EXTEND, every)))
    except FAILURES as error:
        if not may_divide(connection, error):
            raise
    worker_of = {held.execution_id: one for one in worker_ids for held in open_executions(connection, one)}
    extended, refused = divided(
        connection,
        sorted(worker_of),
        lambda ids: dict.fromkeys(extend_each(connection, ids, lease_seconds=lease_seconds, started_ids=started_ids)),
    )
    for execution_id, why in refused:
        on_refused(execution_id, why)
    return [Beat(worker_id, key, key in extended) for key, worker_id in sorted(worker_of.items())]


def extend_each(
    connection: Connection, execution_ids: Sequence[int], *, lease_seconds: float, started_ids: Sequence[int] = ()
) -> list[int]:
    """Extend the leases of these executions; return the ids of those that were open, and not locked."""
    params = {"lease_seconds": lease_seconds, "started_ids": list(started_ids)}
    rows = persistently(connection, sql.EXTEND_EACH, {"execution_ids": numbers(execution_ids), **params})
    return [row[0] for row in rows]


def cancel_requests(connection: Connection, worker_ids: Sequence[int], *, first_id: int = 0) -> list[tuple[int, int]]:
    """Return (worker id, execution id) of open executions whose jobs somebody asked to cancel."""
    rows = execute(connection, sql.CANCEL_REQUESTS, {"worker_ids": list(worker_ids), "first_id": first_id})
    return [(row[0], row[1]) for row in rows]
