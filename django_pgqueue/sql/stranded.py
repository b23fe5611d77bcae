"""Statements that requeue jobs which are running without an open execution."""

from typing import Final

from .clauses import DUE_OR_ENDED

# Read a page of all jobs, by id. Return its last id, and each job that is running without an open execution.
#
# Caller: lifecycle.stranded.requeue()
# Index:  primary keys
#
# A running job has no open execution if a user has deleted the execution or changed the state, or if a trigger has
# suppressed a part of a statement. No other transition would end such a job. The index of running jobs has only those
# that a claim has made `running`, so the page reads all jobs.
#
# The subquery is scalar: the planner turned NOT EXISTS into a join that read all open executions for each running job.
ABANDONED: Final = """/* pgqueue:abandoned */
WITH page AS MATERIALIZED (
    SELECT id, state, task_name, queue_name, attempt, max_attempts, crashes, execution_id
    FROM pgqueue_job
    WHERE id > %(after_id)s
    ORDER BY id
    LIMIT %(limit)s
),
lost AS MATERIALIZED (
    SELECT id, task_name, queue_name, attempt, max_attempts, crashes
    FROM page
    WHERE state = 'running'
      AND (SELECT true FROM pgqueue_execution WHERE id = page.execution_id AND outcome IS NULL) IS NULL
)
SELECT last.id, lost.*
FROM (SELECT max(id) AS id FROM page) AS last
LEFT JOIN lost ON true
"""

# Requeue running jobs without an open execution, and record the lost attempt.
#
# Moves:  running → ready later (with a delay), dead (without one), cancelled (if a cancellation was requested)
# Caller: lifecycle.stranded.requeue()
# Fence:  running at the same attempt as ABANDONED returned: a claim since then has counted another attempt
# Locks:  the job, SKIP LOCKED
# Index:  primary key
REQUEUE: Final = """/* pgqueue:requeue */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.attempt, locked.cancelled, given.delay_seconds
    FROM unnest(%(job_ids)s::bigint[], %(attempts)s::smallint[], %(delays_seconds)s::float8[])
        AS given (id, attempt, delay_seconds)
    CROSS JOIN LATERAL (
        SELECT job.id, job.attempt, job.execution_id, job.cancel_requested_at IS NOT NULL AS cancelled
        FROM pgqueue_job AS job
        WHERE job.id = given.id AND job.state = 'running' AND job.attempt = given.attempt
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
    WHERE (SELECT true FROM pgqueue_execution WHERE id = locked.execution_id AND outcome IS NULL) IS NULL
),
recorded AS (
    INSERT INTO pgqueue_execution
        (job_id, attempt, worker_id, outcome, claimed_at, finished_at, lease_expires_at, error)
    SELECT id, attempt, %(worker_id)s, 'crashed',
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval,
           %(error)s
    FROM mine
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' WHEN mine.delay_seconds IS NULL THEN 'dead' ELSE 'ready' END,
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,
""" + DUE_OR_ENDED + """
    WHERE job.id = mine.id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' WHEN delay_seconds IS NULL THEN 'dead' ELSE 'ready' END FROM mine
"""  # fmt: skip
