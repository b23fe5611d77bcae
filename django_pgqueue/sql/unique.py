"""Statements that add jobs with a unique key."""

from typing import Final

from .clauses import DUE_AT, EXPIRES_AT, OPTIONS, TIMES, VALUES_OF_EACH

# A job that has its key. This is the predicate of pgqueue_job_unique: PostgreSQL uses the index only for a statement
# that has the same one. RETRY repeats it with the name of a table before each column.
HAS_KEY: Final = "unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))"

# The beginning of the clause for a new job whose key another job has. The action follows.
ON_TAKEN_KEY: Final = """ON CONFLICT (task_name, unique_key)
    WHERE """ + HAS_KEY  # fmt: skip

# Add one job, unless another job with its key is ready (or running, if `unique_ready_only` is NULL).
#
# Moves:  new → ready. If another session adds a job with this key in an open transaction, the statement waits. If that
#         transaction commits, no job is added
# Caller: lifecycle.unique.enqueue_unique()
# Locks:  waits for the end of an uncommitted transaction that has enqueued the same key: only its end decides which
#         session was first
# Index:  pgqueue_job_unique
ENQUEUE_UNIQUE: Final = """/* pgqueue:enqueue_unique */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     unique_key, unique_ready_only, limit_key, limit_weight, limit_order, batch_id)
VALUES (
    %(task_name)s, %(queue_name)s, %(priority)s, %(arguments)s::json, %(max_attempts)s,
""" + TIMES + """
    %(unique_key)s, %(unique_ready_only)s,
    %(limit_key)s::varchar, %(limit_weight)s::integer, %(limit_order)s::smallint, %(batch_id)s::bigint
)
""" + ON_TAKEN_KEY + """
DO NOTHING
RETURNING id, run_after, enqueued_at, expires_at
"""  # fmt: skip

# Replace the call of a ready job with the same key.
OR_REPLACE: Final = ON_TAKEN_KEY + """
    DO UPDATE
    SET arguments = excluded.arguments, run_after = excluded.run_after, expires_at = excluded.expires_at,
        headers = excluded.headers, priority = excluded.priority, max_attempts = excluded.max_attempts,
        limit_key = excluded.limit_key, limit_weight = excluded.limit_weight, limit_order = excluded.limit_order,
        batch_id = excluded.batch_id, attempt = 0, crashes = 0, unknown_since = NULL
    WHERE pgqueue_job.state = 'ready'"""  # fmt: skip

# The end of the CTE `placed`, and the removal of the steps that its jobs had.
UNSTEPPED: Final = """),
unstepped AS (
    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM placed))
)"""

# The state of the job that has the key, as `running` if its steps are still to be undone.
KEPT_STATE: Final = """        SELECT CASE
                   WHEN (
                       SELECT true FROM pgqueue_step
                       WHERE job_id = pgqueue_job.id AND compensation IS NOT NULL LIMIT 1
                   )
                   THEN 'running'
                   ELSE state
               END
        FROM pgqueue_job"""

# Add one job, or replace the call of the ready job with the same key. A running job is not changed.
#
# Moves:  new → ready; ready, unchanged
# Caller: lifecycle.unique.replace()
# Locks, Index: as ENQUEUE_UNIQUE. It also waits for a session that has locked the ready job, such as a claim that is
#         committing
# Cost:   one search in the primary key of pgqueue_step
#
# A suspended job is ready. Its steps belong to the old call, so they are removed: the job starts from the beginning. If
# the statement waits for another transaction, and the job is claimed, stores its first step and is suspended in that
# time, the snapshot does not contain this step. So the caller also runs REMOVE_STEPS, if the task can have steps.
#
# A ready job with a pending compensation counts as running: its call has effects that only its own end undoes.
#
# If the job is running, the statement does not try the INSERT. ON CONFLICT DO UPDATE would lock the job's row even
# without a change, and the worker could not complete the job until the caller's transaction ends.
ENQUEUE_OR_REPLACE: Final = """/* pgqueue:enqueue_or_replace */
WITH placed AS (
    INSERT INTO pgqueue_job
        (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
         unique_key, unique_ready_only, limit_key, limit_weight, limit_order, batch_id)
    SELECT
        %(task_name)s::varchar, %(queue_name)s, %(priority)s, %(arguments)s::json, %(max_attempts)s,
""" + TIMES + """
        %(unique_key)s::varchar, %(unique_ready_only)s::boolean,
        %(limit_key)s::varchar, %(limit_weight)s::integer, %(limit_order)s::smallint, %(batch_id)s::bigint
    WHERE (
""" + KEPT_STATE + """
        WHERE task_name = %(task_name)s::varchar AND unique_key = %(unique_key)s::varchar
          AND """ + HAS_KEY + """
    ) IS DISTINCT FROM 'running'
""" + OR_REPLACE + """
    RETURNING id, run_after, enqueued_at, expires_at
""" + UNSTEPPED + """
SELECT id, run_after, enqueued_at, expires_at FROM placed
"""  # fmt: skip

# The calls with their keys, each with its limit, its place and an id. The ids are drawn in the order of the calls,
# because workers claim in the order of ids.
CALLS: Final = """    SELECT call, limit_key, limit_weight, limit_order, place, nextval('pgqueue_job_id_seq') AS id
    FROM ROWS FROM (
        json_array_elements(%(arguments)s::json),
        json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint)
    ) WITH ORDINALITY AS each (call, limit_key, limit_weight, limit_order, place)"""

# Do what ENQUEUE_UNIQUE does, for many jobs: skip each job whose key another job has. A call with a null key is always
# added.
#
# Moves:  new → ready
# Caller: lifecycle.unique.enqueue_many_unique()
# Locks:  keys are taken in sorted order. In the order of the calls, two such statements could deadlock
#
# Each call is an object with its `call` and its `key`.
ENQUEUE_MANY_UNIQUE: Final = """/* pgqueue:enqueue_many_unique */
WITH given AS MATERIALIZED (
""" + CALLS + """
)
INSERT INTO pgqueue_job
    (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     unique_key, unique_ready_only, limit_key, limit_weight, limit_order, batch_id)
SELECT
    given.id, %(task_name)s, %(queue_name)s, %(priority)s, given.call -> 'call', %(max_attempts)s,
""" + TIMES + """
    given.call ->> 'key', CASE WHEN given.call ->> 'key' IS NOT NULL THEN %(unique_ready_only)s::boolean END,
    given.limit_key, given.limit_weight, given.limit_order, %(batch_id)s::bigint
FROM given
ORDER BY given.call ->> 'key' COLLATE "C", given.place
""" + ON_TAKEN_KEY + """
DO NOTHING
RETURNING id, unique_key
"""  # fmt: skip

# Add many jobs as ENQUEUE_MANY_UNIQUE does, each with a task and options of its own.
#
# Moves:  new → ready
# Caller: lifecycle.unique.enqueue_each_unique(), and the transitions that add jobs themselves, for ids that they have
#         drawn
# Locks:  the keys of all tasks are taken in sorted order, as by ENQUEUE_MANY_UNIQUE
#
# The calls and their options come as in ENQUEUE_EACH, and the keys as a JSON array beside the calls. The ids are
# assigned in the order of the calls, before the options are joined.
ENQUEUE_EACH_UNIQUE: Final = """/* pgqueue:enqueue_each_unique */
WITH given AS MATERIALIZED (
    SELECT arguments, key, number, limit_key, limit_weight, limit_order, place,
           coalesce(drawn_id, nextval('pgqueue_job_id_seq')) AS id
    FROM ROWS FROM (
        json_array_elements(%(arguments)s::json),
        json_array_elements_text(%(keys)s::json),
        unnest(%(numbers)s::integer[], %(job_ids)s::bigint[]),
        json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint)
    ) WITH ORDINALITY AS each (arguments, key, number, drawn_id, limit_key, limit_weight, limit_order, place)
)
INSERT INTO pgqueue_job
    (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     unique_key, unique_ready_only, limit_key, limit_weight, limit_order, batch_id)
SELECT
    given.id, """ + VALUES_OF_EACH + """
    given.key, CASE WHEN given.key IS NOT NULL THEN chosen.unique_ready_only END,
    given.limit_key, given.limit_weight, given.limit_order, chosen.batch_id
FROM given
""" + OPTIONS + """
    unique_ready_only boolean, batch_id bigint
) ON chosen.number = given.number
ORDER BY chosen.task_name COLLATE "C", given.key COLLATE "C", given.place
""" + ON_TAKEN_KEY + """
DO NOTHING
RETURNING id, task_name, unique_key
"""  # fmt: skip

# Add many jobs, or replace the calls of the ready jobs with the same keys, as ENQUEUE_OR_REPLACE does for one. Of
# several calls with the same key, only the last counts, because a statement must not write a row twice.
#
# Moves:  new → ready; ready, unchanged
# Caller: lifecycle.unique.enqueue_many_unique()
# Locks:  keys are taken in sorted order, as by ENQUEUE_MANY_UNIQUE
# Cost:   one search in the primary key of pgqueue_step for each job. Steps are removed as by ENQUEUE_OR_REPLACE
ENQUEUE_MANY_OR_REPLACE: Final = """/* pgqueue:enqueue_many_or_replace */
WITH drawn AS MATERIALIZED (
""" + CALLS + """
),
given AS MATERIALIZED (
    SELECT call, limit_key, limit_weight, limit_order, place, id,
           row_number() OVER (PARTITION BY call ->> 'key' ORDER BY place DESC) AS rank
    FROM drawn
),
placed AS (
    INSERT INTO pgqueue_job
        (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
         unique_key, unique_ready_only, limit_key, limit_weight, limit_order, batch_id)
    SELECT
        given.id, %(task_name)s::varchar, %(queue_name)s, %(priority)s, given.call -> 'call', %(max_attempts)s,
""" + TIMES + """
        given.call ->> 'key', CASE WHEN given.call ->> 'key' IS NOT NULL THEN %(unique_ready_only)s::boolean END,
        given.limit_key, given.limit_weight, given.limit_order, %(batch_id)s::bigint
    FROM given
    WHERE (given.rank = 1 OR given.call ->> 'key' IS NULL)
      AND (
""" + KEPT_STATE + """
          WHERE task_name = %(task_name)s::varchar AND unique_key = given.call ->> 'key'
            AND """ + HAS_KEY + """
      ) IS DISTINCT FROM 'running'
    ORDER BY given.call ->> 'key' COLLATE "C", given.place
""" + OR_REPLACE + """
    RETURNING id, unique_key
""" + UNSTEPPED + """
SELECT id, unique_key FROM placed
"""  # fmt: skip

# Return the jobs that currently have these keys of a task.
#
# Caller: lifecycle.unique.holders()
# Index:  pgqueue_job_unique
HOLDERS: Final = """/* pgqueue:holders */
SELECT wanted.key, owner.id
FROM unnest(%(unique_keys)s::varchar[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT id
    FROM pgqueue_job
    WHERE task_name = %(task_name)s
      AND unique_key = wanted.key
      AND """ + HAS_KEY + """
    OFFSET 0
) AS owner
"""  # fmt: skip

# Add jobs whose keys have no open uniqueness window, and open a window of the given length for each key. Calls with a
# null key are always added. The keys must be distinct.
#
# Moves:  new → ready. Nothing for a key with an open window
# Caller: lifecycle.unique.enqueue_for_period()
# Locks:  waits for an uncommitted transaction that has taken the same key; keys are taken in sorted order
# Index:  pgqueue_uniqueness_window_key
#
# The statement first inserts the window and then, if this succeeds, the job, with the id that it assigned to both.
#
# If a key is already taken, the statement does not try to insert its window. ON CONFLICT DO UPDATE would lock the row
# even without a change, and a caller whose job is a duplicate would block all others until its transaction ends.
ENQUEUE_FOR_PERIOD: Final = """/* pgqueue:enqueue_for_period */
WITH given AS MATERIALIZED (
    SELECT call -> 'call' AS arguments, call ->> 'key' AS key, limit_key, limit_weight, limit_order, place,
           coalesce(drawn_id, nextval('pgqueue_job_id_seq')) AS id
    FROM ROWS FROM (
        json_array_elements(%(calls)s::json),
        unnest(%(job_ids)s::bigint[]),
        json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint)
    ) WITH ORDINALITY AS each (call, drawn_id, limit_key, limit_weight, limit_order, place)
),
opened AS (
    INSERT INTO pgqueue_uniqueness_window (job_id, task_name, unique_key, ends_at)
    SELECT
        id, %(task_name)s::varchar, key,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(period_seconds)s::float8)
    FROM given
    WHERE key IS NOT NULL
      AND (
          SELECT ends_at
          FROM pgqueue_uniqueness_window
          WHERE task_name = %(task_name)s::varchar AND unique_key = given.key
      ) > statement_timestamp() + %(time_shift)s::interval IS NOT TRUE
    ORDER BY key COLLATE "C"
    ON CONFLICT (task_name, unique_key) DO UPDATE
    SET job_id = excluded.job_id, ends_at = excluded.ends_at
    WHERE pgqueue_uniqueness_window.ends_at <= statement_timestamp() + %(time_shift)s::interval
    RETURNING job_id
)
INSERT INTO pgqueue_job
    (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     limit_key, limit_weight, limit_order, batch_id)
SELECT
    id, %(task_name)s::varchar, %(queue_name)s, %(priority)s, arguments, %(max_attempts)s,
""" + TIMES + """
    limit_key, limit_weight, limit_order, %(batch_id)s::bigint
FROM given
WHERE key IS NULL OR id IN (SELECT job_id FROM opened)
ORDER BY place
RETURNING id, run_after, enqueued_at, expires_at
"""  # fmt: skip

# For each key with an open window, replace the call of the window's job if that job is ready. Other jobs and the
# windows do not change. The keys must be distinct and not null.
#
# Moves:  ready, unchanged
# Caller: lifecycle.unique.replace_for_period()
# Locks:  waits for a session that has locked such a job, as ENQUEUE_OR_REPLACE does. The CTE `waiting` locks the jobs
#         in the order of their ids. The UPDATE alone would lock them in the order of its join, so that two calls could
#         deadlock
# Index:  pgqueue_uniqueness_window_key, then by id
# Cost:   one search in the primary key of pgqueue_step for each job. Steps are removed as by ENQUEUE_OR_REPLACE
REPLACE_FOR_PERIOD: Final = """/* pgqueue:replace_for_period */
WITH given AS MATERIALIZED (
    SELECT each.call, each.limit_key, each.limit_weight, each.limit_order, open_window.job_id
    FROM ROWS FROM (
        json_array_elements(%(calls)s::json),
        json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint)
    ) AS each (call, limit_key, limit_weight, limit_order)
    CROSS JOIN LATERAL (
        SELECT job_id
        FROM pgqueue_uniqueness_window
        WHERE task_name = %(task_name)s AND unique_key = each.call ->> 'key'
        OFFSET 0
    ) AS open_window
    ORDER BY open_window.job_id
),
waiting AS MATERIALIZED (
    SELECT job.id, given.call, given.limit_key, given.limit_weight, given.limit_order
    FROM given
    CROSS JOIN LATERAL (
        SELECT id FROM pgqueue_job
        WHERE id = given.job_id AND state = 'ready'
        FOR NO KEY UPDATE
    ) AS job
),
placed AS (
    UPDATE pgqueue_job AS job
    SET arguments = waiting.call -> 'call', priority = %(priority)s, max_attempts = %(max_attempts)s,
        attempt = 0, crashes = 0, unknown_since = NULL, headers = %(headers)s::json,
        limit_key = waiting.limit_key, limit_weight = waiting.limit_weight, limit_order = waiting.limit_order,
        batch_id = %(batch_id)s::bigint,
        run_after = """ + DUE_AT + """,
        expires_at = """ + EXPIRES_AT + """
    FROM waiting
    WHERE job.id = waiting.id
      AND (SELECT true FROM pgqueue_step WHERE job_id = waiting.id AND compensation IS NOT NULL LIMIT 1) IS NULL
    RETURNING job.id, job.run_after, job.enqueued_at, job.expires_at, waiting.call ->> 'key' AS key
""" + UNSTEPPED + """
SELECT id, run_after, enqueued_at, expires_at, key FROM placed
"""  # fmt: skip

# Return the ids of the jobs that opened the uniqueness windows of these keys of a task. The jobs may have ended, and
# their rows may be removed.
#
# Caller: lifecycle.unique.open_windows()
# Index:  pgqueue_uniqueness_window_key
#
# Jobs in `job_ids` are returned even if their window has ended: the caller has just added them, and may have waited
# longer than the window lasts.
OPEN_WINDOWS: Final = """/* pgqueue:open_windows */
SELECT wanted.key, open_window.job_id
FROM unnest(%(unique_keys)s::varchar[]) AS wanted (key)
CROSS JOIN LATERAL (
    SELECT job_id
    FROM pgqueue_uniqueness_window
    WHERE task_name = %(task_name)s
      AND unique_key = wanted.key
      AND (
          ends_at > statement_timestamp() + %(time_shift)s::interval
          OR job_id = ANY (%(job_ids)s::bigint[])
      )
    OFFSET 0
) AS open_window
"""

# Remove uniqueness windows that have ended.
#
# Caller: lifecycle.unique.prune_windows()
# Locks:  SKIP LOCKED: another session may be taking the key again
# Index:  pgqueue_uniqueness_window_ends
PRUNE_WINDOWS: Final = """/* pgqueue:prune_windows */
WITH over AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_uniqueness_window
    WHERE ends_at <= statement_timestamp() + %(time_shift)s::interval
      AND (job_id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
    ORDER BY ends_at
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
DELETE FROM pgqueue_uniqueness_window WHERE job_id IN (SELECT job_id FROM over)
RETURNING job_id
"""
