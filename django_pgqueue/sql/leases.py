"""Statements on open executions: extend their leases, list them, and find those to cancel."""

from typing import Final

# Extend the leases, and mark the executions that have started.
EXTENSION: Final = """    SET lease_expires_at =
            statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(lease_seconds)s::float8),
        started_at = CASE
            WHEN execution.started_at IS NULL AND execution.id = ANY (%(started_ids)s::bigint[])
            THEN statement_timestamp() + %(time_shift)s::interval
            ELSE execution.started_at
        END
    FROM mine
    WHERE execution.id = mine.id
    RETURNING execution.id"""

# Extend the leases of the open executions of these workers, and return all open executions.
#
# Moves:  running, unchanged
# Caller: lifecycle.extend(), from the supervisor's heartbeat
# Fence:  outcome IS NULL
# Locks:  SKIP LOCKED. A locked execution is being completed; it is returned as open and not extended
# Index:  pgqueue_execution_open, starting at the oldest id that was open at the last heartbeat
#
# `started_ids` have started by now. Only started jobs are charged with a crash if their worker is lost. The completion
# writes the exact start time.
EXTEND: Final = """/* pgqueue:extend */
WITH mine AS MATERIALIZED (
    SELECT locked.id
    FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_execution
        WHERE worker_id = worker.id
          AND id >= %(first_id)s
          AND finished_at IS NULL
          AND outcome IS NULL
        ORDER BY worker_id, id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
),
extended AS (
    UPDATE pgqueue_execution AS execution
""" + EXTENSION + """
)
SELECT open_execution.worker_id, open_execution.id, open_execution.id IN (SELECT id FROM extended)
FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
CROSS JOIN LATERAL (
    SELECT worker_id, id
    FROM pgqueue_execution
    WHERE worker_id = worker.id
      AND id >= %(first_id)s
      AND finished_at IS NULL
    ORDER BY worker_id, id
    OFFSET 0
) AS open_execution
"""  # fmt: skip

# Extend the leases of the given executions. Remote workers use this, and the heartbeat after EXTEND failed because of
# one row.
#
# Moves:  running, unchanged
# Caller: lifecycle.extend(), lifecycle.extend_each()
# Fence:  id and time of the claim, outcome IS NULL
# Locks:  as EXTEND
# Index:  primary key
EXTEND_EACH: Final = """/* pgqueue:extend_each */
WITH mine AS MATERIALIZED (
    SELECT locked.id
    FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_execution
        WHERE id = given.id
          AND floor(1000 * date_part('epoch', claimed_at)) = given.claimed_ms
          AND outcome IS NULL
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
)
UPDATE pgqueue_execution AS execution
""" + EXTENSION + """
"""  # fmt: skip

# Return the open executions of these workers whose jobs have a cancellation request.
#
# Caller: lifecycle.cancel_requests(), from a worker process that has jobs in flight
#
# OFFSET 0 keeps the two subqueries separate. If the planner could join them freely, it would scan the whole table of
# jobs when the statistics say that no job has a request.
CANCEL_REQUESTS: Final = """/* pgqueue:cancel_requests */
SELECT mine.worker_id, mine.id
FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
CROSS JOIN LATERAL (
    SELECT worker_id, id, job_id
    FROM pgqueue_execution
    WHERE worker_id = worker.id AND id >= %(first_id)s AND finished_at IS NULL
    ORDER BY worker_id, id
    OFFSET 0
) AS mine
CROSS JOIN LATERAL (
    SELECT FROM pgqueue_job WHERE id = mine.job_id AND cancel_requested_at IS NOT NULL OFFSET 0
) AS asked
"""

# Return the open executions of one worker, with the values that the retry policy needs.
#
# Caller: lifecycle.open_executions(), from the lease monitor, and from the supervisor for a child process that died
OPEN_EXECUTIONS: Final = """/* pgqueue:open_executions */
SELECT execution.id, execution.job_id, job.task_name, job.queue_name, job.attempt, job.max_attempts, job.crashes,
       execution.started_at IS NOT NULL, floor(1000 * date_part('epoch', execution.claimed_at))::bigint,
       execution.limit_key
FROM pgqueue_execution AS execution
LEFT JOIN pgqueue_job AS job ON job.id = execution.job_id
WHERE execution.worker_id = %(worker_id)s AND execution.finished_at IS NULL
ORDER BY execution.id
"""
