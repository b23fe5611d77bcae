"""Which jobs run in which worker process, and since when. The admin's page of workers calls this module."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django_pgqueue.db.statements import execute

from .alias import connection_of

PER_WORKER: Final = 50
"""Open executions returned of each worker process at most."""

# Return the open executions of some workers, the oldest first, and at most `limit` of each.
#
# Index: pgqueue_job_running, and the primary key of the executions for each entry
RUNNING_OF_WORKERS: Final = """/* pgqueue:running_of_workers */
SELECT job.worker_id, job.execution_id, job.id, job.task_name, job.queue_name, opened.attempt,
       opened.started_at IS NOT NULL,
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval
           - coalesce(opened.started_at, opened.claimed_at))
FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
CROSS JOIN LATERAL (
    SELECT id, task_name, queue_name, worker_id, execution_id
    FROM pgqueue_job
    WHERE state = 'running' AND worker_id = worker.id
    ORDER BY worker_id, execution_id
    LIMIT %(limit)s
) AS job
CROSS JOIN LATERAL (
    SELECT attempt, started_at, claimed_at
    FROM pgqueue_execution
    WHERE id = job.execution_id AND outcome IS NULL
    LIMIT 1
) AS opened
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job that a worker process has claimed.

    Attributes:
        worker_id: Id of the worker process.
        execution_id, job_id: Ids of the attempt and of the job.
        task_name, queue_name: The names in the row of the job.
        attempt: Number of the attempt.
        is_started: False: the job is prefetched, or has started since the last heartbeat.
        seconds: How long it has run, or how long ago it was claimed if `is_started` is False.
    """

    worker_id: int
    execution_id: int
    job_id: int
    task_name: str
    queue_name: str
    attempt: int
    is_started: bool
    seconds: float


def running_jobs(worker_ids: Iterable[int], database: str | None = None) -> list[RunningJob]:
    """Return the jobs that some worker processes have claimed, those that have run longest first.

    Runs one read-only statement.

    Args:
        worker_ids: Ids of worker processes.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The oldest 50 of each process.
    """
    params = {"worker_ids": list(worker_ids), "limit": PER_WORKER}
    rows = execute(connection_of(database), RUNNING_OF_WORKERS, params)
    found = [RunningJob(**dict(zip(RunningJob.__slots__, row, strict=True))) for row in rows]
    return sorted(found, key=lambda job: (not job.is_started, -job.seconds))
