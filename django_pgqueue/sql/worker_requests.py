"""Statements on the requests of operators to running workers, and on the answers."""

from typing import Final

# Add a request to a worker that runs under a supervisor. Return its id, the host and pid of the worker, and the job of
# the execution if the worker has claimed it. If the same request waits for its answer, return nothing. `supervisor_pid`
# is NULL for a worker that answers no requests.
#
# Caller: lifecycle.worker_requests.request_of_worker()
# Locks:  the entry of the unique index, so that a double click adds one request
# Index:  primary keys of workers and executions; pgqueue_worker_request_open
ADD_REQUEST: Final = """/* pgqueue:add_request */
WITH asked AS MATERIALIZED (
    SELECT id, hostname, pid
    FROM pgqueue_worker
    WHERE id = %(worker_id)s::bigint AND stopped_at IS NULL AND supervisor_pid IS NOT NULL
),
added AS (
    INSERT INTO pgqueue_worker_request (worker_id, kind, execution_id, requested_at, requested_by)
    SELECT id, %(kind)s, %(execution_id)s::bigint, statement_timestamp() + %(time_shift)s::interval, %(by)s
    FROM asked
    ON CONFLICT (worker_id, kind, execution_id) WHERE answered_at IS NULL DO NOTHING
    RETURNING id
)
SELECT
    added.id, asked.hostname, asked.pid,
    (
        SELECT job_id
        FROM pgqueue_execution
        WHERE id = %(execution_id)s::bigint AND worker_id = %(worker_id)s::bigint
    )
FROM added
CROSS JOIN asked
"""

# Return the request of this kind that waits for its answer.
#
# Caller: lifecycle.worker_requests.open_request(), after ADD_REQUEST added none
# Index:  pgqueue_worker_request_open
OPEN_REQUEST: Final = """/* pgqueue:open_request */
SELECT id
FROM pgqueue_worker_request
WHERE worker_id = %(worker_id)s AND answered_at IS NULL AND kind = %(kind)s
  AND execution_id = %(execution_id)s
"""

# Return the requests to one worker that wait for their answer, oldest first.
#
# Caller: lifecycle.worker_requests.open_requests(), from a worker process after a notification or a heartbeat that
#         announces one, and while it polls for requests to cancel its running jobs
# Index:  pgqueue_worker_request_open, which is empty unless a request waits
WORKER_REQUESTS: Final = """/* pgqueue:worker_requests */
SELECT id, kind, execution_id, requested_by
FROM pgqueue_worker_request
WHERE worker_id = %(worker_id)s AND answered_at IS NULL
ORDER BY id
LIMIT %(limit)s
"""

# Store the answer to a request. An answer that is there already stays.
#
# Caller: lifecycle.worker_requests.answer_request()
# Index:  primary key
ANSWER_REQUEST: Final = """/* pgqueue:answer_request */
UPDATE pgqueue_worker_request
SET answered_at = statement_timestamp() + %(time_shift)s::interval, answer = %(answer)s
WHERE id = %(request_id)s AND answered_at IS NULL
"""

# Remove old requests, answered or not.
#
# Caller: lifecycle.worker_requests.prune_worker_requests(), once an hour
# Index:  primary key. The table has one row for each request of the last day.
PRUNE_WORKER_REQUESTS: Final = """/* pgqueue:prune_worker_requests */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_worker_request
    WHERE requested_at < statement_timestamp() + %(time_shift)s::interval
        - make_interval(secs => %(retention_seconds)s::float8)
      AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
    ORDER BY id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
)
DELETE FROM pgqueue_worker_request WHERE id = ANY (ARRAY (SELECT id FROM old))
"""
