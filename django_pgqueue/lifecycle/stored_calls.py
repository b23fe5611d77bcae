"""Read the stored calls of jobs, schedules and callbacks, in batches. Nothing is written.

The check of a new release (`deploys`) calls these functions. Each reads one batch in the order of an index, so its cost
does not depend on the size of the table.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute

from .types import EPOCH, Cursor, Lane

AFTER_ALL: Final = Cursor(datetime(9999, 12, 30, tzinfo=UTC), 2**63 - 1)
"""Where reading the dead letters begins: after the newest one."""


class LimitedCursor(NamedTuple):
    """The position in a lane of jobs with a limit where the last batch ended."""

    after_key: str = ""
    after_at: datetime = EPOCH
    after_id: int = 0


class StoredShape(NamedTuple):
    """The jobs of a batch that are called in the same way.

    `kind` is "due", "scheduled", "retrying", "waiting", "running" or "dead". `positional` is None if SQL cannot read
    the shape. `job_ids` then has all jobs, and otherwise one of them.
    """

    task_name: str
    kind: str
    positional: int | None
    names: tuple[str, ...]
    total: int
    job_ids: list[int]


class StoredCall(NamedTuple):
    """A job with its stored arguments."""

    job_id: int
    task_name: str
    kind: str
    arguments: str

    def __repr__(self) -> str:
        """Return the call without the arguments, which can be secret."""
        return f"StoredCall(job_id={self.job_id}, task_name={self.task_name!r})"


class ScheduledCall(NamedTuple):
    """A schedule with its stored arguments."""

    schedule_id: int
    name: str
    is_of_code: bool
    is_enabled: bool
    task_name: str
    arguments: str

    def __repr__(self) -> str:
        """Return the schedule without the arguments, which can be secret."""
        return f"ScheduledCall(schedule_id={self.schedule_id}, task_name={self.task_name!r})"


def ready_calls(connection: Connection, lane: Lane, after: Cursor, limit: int) -> tuple[list[int], Cursor]:
    """Return the ids of the next ready jobs of a lane, and where the next batch begins."""
    params = {
        "queue_name": lane.queue_name,
        "priority": lane.priority,
        "after_at": after.run_after,
        "after_id": after.job_id,
        "limit": limit,
    }
    rows = execute(connection, sql.stored_calls.READY_CALLS, params)
    return [row[0] for row in rows], Cursor(rows[-1][1], rows[-1][0]) if rows else after


def ready_limited_calls(
    connection: Connection, lane: Lane, after: LimitedCursor, limit: int
) -> tuple[list[int], LimitedCursor]:
    """Return the ids of the next ready jobs with a limit of a lane, and where the next batch begins."""
    params = {"queue_name": lane.queue_name, "priority": lane.priority, **after._asdict(), "limit": limit}
    rows = execute(connection, sql.stored_calls.READY_LIMITED_CALLS, params)
    return [row[0] for row in rows], LimitedCursor(rows[-1][1], rows[-1][2], rows[-1][0]) if rows else after


def running_calls(connection: Connection, after: tuple[int, int], limit: int) -> tuple[list[int], tuple[int, int]]:
    """Return the ids of the next running jobs, and where the next batch begins."""
    params = {"after_worker_id": after[0], "after_id": after[1], "limit": limit}
    rows = execute(connection, sql.stored_calls.RUNNING_CALLS, params)
    return [row[0] for row in rows], (rows[-1][1], rows[-1][2]) if rows else after


def waiting_calls(connection: Connection, after_id: int, limit: int) -> list[int]:
    """Return the ids of the next jobs that wait for other jobs."""
    rows = execute(connection, sql.stored_calls.WAITING_CALLS, {"after_id": after_id, "limit": limit})
    return [row[0] for row in rows]


def dead_calls(connection: Connection, before: Cursor, limit: int) -> tuple[list[int], Cursor]:
    """Return the ids of the next dead letters, from the newest to the oldest, and where the next batch begins."""
    params = {"before_at": before.run_after, "before_id": before.job_id, "limit": limit}
    rows = execute(connection, sql.stored_calls.DEAD_CALLS, params)
    return [row[0] for row in rows], Cursor(rows[-1][1], rows[-1][0]) if rows else before


def call_shapes(connection: Connection, job_ids: Sequence[int]) -> list[StoredShape]:
    """Return the shapes of the calls of these jobs. Jobs that have ended well meanwhile are left out.

    A row whose arguments have an escape sequence that PostgreSQL does not read, such as a NUL, raises the database's
    error for the whole batch.
    """
    rows = execute(connection, sql.stored_calls.CALL_SHAPES, {"job_ids": list(job_ids)})
    return [StoredShape._make([*row[:3], tuple(sorted(row[3] or ())), *row[4:]]) for row in rows]


def read_calls(connection: Connection, job_ids: Sequence[int]) -> list[StoredCall]:
    """Return these jobs with their stored arguments."""
    return [StoredCall._make(row) for row in execute(connection, sql.stored_calls.STORED_CALLS, {"job_ids": job_ids})]


def scheduled_calls(connection: Connection, after_id: int, limit: int) -> list[ScheduledCall]:
    """Return the next schedules, by id, with their stored arguments."""
    params = {"after_id": after_id, "limit": limit}
    return [ScheduledCall._make(row) for row in execute(connection, sql.stored_calls.SCHEDULED_CALLS, params)]


Callbacks = tuple[int, list[tuple[str, str]]]
"""Id of a batch or of a job, and the task and the arguments of each of its callbacks or compensations."""


def pending_callbacks(connection: Connection, after_id: int, limit: int) -> list[Callbacks]:
    """Return the next batches that have not succeeded, by id, with the callbacks that they can still call."""
    rows = execute(connection, sql.stored_calls.PENDING_CALLBACKS, {"after_id": after_id, "limit": limit})
    return [(batch_id, [_task_and_arguments(call) for call in calls if call]) for batch_id, *calls in rows]


def pending_compensations(connection: Connection, after_id: int, limit: int) -> list[Callbacks]:
    """Return the next compensations that are neither enqueued nor forgotten, by the id of the job that they undo."""
    rows = execute(connection, sql.stored_calls.PENDING_COMPENSATIONS, {"after_id": after_id, "limit": limit})
    return [(job_id, [(task_name, arguments)]) for job_id, task_name, arguments in rows]


def queues_of_calls(connection: Connection) -> set[str]:
    """Return the queues of the jobs that callbacks of batches and compensations can still add."""
    return {row[0] for row in execute(connection, sql.stored_calls.QUEUES_OF_CALLS, {})}


def _task_and_arguments(text: str) -> tuple[str, str]:
    call = json.loads(text)
    return call["task_name"], json.dumps(call["arguments"])
