"""Count suspended jobs, events that no job has received, and batches by state, for the metrics.

The cost of each statement is bounded, and almost nothing while no job has steps and there is no batch.
"""

from __future__ import annotations

from typing import Final

from django_pgqueue.db.statements import execute

from .alias import connection_of

LIMIT: Final = 10_000
"""Rows that each count reads at most."""

# Count the jobs that sleep, wait for an event, or wait for the next try of a step, by queue. Jobs that have ended keep
# the rows of their steps, so the state of each job is read.
#
# Index: pgqueue_step_wakes, pgqueue_step_waiting, and pgqueue_job_pkey for each entry
# Cost:  at most `limit` entries of each index
SUSPENDED_JOBS: Final = """/* pgqueue:suspended_jobs */
SELECT job.queue_name, step.kind, count(*)
FROM (
    (
        SELECT job_id, kind
        FROM pgqueue_step
        WHERE event_name IS NULL AND finished_at IS NULL
          AND wake_at > statement_timestamp() + %(time_shift)s::interval
        ORDER BY wake_at
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT job_id, kind
        FROM pgqueue_step
        WHERE event_name IS NOT NULL AND finished_at IS NULL
        ORDER BY event_name, event_key, job_id
        LIMIT %(limit)s
    )
) AS step
CROSS JOIN LATERAL (
    SELECT queue_name FROM pgqueue_job WHERE id = step.job_id AND state = 'ready' LIMIT 1
) AS job
GROUP BY job.queue_name, step.kind
"""

# Count those of the newest events that no job has received.
#
# Index: pgqueue_event_pkey, and pgqueue_step_event for each entry
# Cost:  at most `limit` events
UNRECEIVED_EVENTS: Final = """/* pgqueue:unreceived_events */
SELECT count(*)
FROM (SELECT id FROM pgqueue_event ORDER BY id DESC LIMIT %(limit)s) AS event
WHERE (SELECT true FROM pgqueue_step WHERE event_id = event.id LIMIT 1) IS NULL
"""

# Count the open batches, the closed ones that are not complete, and those that have failed and not succeeded since.
#
# Index: pgqueue_batch_incomplete, pgqueue_batch_unsettled
# Cost:  at most `limit` entries of each index, the newest ones
BATCHES_BY_STATE: Final = """/* pgqueue:batches_by_state */
SELECT incomplete.open, incomplete.closed, failed.count
FROM (
    SELECT count(*) FILTER (WHERE closed_at IS NULL) AS open, count(*) FILTER (WHERE closed_at IS NOT NULL) AS closed
    FROM (
        SELECT closed_at FROM pgqueue_batch WHERE completed_at IS NULL ORDER BY id DESC LIMIT %(limit)s
    ) AS newest
) AS incomplete
CROSS JOIN (
    SELECT count(*) FILTER (WHERE failed_at IS NOT NULL) AS count
    FROM (
        SELECT failed_at FROM pgqueue_batch WHERE succeeded_at IS NULL ORDER BY id DESC LIMIT %(limit)s
    ) AS newest
) AS failed
"""


def suspended_jobs(database: str | None = None) -> dict[tuple[str, str], int]:
    """Return the number of suspended jobs by queue and by kind of their step: "sleep", "event" or "step".

    Runs one read-only statement. Of each kind, at most 10,000 jobs are counted.
    """
    rows = execute(connection_of(database), SUSPENDED_JOBS, {"limit": LIMIT})
    return {(queue_name, kind): count for queue_name, kind, count in rows}


def unreceived_events(database: str | None = None) -> int:
    """Return how many of the newest 10,000 events no job has received. Runs one read-only statement."""
    return int(execute(connection_of(database), UNRECEIVED_EVENTS, {"limit": LIMIT})[0][0])


def batches_by_state(database: str | None = None) -> dict[str, int]:
    """Return the number of open, running and failed batches, among the newest 10,000 of each. Runs one statement."""
    [(opened, running, failed)] = execute(connection_of(database), BATCHES_BY_STATE, {"limit": LIMIT})
    return {"open": opened, "running": running, "failed": failed}
