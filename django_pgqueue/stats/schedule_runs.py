"""Read the latest runs of schedules, and count how many of their jobs died in a row.

The admin and `manage.py pgqueue schedules` call this module. The cost is bounded, however long the history is: a fixed
number of ticks of each schedule, with their jobs. A job that was removed leaves only its number. Nobody knows how it
ended, so no count goes on behind it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final, NamedTuple

from django_pgqueue.db.statements import Connection, execute, numbers
from django_pgqueue.ground.attempt_ends import is_lost
from django_pgqueue.states import State

from .answers import Count

RUNS_SHOWN: Final = 10
"""Runs of each schedule that are shown, and the highest count of failures in a row."""
RUNS_READ: Final = RUNS_SHOWN + 1
"""One more shows whether there are older runs."""

# Return the latest ticks of schedules with their jobs, the latest first. The state is NULL if the job was removed or if
# the tick was skipped. With `with_attempts`, return of each job's latest attempt the outcome, the start of the error,
# whether it is open and its lease is over, the seconds since its start, and the exception class.
#
# Index: pgqueue_schedulerun_tick, pgqueue_job_pkey, pgqueue_execution_job, pgqueue_worker_pkey
# Cost:  `limit` ticks of each schedule, and one to three probes for each tick
RUNS_OF_SCHEDULES: Final = """/* pgqueue:runs_of_schedules */
SELECT wanted.id, run.tick_at, run.job_id, job.state, coalesce(job.is_acknowledged, false),
       latest.outcome, coalesce(left(latest.error, 500), ''),
       coalesce(
           latest.outcome IS NULL
               AND greatest(
                   latest.lease_expires_at,
                   (SELECT lease_expires_at FROM pgqueue_worker WHERE id = latest.worker_id LIMIT 1)
               ) < statement_timestamp() + %(time_shift)s::interval,
           false
       ),
       date_part('epoch', coalesce(latest.finished_at, statement_timestamp() + %(time_shift)s::interval)
           - latest.started_at),
       coalesce(latest.exception_class, ''), run.skipped_by
FROM unnest(%(schedule_ids)s::bigint[]) AS wanted (id)
CROSS JOIN LATERAL (
    SELECT tick_at, job_id, skipped_by
    FROM pgqueue_schedulerun
    WHERE schedule_id = wanted.id
    ORDER BY tick_at DESC
    LIMIT %(limit)s
) AS run
LEFT JOIN LATERAL (
    SELECT state, acknowledged_at IS NOT NULL AS is_acknowledged FROM pgqueue_job WHERE id = run.job_id LIMIT 1
) AS job ON true
LEFT JOIN LATERAL (
    SELECT worker_id, outcome, error, lease_expires_at, started_at, finished_at, exception_class
    FROM pgqueue_execution
    WHERE job_id = run.job_id AND job.state IS NOT NULL AND %(with_attempts)s::boolean
    ORDER BY job_id DESC, id DESC
    LIMIT 1
) AS latest ON true
ORDER BY wanted.id, run.tick_at DESC
"""


class PastRun(NamedTuple):
    """A tick of a schedule, its job, and the latest attempt at the job.

    `job_id` is None if the tick was skipped, and `state` is None if the job no longer exists. `ran_seconds` is None if
    no attempt has started, or if the latest attempt was lost (`is_lost`).
    """

    tick_at: datetime
    job_id: int | None
    state: str | None
    ran_seconds: float | None
    exception_class: str
    is_lost: bool = False
    is_acknowledged: bool = False
    skipped_by: str | None = None
    """The operator who skipped it before it came; "" if the name is not known. None: no operator did."""
    error: str = ""
    """The start of the error of the latest attempt."""

    @property
    def is_removed(self) -> bool:
        """Whether the job was removed, so that nobody knows how it ended."""
        return self.job_id is not None and self.state is None


def past_runs(
    connection: Connection, schedule_ids: Collection[int], *, with_attempts: bool = False
) -> dict[int, list[PastRun]]:
    """Return the latest `RUNS_READ` runs of schedules by the ids of the schedules, the latest run first.

    Runs one read-only statement, or none without schedules. Without `with_attempts`, the fields of the attempt are
    empty.
    """
    found: dict[int, list[PastRun]] = {schedule_id: [] for schedule_id in schedule_ids}
    if found:
        params = {"schedule_ids": numbers(found), "limit": RUNS_READ, "with_attempts": with_attempts}
        for schedule_id, tick_at, job_id, state, is_acknowledged, *attempt in execute(
            connection, RUNS_OF_SCHEDULES, params
        ):
            outcome, error, is_expired, seconds, exception_class, skipped_by = attempt
            lost = is_lost(outcome, error, is_expired=is_expired)
            ran_seconds = None if lost else seconds
            run = PastRun(
                tick_at, job_id, state, ran_seconds, exception_class, lost, is_acknowledged, skipped_by, error
            )
            found[schedule_id].append(run)
    return found


def failed_in_a_row(runs: Sequence[PastRun]) -> Count:
    """Return how many of the latest jobs of a schedule died, up to its latest success.

    Unfinished, cancelled and acknowledged jobs and skipped ticks are left out. The count is a lower bound if it stops
    at a job that was removed, or at `RUNS_SHOWN`, or at the oldest run that was read.
    """
    dead = 0
    is_exact = len(runs) < RUNS_READ
    for run in runs:
        if run.is_removed or run.state == State.SUCCEEDED:
            is_exact = not run.is_removed
            break
        dead += run.state == State.DEAD and not run.is_acknowledged
    return Count(min(dead, RUNS_SHOWN), is_exact)
