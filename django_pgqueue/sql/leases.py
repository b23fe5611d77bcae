"""Statements on leases and open executions: extend leases, list open executions, and find those to cancel."""

from typing import Final

# Extend the leases of these workers, and record a heartbeat and their memory. Return the ids that have a record,
# whether the worker has a request that it has not answered, and whether its lease was extended. It was not if another
# session has locked the record.
#
# Moves:  running, unchanged: all open executions of a worker have its lease
# Caller: lifecycle.leases.extend(), from the supervisor's heartbeat
# Locks:  SKIP LOCKED
# Index:  primary key; pgqueue_worker_request_open, which has entries for unanswered requests only
# Cost:   one row for each worker process, however many jobs it runs. A lock on the jobs or on the executions, as a
#         migration takes it, does not delay this statement
EXTEND: Final = """/* pgqueue:extend */
WITH mine AS MATERIALIZED (
    SELECT id FROM pgqueue_worker WHERE id = ANY (%(worker_ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
),
extended AS (
    UPDATE pgqueue_worker
    SET last_heartbeat_at = statement_timestamp() + %(time_shift)s::interval,
        lease_expires_at =
            statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(lease_seconds)s::float8),
        resident_mib = (%(resident_mib)s::integer[])[array_position(%(worker_ids)s::bigint[], id)]
    WHERE id = ANY (ARRAY (SELECT id FROM mine))
    RETURNING id
)
SELECT worker.id,
       EXISTS (
           SELECT FROM pgqueue_worker_request AS request
           WHERE request.worker_id = worker.id AND request.answered_at IS NULL
       ),
       worker.id IN (SELECT id FROM extended)
FROM pgqueue_worker AS worker
WHERE worker.id = ANY (%(worker_ids)s::bigint[])
"""

# Mark prefetched executions that have started. Only started jobs are charged with a crash if their worker is lost. The
# completion writes the exact start time.
#
# Moves:  running, unchanged
# Caller: lifecycle.leases.note_started(), after a heartbeat
# Fence:  outcome IS NULL, and the worker
# Locks:  SKIP LOCKED. A locked execution is being completed
# Index:  primary key
NOTE_STARTED: Final = """/* pgqueue:note_started */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_execution
    WHERE id = ANY (%(execution_ids)s::bigint[])
      AND worker_id = ANY (%(worker_ids)s::bigint[])
      AND started_at IS NULL
      AND outcome IS NULL
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_execution
SET started_at = statement_timestamp() + %(time_shift)s::interval
WHERE id = ANY (ARRAY (SELECT id FROM mine))
"""

# Extend the leases of the given executions, which run on remote workers, each by its own time.
#
# Moves:  running, unchanged
# Caller: lifecycle.leases.extend_executions()
# Fence:  id and time of the claim, outcome IS NULL
# Locks:  SKIP LOCKED. A locked execution is being completed
# Index:  primary key
EXTEND_EACH: Final = """/* pgqueue:extend_each */
WITH mine AS MATERIALIZED (
    SELECT locked.id, given.lease_seconds
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(leases_seconds)s::float8[]
    ) AS given (id, claimed_ms, lease_seconds)
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
SET lease_expires_at = statement_timestamp() + %(time_shift)s::interval + make_interval(secs => mine.lease_seconds)
FROM mine
WHERE execution.id = mine.id
RETURNING execution.id
"""

# Return the open executions of these workers whose jobs have a cancellation request.
#
# Caller: lifecycle.leases.cancel_requests(), from a worker process that has jobs in flight
# Index:  pgqueue_job_running, starting at the oldest execution in flight
CANCEL_REQUESTS: Final = """/* pgqueue:cancel_requests */
SELECT mine.worker_id, mine.execution_id
FROM unnest(%(worker_ids)s::bigint[]) AS worker (id)
CROSS JOIN LATERAL (
    SELECT worker_id, execution_id, cancel_requested_at
    FROM pgqueue_job
    WHERE state = 'running' AND worker_id = worker.id AND execution_id >= %(first_id)s
    ORDER BY worker_id, execution_id
    OFFSET 0
) AS mine
WHERE mine.cancel_requested_at IS NOT NULL
"""

# Return the open executions of one worker, with the values that the retry policy needs.
#
# Caller: lifecycle.leases.open_executions(), from the lease monitor, and from the supervisor for a child process that
#         died
# Index:  pgqueue_job_running, and the primary key of the executions
OPEN_EXECUTIONS: Final = """/* pgqueue:open_executions */
SELECT execution.id, job.id, job.task_name, job.queue_name, job.attempt, job.max_attempts, job.crashes,
       execution.started_at IS NOT NULL, floor(1000 * date_part('epoch', execution.claimed_at))::bigint,
       execution.limit_key
FROM (
    SELECT id, task_name, queue_name, attempt, max_attempts, crashes, execution_id
    FROM pgqueue_job
    WHERE state = 'running' AND worker_id = %(worker_id)s
    ORDER BY worker_id, execution_id
    OFFSET 0
) AS job
CROSS JOIN LATERAL (
    SELECT id, started_at, claimed_at, limit_key
    FROM pgqueue_execution
    WHERE id = job.execution_id AND outcome IS NULL
    OFFSET 0
) AS execution
ORDER BY execution.id
"""
