"""Read the stored calls of jobs, schedules and callbacks, page by page. Nothing is written.

The check of a new release (`deploys`) calls these functions. Each page follows the order of an index, so its cost does
not depend on the size of the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple

from django_pgqueue import sql
from django_pgqueue.db.fields import FIRST_INSTANT
from django_pgqueue.db.statements import Connection, Row, execute

from .execute import pages
from .types import Lane

FROM_THE_FIRST: Final = {"after_at": FIRST_INSTANT, "after_id": 0}
FROM_THE_NEWEST: Final = {"before_at": datetime(9999, 12, 30, tzinfo=UTC), "before_id": 2**63 - 1}
Ids = Iterator[list[int]]
"""Ids of jobs, page by page."""


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


def ready_calls(connection: Connection, lane: Lane, limit: int) -> Ids:
    """Yield the ids of the ready jobs of a lane."""
    of_lane = {"queue_name": lane.queue_name, "priority": lane.priority, "limit": limit}
    if lane.is_limited:
        after = {"after_key": "", **FROM_THE_FIRST}
        return _ids(pages(connection, sql.stored_calls.READY_LIMITED_CALLS, after, **of_lane))
    return _ids(pages(connection, sql.stored_calls.READY_CALLS, FROM_THE_FIRST, **of_lane))


def running_calls(connection: Connection, limit: int) -> Ids:
    """Yield the ids of the running jobs."""
    after = {"after_worker_id": 0, "after_id": 0}
    return _ids(pages(connection, sql.stored_calls.RUNNING_CALLS, after, limit=limit))


def waiting_calls(connection: Connection, limit: int) -> Ids:
    """Yield the ids of the jobs that wait for other jobs."""
    return _ids(pages(connection, sql.stored_calls.WAITING_CALLS, {"after_id": 0}, limit=limit))


def dead_calls(connection: Connection, limit: int) -> Ids:
    """Yield the ids of the dead letters, from the newest to the oldest."""
    return _ids(pages(connection, sql.stored_calls.DEAD_CALLS, FROM_THE_NEWEST, limit=limit))


def _ids(found: Iterator[list[Row]]) -> Ids:
    return ([row[-1] for row in rows] for rows in found)


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


def scheduled_calls(connection: Connection, limit: int) -> Iterator[ScheduledCall]:
    """Yield the schedules, by id, with their stored arguments."""
    for rows in pages(connection, sql.stored_calls.SCHEDULED_CALLS, {"after_id": 0}, limit=limit):
        yield from map(ScheduledCall._make, rows)


Callbacks = tuple[int, list[tuple[str, str]]]
"""Id of a batch or of a job, and the task and the arguments of each of its callbacks or compensations."""


def pending_callbacks(connection: Connection, limit: int) -> Iterator[Callbacks]:
    """Yield the batches that have not succeeded, by id, with the callbacks that they can still call."""
    for rows in pages(connection, sql.stored_calls.PENDING_CALLBACKS, {"after_id": 0}, limit=limit):
        for batch_id, *calls in rows:
            yield batch_id, [_task_and_arguments(call) for call in calls if call]


def pending_compensations(connection: Connection, limit: int) -> Iterator[Callbacks]:
    """Yield the compensations that are neither enqueued nor forgotten, by the id of the job that they undo."""
    for rows in pages(connection, sql.stored_calls.PENDING_COMPENSATIONS, {"after_id": 0}, limit=limit):
        for job_id, task_name, arguments in rows:
            yield job_id, [(task_name, arguments)]


def queues_of_calls(connection: Connection) -> set[str]:
    """Return the queues of the jobs that callbacks of batches and compensations can still add."""
    return {row[0] for row in execute(connection, sql.stored_calls.QUEUES_OF_CALLS, {})}


def _task_and_arguments(text: str) -> tuple[str, str]:
    call = json.loads(text)
    return call["task_name"], json.dumps(call["arguments"])
