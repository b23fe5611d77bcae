"""Statements that archive finished jobs and erase their values."""

from typing import Final

from django_pgqueue.ground.erasure_grants import HAS_GRANTS

from .clauses import FREE, LINES_OF_FREE

# A job with all that belongs to it.
DOCUMENT: Final = """    json_build_object(
        'id', id, 'task_name', task_name, 'queue_name', queue_name, 'priority', priority, 'state', state,
        'arguments', arguments, 'headers', headers, 'result', result,
        'attempt', attempt, 'max_attempts', max_attempts, 'crashes', crashes, 'isolated', isolated,
        'enqueued_at', enqueued_at, 'run_after', run_after, 'finished_at', finished_at,
        'acknowledged_at', acknowledged_at, 'cancel_requested_at', cancel_requested_at,
        'unknown_since', unknown_since, 'expires_at', expires_at,
        'unique_key', unique_key, 'unique_ready_only', unique_ready_only,
        'limit_key', limit_key, 'limit_weight', limit_weight, 'limit_order', limit_order,
        'batch_id', batch_id, 'in_graph', in_graph, 'dependencies', (
            SELECT coalesce(json_agg(json_build_object(
                'needs_id', needs_id, 'policy', policy, 'has_cancelled', has_cancelled
            ) ORDER BY needs_id), '[]')
            FROM pgqueue_dependency
            WHERE job_id = job.id
        ),
        'progress_done', progress_done, 'progress_total', progress_total,
        'progress_message', progress_message, 'progress_at', progress_at,
        'executions', (
            SELECT coalesce(json_agg(json_build_object(
                'id', id, 'attempt', attempt, 'worker_id', worker_id, 'outcome', outcome,
                'claimed_at', claimed_at, 'started_at', started_at, 'finished_at', finished_at,
                'lease_expires_at', lease_expires_at, 'exception_class', exception_class, 'error', error,
                'traceback', traceback, 'limit_key', limit_key, 'limit_weight', limit_weight,
                'log', (SELECT json_build_object(
                    'first_lines', first_lines, 'last_lines', last_lines, 'cut_lines', cut_lines
                ) FROM pgqueue_execution_log WHERE execution_id = execution.id)
            ) ORDER BY id), '[]')
            FROM pgqueue_execution AS execution
            WHERE job_id = job.id
        ),
        'steps', (
            SELECT coalesce(json_agg(json_build_object(
                'name', name, 'position', position, 'kind', kind, 'attempt', attempt, 'tries', tries,
                'result', result, 'error', error, 'started_at', started_at, 'finished_at', finished_at,
                'wake_at', wake_at, 'event_name', event_name, 'event_key', event_key, 'event_id', event_id
            ) ORDER BY position, name), '[]')
            FROM pgqueue_step
            WHERE job_id = job.id
        ),
        'acts', (
            SELECT coalesce(json_agg(json_build_object(
                'audit_id', audit_id, 'action', act.action, 'done_by', act.done_by, 'reason', act.reason,
                'began_at', act.began_at, 'detail', detail
            ) ORDER BY audited.id), '[]')
            FROM pgqueue_audit_job AS audited
            CROSS JOIN LATERAL (
                SELECT action, done_by, reason, began_at FROM pgqueue_audit WHERE id = audited.audit_id
            ) AS act
            WHERE job_id = job.id
        )
    )"""

# Copy these jobs with their executions and kept log lines to the archive table.
#
# Caller: lifecycle.history.archive(), between LOCK_FINISHED and REMOVE
# Index:  primary keys, pgqueue_execution_job, pgqueue_audit_job_once. The statement looks up the key of
#         pgqueue_execution_log for each execution
ARCHIVE: Final = """/* pgqueue:archive */
INSERT INTO pgqueue_archived_job (
    job_id, task_name, queue_name, state, enqueued_at, finished_at, archived_at, document
)
SELECT
    id, task_name, queue_name, state, enqueued_at, finished_at,
    statement_timestamp() + %(time_shift)s::interval,
""" + DOCUMENT + """
FROM pgqueue_job AS job
WHERE id = ANY (%(job_ids)s::bigint[])
"""  # fmt: skip

# Return each of these jobs as one line of JSON. A line end in JSON text can only be between two tokens, so replacing it
# by a space changes no value.
#
# Caller: lifecycle.history.read_for_archive(), after LOCK_FINISHED
# Index:  as ARCHIVE
READ_FOR_ARCHIVE: Final = """/* pgqueue:read_for_archive */
SELECT
    id,
    finished_at,
    translate(
""" + DOCUMENT + """::text,
        chr(10) || chr(13), '  '
    )
FROM pgqueue_job AS job
WHERE id = ANY (%(job_ids)s::bigint[])
ORDER BY id
"""  # fmt: skip

# A limit key without its value.
ERASED_KEY: Final = """            CASE WHEN strpos(limit_key, ':') > 0 AND left(limit_key, 1) <> '+'
                THEN split_part(limit_key, ':', 1) || ':[erased]' ELSE limit_key END"""

# Erase values of these jobs, if they are as they were seen, and add the jobs to the entry of the audit. The details of
# an act describe arguments of this job, also on the rows of the act's other jobs, so they are removed from all of them.
#
# A result stays while a job of the workflow is unfinished, because that job can need it. If only dead and cancelled
# jobs are left, a retry would need it too. But an erasure must not depend on a retry that may never come.
#
# The value of a limit key is made of arguments, so it goes with them, and the name of the limit stays. A dead job that
# blocks an ordered key keeps its key, because otherwise the later jobs of the key would run. A chunk key has no value.
#
# Moves:  none: the jobs stay finished
# Caller: lifecycle.history.erase()
# Locks:  SKIP LOCKED, as ARCHIVE
# Index:  primary keys, pgqueue_execution_job, pgqueue_audit_job_once, pgqueue_audit_job_entry
ERASE: Final = """/* pgqueue:erase */
WITH seen AS MATERIALIZED (
    SELECT id, instant::timestamptz AS finished_at
    FROM unnest(%(job_ids)s::bigint[], %(seen_instants)s::text[]) AS given (id, instant)
),
old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_job AS job
    WHERE id = ANY (%(job_ids)s::bigint[])
      AND ((id, finished_at) IN (SELECT id, finished_at FROM seen)) IS true
      AND (
          NOT %(erases_results)s::boolean
          OR job.in_graph IS NULL
          OR (
              SELECT true
              FROM pgqueue_job AS other
              WHERE other.batch_id = job.batch_id AND other.state = ANY ('{waiting,ready,running}'::varchar[])
              LIMIT 1
          ) IS NULL
      )
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
""" + FREE + """,
silenced AS (
    UPDATE pgqueue_execution
    SET error = CASE WHEN %(erases_errors)s::boolean AND error <> '' THEN '[erased]' ELSE error END,
        traceback = CASE WHEN %(erases_errors)s::boolean THEN '' ELSE traceback END,
        limit_key = CASE WHEN %(erases_arguments)s::boolean THEN
""" + ERASED_KEY + """
            ELSE limit_key END
    WHERE job_id = ANY (ARRAY (SELECT id FROM free))
      AND ((%(erases_errors)s::boolean AND (error <> '' OR traceback <> ''))
           OR (%(erases_arguments)s::boolean AND strpos(limit_key, ':') > 0))
),
unlogged AS (
    DELETE FROM pgqueue_execution_log AS log
    WHERE %(erases_logs)s::boolean AND """ + LINES_OF_FREE + """
),
unkeyed AS (
    DELETE FROM pgqueue_search_key WHERE %(erases_arguments)s::boolean AND job_id = ANY (ARRAY (SELECT id FROM free))
),
unstepped AS (
    UPDATE pgqueue_step
    SET result = CASE WHEN %(erases_results)s::boolean AND result IS NOT NULL THEN %(erased)s::json ELSE result END,
        error = CASE WHEN %(erases_errors)s::boolean AND error <> '' THEN '[erased]' ELSE error END,
        event_key = CASE WHEN %(erases_arguments)s::boolean AND event_key <> '' THEN '[erased]' ELSE event_key END
    WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
erased AS (
    UPDATE pgqueue_job
    SET arguments = CASE WHEN %(erases_arguments)s::boolean THEN %(erased)s::json ELSE arguments END,
        headers = CASE WHEN %(erases_arguments)s::boolean THEN NULL ELSE headers END,
        unique_key = CASE WHEN %(erases_arguments)s::boolean THEN NULL ELSE unique_key END,
        limit_key = CASE WHEN NOT %(erases_arguments)s::boolean OR state = 'dead' AND limit_order = 2 THEN limit_key
            ELSE
""" + ERASED_KEY + """
            END,
        result = CASE WHEN %(erases_results)s::boolean AND result IS NOT NULL THEN %(erased)s::json ELSE result END,
        progress_message = CASE WHEN %(erases_results)s::boolean THEN NULL ELSE progress_message END
    WHERE id = ANY (ARRAY (SELECT id FROM free))
    RETURNING id
),
described AS (
    UPDATE pgqueue_audit_job
    SET detail = NULL
    WHERE %(erases_arguments)s::boolean
      AND audit_id = ANY (ARRAY (
          SELECT audit_id
          FROM pgqueue_audit_job
          WHERE job_id = ANY (ARRAY (SELECT id FROM free)) AND detail IS NOT NULL
      ))
      AND detail IS NOT NULL
),
audited AS (
    INSERT INTO pgqueue_audit_job (audit_id, job_id)
    SELECT %(audit_id)s::bigint, id FROM erased
    ON CONFLICT (job_id, audit_id) DO NOTHING
    RETURNING job_id
),
counted AS (
    UPDATE pgqueue_audit
    SET job_count = job_count + (SELECT count(*) FROM audited)
    WHERE id = %(audit_id)s::bigint
)
SELECT id FROM erased
"""  # fmt: skip

# The next batches that have completed or failed, with the callbacks that were used before a time, as text. A callback
# that was not called is left out while a job of the batch or of a nested one is unfinished: somebody has retried it,
# and its end can call the callback.
#
# Caller: lifecycle.history.used_callbacks(), page by page, from an erasure
# Index:  pgqueue_batch_pkey, pgqueue_batch_parent, pgqueue_job_batch
USED_CALLBACKS: Final = """/* pgqueue:used_callbacks */
SELECT batch.id,
       CASE
           WHEN coalesce(completed_at, failed_at) < %(before_at)s::timestamptz
                AND (failed_at IS NOT NULL OR retried.is_unfinished IS NULL)
           THEN on_failure::text
       END,
       CASE WHEN completed_at < %(before_at)s::timestamptz THEN on_complete::text END,
       CASE
           WHEN completed_at < %(before_at)s::timestamptz
                AND (succeeded_at IS NOT NULL OR retried.is_unfinished IS NULL)
           THEN on_success::text
       END
FROM pgqueue_batch AS batch
LEFT JOIN LATERAL (
    WITH RECURSIVE tree AS (
        SELECT batch.id
        UNION ALL
        SELECT nested.id
        FROM tree
        CROSS JOIN LATERAL (SELECT id FROM pgqueue_batch WHERE parent_id = tree.id OFFSET 0) AS nested
    )
    SELECT true AS is_unfinished
    FROM tree
    WHERE (
        SELECT true FROM pgqueue_job WHERE batch_id = tree.id AND state IN ('waiting', 'ready', 'running') LIMIT 1
    )
    LIMIT 1
) AS retried ON true
WHERE batch.id > %(after_id)s::bigint
ORDER BY batch.id
LIMIT %(limit)s::bigint
"""

# Replace callbacks of batches by erased ones. NULL keeps a callback.
#
# Caller: lifecycle.history.erase_callbacks()
# Locks:  waits for a transaction that is ending one of these batches
# Index:  pgqueue_batch_pkey
ERASE_CALLBACKS: Final = """/* pgqueue:erase_callbacks */
UPDATE pgqueue_batch AS batch
SET on_failure = coalesce(given.on_failure::json, batch.on_failure),
    on_complete = coalesce(given.on_complete::json, batch.on_complete),
    on_success = coalesce(given.on_success::json, batch.on_success)
FROM unnest(
    %(batch_ids)s::bigint[], %(on_failure)s::text[], %(on_complete)s::text[], %(on_success)s::text[]
) AS given (id, on_failure, on_complete, on_success)
WHERE batch.id = given.id
"""

# The tasks and the stored arguments of jobs.
#
# Caller: lifecycle.history.calls_of(), from an erasure of these jobs
# Index:  the primary key
CALLS_OF: Final = """/* pgqueue:calls_of */
SELECT task_name, arguments::text FROM pgqueue_job WHERE id = ANY (%(job_ids)s::bigint[])
"""

# Whether the role of this session may run ERASE and ERASE_CALLBACKS.
#
# Caller: lifecycle.history.may_erase(), before each batch of a bulk act that erases values
MAY_ERASE: Final = """/* pgqueue:may_erase */
SELECT """ + HAS_GRANTS + """
FROM (SELECT current_user AS name) AS role
"""  # fmt: skip
