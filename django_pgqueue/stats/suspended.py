"""Count suspended jobs, events that no job has received, and batches by state, for the metrics.

The cost of each statement is bounded, and almost nothing while no job has steps and there is no batch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from django_pgqueue.db.statements import execute

from .alias import connection_of
from .answers import NONE, Count

LIMIT: Final = 10_000
"""Rows that each count reads at most."""

# Count the jobs that sleep, wait for an event, or wait for the next try of a step, by queue, with the age of the oldest
# of these steps, and all of them together. Jobs that have ended keep the rows of their steps, so the state of each job
# is read. A job whose code was changed may have such a row too, beside that of the step which suspends it now. The row
# of all jobs says whether an index has more entries.
#
# Index: pgqueue_step_wakes, pgqueue_step_waiting, and pgqueue_job_pkey for each entry
# Cost:  at most `limit` entries of each index
SUSPENDED_JOBS: Final = """/* pgqueue:suspended_jobs */
SELECT grouping(job.queue_name) = 1, job.queue_name, step.kind, count(DISTINCT job.id),
       date_part(
           'epoch', statement_timestamp() + %(time_shift)s::interval
           - min(step.started_at) FILTER (WHERE job.id IS NOT NULL)
       ),
       greatest(count(*) FILTER (WHERE step.is_waiting), count(*) FILTER (WHERE NOT step.is_waiting)) >= %(limit)s
FROM (
    (
        SELECT job_id, kind, started_at, false AS is_waiting
        FROM pgqueue_step
        WHERE event_name IS NULL AND finished_at IS NULL
          AND wake_at > statement_timestamp() + %(time_shift)s::interval
        ORDER BY wake_at
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT job_id, kind, started_at, true AS is_waiting
        FROM pgqueue_step
        WHERE event_name IS NOT NULL AND finished_at IS NULL
        ORDER BY event_name, event_key, job_id
        LIMIT %(limit)s
    )
) AS step
LEFT JOIN LATERAL (
    SELECT id, queue_name FROM pgqueue_job WHERE id = step.job_id AND state = 'ready' LIMIT 1
) AS job ON true
GROUP BY GROUPING SETS ((job.queue_name, step.kind), ())
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
# Return also the age of the oldest open batch.
#
# Index: pgqueue_batch_incomplete, pgqueue_batch_unsettled
# Cost:  at most `limit` entries of each index, the newest ones, and `limit` of the first one again, the oldest ones
BATCHES_BY_STATE: Final = """/* pgqueue:batches_by_state */
SELECT incomplete.open, incomplete.closed, failed.count, oldest.age
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
CROSS JOIN (
    SELECT coalesce(date_part(
        'epoch', statement_timestamp() + %(time_shift)s::interval - min(created_at) FILTER (WHERE closed_at IS NULL)
    ), 0) AS age
    FROM (
        SELECT created_at, closed_at FROM pgqueue_batch WHERE completed_at IS NULL ORDER BY id LIMIT %(limit)s
    ) AS oldest_incomplete
) AS oldest
"""


class SuspendedJobs(NamedTuple):
    """The suspended jobs of one queue and one kind of step: how many, and the seconds since the oldest step began."""

    jobs: int
    oldest_seconds: float


class BatchFigures(NamedTuple):
    """The number of batches by state, and the age of the oldest open one, or 0."""

    by_state: dict[str, int]
    oldest_open_seconds: float


class SuspendedFigures(NamedTuple):
    """The suspended jobs: how many, and by queue and kind of their step, which is "sleep", "event" or "step"."""

    jobs: Count
    by_kind: dict[tuple[str, str], SuspendedJobs]


def suspended_jobs(database: str | None = None) -> SuspendedFigures:
    """Count the suspended jobs. Runs one read-only statement. Of each kind, at most 10,000 steps are read."""
    total, by_kind = NONE, {}
    for is_total, queue_name, kind, count, age, is_cut in execute(
        connection_of(database), SUSPENDED_JOBS, {"limit": LIMIT}
    ):
        if is_total:
            total = Count(count, not is_cut)
        elif count:
            by_kind[queue_name, kind] = SuspendedJobs(count, max(0.0, age))
    return SuspendedFigures(total, by_kind)


def unreceived_events(database: str | None = None) -> int:
    """Return how many of the newest 10,000 events no job has received. Runs one read-only statement."""
    return int(execute(connection_of(database), UNRECEIVED_EVENTS, {"limit": LIMIT})[0][0])


def batch_figures(database: str | None = None) -> BatchFigures:
    """Return the number of open, running and failed batches, among the newest 10,000 of each. Runs one statement.

    The oldest open batch is searched among the oldest 10,000 that are not complete.
    """
    [(opened, running, failed, age)] = execute(connection_of(database), BATCHES_BY_STATE, {"limit": LIMIT})
    return BatchFigures({"open": opened, "running": running, "failed": failed}, max(0.0, age))
