"""Statements that read the stored calls of jobs, schedules and callbacks, to compare them with new code."""

from typing import Final

from .clauses import RUNNING_PAGE, UNSETTLED_PAGE

# The ready jobs of one lane, in the order of claims: those that are due, those due later, and those to be retried.
#
# Caller: lifecycle.stored_calls.ready_calls(), page by page
# Index:  pgqueue_job_ready
READY_CALLS: Final = """/* pgqueue:ready_calls */
SELECT run_after, id
FROM pgqueue_job
WHERE state = 'ready'
  AND limit_key IS NULL
  AND queue_name = %(queue_name)s
  AND priority = %(priority)s::smallint
  AND (run_after, id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)
ORDER BY run_after, id
LIMIT %(limit)s::bigint
"""

# The ready jobs of one lane that have a limit, in the order of their keys.
#
# Caller: lifecycle.stored_calls.ready_calls()
# Index:  pgqueue_job_limited
READY_LIMITED_CALLS: Final = """/* pgqueue:ready_limited_calls */
SELECT limit_key, run_after, id
FROM pgqueue_job
WHERE state = 'ready'
  AND limit_key IS NOT NULL
  AND queue_name = %(queue_name)s
  AND priority = %(priority)s::smallint
  AND (limit_key, run_after, id) > (%(after_key)s::varchar, %(after_at)s::timestamptz, %(after_id)s::bigint)
ORDER BY limit_key, run_after, id
LIMIT %(limit)s::bigint
"""

# The jobs that run. A worker that is stopped releases them, and a worker of the new release then runs them.
#
# Caller: lifecycle.stored_calls.running_calls()
# Index:  pgqueue_job_running
RUNNING_CALLS: Final = """/* pgqueue:running_calls */
SELECT worker_id, execution_id, id
""" + RUNNING_PAGE + """
"""  # fmt: skip

# The jobs of workflows that wait for other jobs, the oldest first.
#
# Caller: lifecycle.stored_calls.waiting_calls()
# Index:  pgqueue_job_waiting
WAITING_CALLS: Final = """/* pgqueue:waiting_calls */
SELECT id FROM pgqueue_job WHERE state = 'waiting' AND id > %(after_id)s::bigint ORDER BY id LIMIT %(limit)s::bigint
"""

# The dead letters, the newest first. Nobody wants to run acknowledged jobs.
#
# Caller: lifecycle.stored_calls.dead_calls()
# Index:  pgqueue_job_dead. The condition on `finished_at` alone lets the index begin at the right entry
DEAD_CALLS: Final = """/* pgqueue:dead_calls */
SELECT finished_at, id
FROM pgqueue_job
WHERE state = 'dead'
  AND finished_at IS NOT NULL
  AND acknowledged_at IS NULL
  AND finished_at <= %(before_at)s::timestamptz
  AND (finished_at, id) < (%(before_at)s::timestamptz, %(before_id)s::bigint)
ORDER BY finished_at DESC, id DESC
LIMIT %(limit)s::bigint
"""

# A clause: the word for the state of a job.
KIND: Final = """CASE
                WHEN state <> 'ready' THEN state
                WHEN attempt > 0 THEN 'retrying'
                WHEN run_after > statement_timestamp() + %(time_shift)s::interval THEN 'scheduled'
                ELSE 'due'
            END"""

# The shapes of the calls of these jobs: how many positional arguments, and which names of keyword arguments. Each shape
# has the number of its jobs and one of them. Jobs whose arguments are not plain JSON of a call have no shape here
# (`positional` is NULL), and all their ids are returned: Python reads them.
#
# Caller: lifecycle.stored_calls.call_shapes()
# Index:  the primary key
CALL_SHAPES: Final = """/* pgqueue:call_shapes */
SELECT
    task_name,
    kind,
    positional,
    names,
    count(*),
    CASE WHEN positional IS NULL THEN array_agg(id ORDER BY id) ELSE ARRAY[min(id)] END
FROM (
    SELECT
        call.id,
        call.task_name,
        call.kind,
        call.positional,
        CASE WHEN call.positional IS NOT NULL THEN
            ARRAY (SELECT DISTINCT name FROM json_object_keys(call.arguments -> 'kwargs') AS name ORDER BY name)
        END AS names
    FROM (
        SELECT
            id,
            task_name,
            arguments,
            """ + KIND + """ AS kind,
            CASE
                WHEN json_typeof(arguments) = 'object'
                    AND json_typeof(arguments -> 'args') = 'array'
                    AND json_typeof(arguments -> 'kwargs') = 'object'
                THEN json_array_length(arguments -> 'args')
            END AS positional
        FROM pgqueue_job
        WHERE id = ANY (%(job_ids)s::bigint[]) AND state IN ('ready', 'waiting', 'running', 'dead')
    ) AS call
) AS shape
GROUP BY task_name, kind, positional, names
"""  # fmt: skip

# The stored arguments of these jobs as text: as a sample of a shape, and where SQL cannot read the shape.
#
# Caller: lifecycle.stored_calls.read_calls()
# Index:  the primary key
STORED_CALLS: Final = """/* pgqueue:stored_calls */
SELECT
    id,
    task_name,
    """ + KIND + """,
    arguments::text
FROM pgqueue_job
WHERE id = ANY (%(job_ids)s::bigint[]) AND state IN ('ready', 'waiting', 'running', 'dead')
"""  # fmt: skip

# The calls of the stored schedules.
#
# Caller: lifecycle.stored_calls.scheduled_calls()
# Index:  the primary key
SCHEDULED_CALLS: Final = """/* pgqueue:scheduled_calls */
SELECT id, name, origin = 'code', enabled, task_name, arguments::text
FROM pgqueue_schedule
WHERE id > %(after_id)s::bigint
ORDER BY id
LIMIT %(limit)s::bigint
"""

# The next compensations that are neither enqueued nor forgotten.
#
# Caller: lifecycle.stored_calls.pending_compensations()
# Index:  pgqueue_step_compensation
PENDING_COMPENSATIONS: Final = """/* pgqueue:pending_compensations */
SELECT job_id, compensation ->> 'task_name', compensation_arguments::text
FROM pgqueue_step
WHERE compensation IS NOT NULL AND job_id > %(after_id)s::bigint
ORDER BY job_id
FETCH FIRST (%(limit)s::bigint) ROWS WITH TIES
"""

# The queues of the jobs that batches which have not succeeded, and compensations, can still add.
#
# Caller: lifecycle.stored_calls.queues_of_calls(), from `pgqueue adopt`
# Index:  pgqueue_batch_unsettled, pgqueue_step_compensation
QUEUES_OF_CALLS: Final = """/* pgqueue:queues_of_calls */
SELECT call ->> 'queue_name'
FROM pgqueue_batch
CROSS JOIN LATERAL unnest(ARRAY[on_failure, on_complete, on_success]) AS call
WHERE succeeded_at IS NULL AND call IS NOT NULL
UNION
SELECT compensation ->> 'queue_name' FROM pgqueue_step WHERE compensation IS NOT NULL
"""

# The next batches that have not succeeded, with their callbacks that can still be called, as text: PostgreSQL does not
# read every escape sequence that JSON has.
#
# Caller: lifecycle.stored_calls.pending_callbacks()
# Index:  pgqueue_batch_unsettled
PENDING_CALLBACKS: Final = """/* pgqueue:pending_callbacks */
SELECT id,
       CASE WHEN failed_at IS NULL THEN on_failure::text END,
       CASE WHEN completed_at IS NULL THEN on_complete::text END,
       on_success::text
""" + UNSETTLED_PAGE + """
"""  # fmt: skip
