"""Claim jobs, and find the lanes that have jobs to claim.

The worker's fetcher calls these functions, as do `manage.py pgqueue run` and the testing tools. The statement that
makes a job `running` also opens its execution, so no job runs without one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise, repeat
from operator import add, attrgetter, itemgetter
from types import MappingProxyType
from typing import Any, Final

import psycopg

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, numbers, texts
from django_pgqueue.settings.conf import get_settings

from .execute import execute_with_retry
from .types import Claimed, Cursor, Lane, LaneScan, SetAside

AHEAD_BYTES: Final = 16 * 1024 * 1024
"""A claim stops prefetching where the arguments of its jobs add up to more than this many bytes."""
EXECUTION_KEY: Final = "pgqueue_execution_pkey"
QUEUE_NAME, PRIORITY, RUN_AFTER, JOB_ID = map(attrgetter, ("queue_name", "priority", "run_after", "job_id"))
EXECUTION_ID: Final = itemgetter(1)
"""Returns the execution of a claimed row."""
FIRST: Final = Lane("", 32768)
"""Comes before all lanes: no queue has an empty name, and no job has this priority."""
LAST: Final = Lane("\U0010ffff" * 100, -32769)
"""Comes behind all lanes: it is the last of the names that the column of the queue's name can have."""


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
    """Claim up to `limit` due jobs of the lanes, in the order of `cursors`, and open an execution for each.

    Jobs in `skipped_ids` and jobs of `paused_tasks` are left out. Jobs beyond `free_slots` are prefetched: prefetching
    ends before the first job that is on its last attempt, and where the arguments exceed `ahead_bytes`.

    The arguments or the headers of a job are "" if the row has more than a worker reads.

    Raises the database's error if a row cannot be claimed. Nothing was claimed then. To find the row, claim with a
    limit of 1: `next_in_line()` returns the job that such a claim takes.
    """
    sent_at = time.monotonic()
    params = {
        **_lane_params(cursors),
        **claim_params(worker_id, lease_seconds),
        **exclusions(skipped_ids, paused_tasks),
        "limit": limit,
    }
    if limit <= free_slots:
        rows = execute_with_retry(connection, sql.claims.CLAIM, params)
    else:
        ahead = {"free_slots": free_slots, "ahead_bytes": ahead_bytes}
        rows = execute_with_retry(connection, sql.claims.CLAIM_AHEAD, {**params, **ahead})
    return received(rows, sent_at)


def claim_params(worker_id: int, lease_seconds: float) -> dict[str, Any]:
    """Return the parameters that all claims have."""
    most_bytes = get_settings().most_stored_bytes
    return {"worker_id": worker_id, "lease_seconds": lease_seconds, "most_bytes": most_bytes}


def exclusions(skipped_ids: Iterable[int], paused_tasks: Iterable[str]) -> dict[str, str]:
    """Return the parameters of what a claim leaves out."""
    return {"skipped_ids": numbers(skipped_ids), "paused_task_names": texts(paused_tasks)}


def claim_one(
    connection: Connection, job_id: int, *, worker_id: int, lease_seconds: float, only_due: bool = False
) -> Claimed | None:
    """Claim this job, due or not, and open an execution for it.

    Return None if the job is not ready, if another session has locked its row, or with `only_due` if it is not due.
    """
    params = {**claim_params(worker_id, lease_seconds), "job_id": job_id, "only_due": only_due}
    sent_at = time.monotonic()
    rows = execute_with_retry(connection, sql.claims.CLAIM_ONE, params)
    return next(iter(received(rows, sent_at)), None)


def received(rows: Sequence[Any], sent_at: float) -> list[Claimed]:
    """Return the jobs of a claim's rows in their order, with `claimed_at` and `start_by` on this process's clock.

    The statement draws the ids of the executions in the order of the lane. It returns the rows in any order.

    The statement returns `start_by` as seconds from its own start. They are added to the time it was sent, not to the
    time of the reply: the commit may have waited a long time, for example for a standby.
    """
    in_order = sorted(rows, key=EXECUTION_ID)
    claimed = map(Claimed._make, map(add, in_order, repeat((sent_at, None, False, None, None, None))))
    return [job if job.start_by is None else job._replace(start_by=sent_at + job.start_by) for job in claimed]


def next_in_line(
    connection: Connection,
    cursors: Mapping[Lane, Cursor],
    *,
    skipped_ids: Iterable[int] = (),
    paused_tasks: Iterable[str] = (),
) -> int | None:
    """Return the id of the job that a claim would take first, or None if there is no such job."""
    params = {**_lane_params(cursors), **exclusions(skipped_ids, paused_tasks)}
    rows = execute(connection, sql.claims.NEXT_IN_LINE, params)
    return rows[0][0] if rows else None


def set_aside(
    connection: Connection, job_id: int, *, worker_id: int, exception_class: str, error: str
) -> SetAside | None:
    """Make a ready job dead because no claim can take it, and record the reason.

    Return None if the job is no longer ready, or if another session has locked its row.
    """
    params = {"job_id": job_id, "worker_id": worker_id, "exception_class": exception_class, "error": error}
    rows = execute_with_retry(connection, sql.claims.SET_ASIDE, params)
    return SetAside(*rows[0]) if rows else None


def is_sequence_behind(error: Exception) -> bool:
    """Return whether a claim failed because the id sequence of executions is behind its table. No job is to blame."""
    return isinstance(error, psycopg.Error) and error.diag.constraint_name == EXECUTION_KEY


def scan_lanes(
    connection: Connection,
    *,
    after: Lane | None = None,
    limit: int | None = None,
    queue_names: Collection[str] | None = None,
    cursors: Mapping[Lane, Cursor] = MappingProxyType({}),
) -> LaneScan:
    """Return the lanes that have ready jobs, and the paused queues and tasks.

    Args:
        connection: Where to read.
        after: Read only the lanes that follow this one in the order of the index: by queue name, the highest priority
            first.
        limit: Read at most this many lanes.
        queue_names: Read only the lanes of these queues, in no order.
        cursors: Read these lanes only behind their cursors. The other lanes are then in no order.
    """
    known = sorted(cursors, key=lambda lane: (lane.queue_name, -lane.priority))
    if queue_names is None:
        walks = list(pairwise([after or FIRST, *known, LAST]))
    else:
        walks = [(FIRST._replace(queue_name=name), LAST._replace(queue_name=name)) for name in queue_names]
    params = {
        "start_names": texts(start.queue_name for start, _ in walks),
        "start_priorities": numbers(start.priority for start, _ in walks),
        "end_names": texts(end.queue_name for _, end in walks),
        "end_priorities": numbers(end.priority for _, end in walks),
        **_lane_params(cursors),
        "limit": limit,
    }
    rows = execute(connection, sql.claims.LANES, params)
    due_in = {
        Lane(name, priority): max(due, resumes or due) for name, priority, due, resumes, *_ in rows if name is not None
    }
    [(paused_queues, paused_tasks, seen_at)] = [row[4:] for row in rows if row[0] is None]
    return LaneScan(due_in, tuple(paused_queues), tuple(paused_tasks), seen_at)


def newest_lanes(connection: Connection, *, limit: int) -> dict[Lane, float]:
    """Return the lanes of the newest `limit` jobs, as far as these are ready, with the seconds until one is due.

    The lanes of paused queues are included.
    """
    rows = execute(connection, sql.claims.NEWEST_READY, {"limit": limit})
    return {Lane(name, priority): due for name, priority, limit_key, _, due in rows if limit_key is None}


def _lane_params(cursors: Mapping[Lane, Cursor]) -> dict[str, Any]:
    places = cursors.values()
    return {
        "queue_names": texts(map(QUEUE_NAME, cursors)),
        "priorities": numbers(map(PRIORITY, cursors)),
        "after_ats": texts(map(datetime.isoformat, map(RUN_AFTER, places))),
        "after_ids": numbers(map(JOB_ID, places)),
    }
