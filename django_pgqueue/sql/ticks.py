"""Statements that enqueue the jobs of schedules."""

from typing import Final

# Enqueue the job of one tick of a schedule, record the tick, and set the next tick. The statement does all of this or
# nothing.
#
# Moves:  new → ready. If another job has the unique key, no job is added, but the tick is recorded
# Caller: lifecycle.fire(), from any worker
# Fence:  the definition and the next tick as the caller has read them; the unique constraint on (schedule, tick)
# Locks:  the schedule's row, SKIP LOCKED. With a unique key, it waits for an uncommitted transaction that has enqueued
#         the same key, as ENQUEUE_UNIQUE does, but for `key_wait` at most. `drawn` sets that limit for this
#         transaction, because the session has no `lock_timeout` behind a pooler
# Index:  pgqueue_schedulerun_tick: for the tick itself, and for the last 20 ticks to find a job that is not finished
# Cost:   2 ms on a busy machine, 3 ms with the check for unfinished jobs; the same with 50,000 ticks on record
#
# The database's clock decides whether the tick is due. A definition of the code is valid while a worker confirms it
# (`confirmed_at`). A key with a uniqueness window is taken first, as in ENQUEUE_FOR_PERIOD: the statement that gets the
# window inserts the job, under the id that was drawn for both.
FIRE: Final = """/* pgqueue:fire */
WITH due AS MATERIALIZED (
    SELECT id, task_name, arguments, if_running
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
      AND revision = %(revision)s
      AND next_run_at = %(expected_at)s::timestamptz
      AND enabled
      AND (
          origin = 'admin'
          OR confirmed_at > statement_timestamp() + %(time_shift)s::interval
              - make_interval(secs => %(confirmed_seconds)s::float8)
      )
      AND %(tick_at)s::timestamptz <= statement_timestamp() + %(time_shift)s::interval
    FOR NO KEY UPDATE SKIP LOCKED
),
judged AS MATERIALIZED (
    SELECT due.id, due.task_name, due.arguments, CASE
        WHEN EXISTS (
            SELECT FROM pgqueue_schedulerun
            WHERE schedule_id = due.id AND tick_at = %(tick_at)s::timestamptz
        ) THEN 'again'
        WHEN due.if_running = 'overlap' OR NOT EXISTS (
            SELECT
            FROM (
                SELECT job_id FROM pgqueue_schedulerun
                WHERE schedule_id = due.id AND job_id IS NOT NULL
                ORDER BY tick_at DESC
                LIMIT 20
            ) AS recent
            CROSS JOIN LATERAL (
                SELECT FROM pgqueue_job WHERE id = recent.job_id AND finished_at IS NULL OFFSET 0
            ) AS unfinished
        ) THEN 'fired'
        WHEN due.if_running = 'queue' THEN 'waits'
        ELSE 'skipped'
    END AS what
    FROM due
),
drawn AS MATERIALIZED (
    SELECT nextval('pgqueue_job_id_seq') AS job_id, coalesce(%(task_name)s::varchar, task_name) AS task_name, arguments,
           CASE WHEN %(key_wait)s::text IS NOT NULL THEN set_config('lock_timeout', %(key_wait)s::text, true) END
    FROM judged
    WHERE what = 'fired'
),
opened AS (
    INSERT INTO pgqueue_uniqueness_window (job_id, task_name, unique_key, ends_at)
    SELECT job_id, task_name, %(unique_key)s,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(period_seconds)s::float8)
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NOT NULL
    ON CONFLICT (task_name, unique_key) DO UPDATE
    SET job_id = excluded.job_id, ends_at = excluded.ends_at
    WHERE pgqueue_uniqueness_window.ends_at <= statement_timestamp() + %(time_shift)s::interval
    RETURNING job_id
),
made AS (
    INSERT INTO pgqueue_job
        (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
         unique_key, unique_ready_only, limit_key, limit_weight, limit_order)
    SELECT job_id, task_name, %(queue_name)s, %(priority)s, arguments, %(max_attempts)s,
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(delay_seconds)s::float8),
           %(headers)s::json,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(expires_seconds)s::float8),
           CASE WHEN %(period_seconds)s::float8 IS NULL THEN %(unique_key)s::varchar END,
           %(unique_ready_only)s::boolean, %(limit_key)s::varchar, %(limit_weight)s::integer, %(limit_order)s::smallint
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NULL OR job_id IN (SELECT job_id FROM opened)
    ON CONFLICT (task_name, unique_key)
        WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
    DO NOTHING
    RETURNING id
),
keyed AS (
    INSERT INTO pgqueue_search_key (job_id, name, value)
    SELECT made.id, given.key, given.value
    FROM made
    CROSS JOIN json_each_text(%(search_keys)s::json) AS given
    ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id)
    SELECT id, %(tick_at)s::timestamptz,
           statement_timestamp() + %(time_shift)s::interval, (SELECT id FROM made)
    FROM judged
    WHERE what IN ('fired', 'skipped')
),
moved AS (
    UPDATE pgqueue_schedule AS schedule
    SET next_run_at = %(following_at)s::timestamptz,
        last_run_at = CASE WHEN EXISTS (SELECT FROM made) THEN %(tick_at)s::timestamptz ELSE schedule.last_run_at END,
        last_job_id = coalesce((SELECT id FROM made), schedule.last_job_id),
        problem = ''
    FROM judged
    WHERE schedule.id = judged.id AND judged.what <> 'waits'
)
SELECT CASE WHEN what = 'fired' AND NOT EXISTS (SELECT FROM made) THEN 'duplicate' ELSE what END, (SELECT id FROM made)
FROM judged
"""

# Do for the next ticks of many schedules what FIRE does for one, in one statement and one transaction.
#
# Moves:  new → ready
# Caller: lifecycle.fire_many(), from any worker, for jobs without a unique key
# Fence:  as FIRE, for each tick
# Locks:  the rows of the schedules, SKIP LOCKED. It waits for no other transaction, because no job has a unique key
# Index:  as FIRE
# Cost:   2.8 ms for 100 ticks, on a machine on which FIRE fired 621 ticks a second, because it commits each one
#
# The ticks come as one JSON array. Each schedule has at most one tick in it. Without unique keys, each job whose id was
# drawn is inserted.
FIRE_MANY: Final = """/* pgqueue:fire_many */
WITH due AS MATERIALIZED (
    SELECT schedule.id, schedule.task_name, schedule.arguments, schedule.if_running, tick.tick_at, tick.following_at,
           tick.delay_seconds, tick.current_task_name, tick.queue_name, tick.priority, tick.max_attempts,
           tick.headers, tick.expires_seconds, tick.limit_key, tick.limit_weight, tick.limit_order, tick.search_keys
    FROM json_to_recordset(%(ticks)s::json) AS tick (
        schedule_id bigint, revision bigint, expected_at timestamptz, tick_at timestamptz, following_at timestamptz,
        delay_seconds float8, current_task_name varchar, queue_name varchar, priority smallint, max_attempts smallint,
        headers text, expires_seconds float8, limit_key varchar, limit_weight integer, limit_order smallint,
        search_keys text
    )
    JOIN pgqueue_schedule AS schedule
      ON schedule.id = tick.schedule_id
      AND schedule.revision = tick.revision
      AND schedule.next_run_at = tick.expected_at
      AND schedule.enabled
      AND (
          schedule.origin = 'admin'
          OR schedule.confirmed_at > statement_timestamp() + %(time_shift)s::interval
              - make_interval(secs => %(confirmed_seconds)s::float8)
      )
      AND tick.tick_at <= statement_timestamp() + %(time_shift)s::interval
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
),
judged AS MATERIALIZED (
    SELECT due.*, CASE
        WHEN EXISTS (
            SELECT FROM pgqueue_schedulerun
            WHERE schedule_id = due.id AND tick_at = due.tick_at
        ) THEN 'again'
        WHEN due.if_running = 'overlap' OR NOT EXISTS (
            SELECT
            FROM (
                SELECT job_id FROM pgqueue_schedulerun
                WHERE schedule_id = due.id AND job_id IS NOT NULL
                ORDER BY tick_at DESC
                LIMIT 20
            ) AS recent
            CROSS JOIN LATERAL (
                SELECT FROM pgqueue_job WHERE id = recent.job_id AND finished_at IS NULL OFFSET 0
            ) AS unfinished
        ) THEN 'fired'
        WHEN due.if_running = 'queue' THEN 'waits'
        ELSE 'skipped'
    END AS what
    FROM due
),
drawn AS MATERIALIZED (
    SELECT judged.*, CASE WHEN what = 'fired' THEN nextval('pgqueue_job_id_seq') END AS job_id
    FROM judged
),
made AS (
    INSERT INTO pgqueue_job
        (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
         limit_key, limit_weight, limit_order)
    SELECT job_id, coalesce(current_task_name, task_name), queue_name, priority, arguments, max_attempts,
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => delay_seconds),
           headers::json,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => expires_seconds),
           limit_key, limit_weight, limit_order
    FROM drawn
    WHERE what = 'fired'
),
keyed AS (
    INSERT INTO pgqueue_search_key (job_id, name, value)
    SELECT drawn.job_id, given.key, given.value
    FROM drawn
    CROSS JOIN json_each_text(drawn.search_keys::json) AS given
    WHERE drawn.what = 'fired'
    ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id)
    SELECT id, tick_at, statement_timestamp() + %(time_shift)s::interval, job_id
    FROM drawn
    WHERE what IN ('fired', 'skipped')
),
moved AS (
    UPDATE pgqueue_schedule AS schedule
    SET next_run_at = drawn.following_at,
        last_run_at = CASE WHEN drawn.what = 'fired' THEN drawn.tick_at ELSE schedule.last_run_at END,
        last_job_id = coalesce(drawn.job_id, schedule.last_job_id),
        problem = ''
    FROM drawn
    WHERE schedule.id = drawn.id AND drawn.what <> 'waits'
)
SELECT id, what, job_id FROM drawn
"""

# Enqueue a job of a schedule now, in addition to its ticks.
#
# Moves:  new → ready. If another job has the unique key, nothing is written
# Caller: lifecycle.run_schedule(), for an operator
# Fence:  the definition as the caller has read it
# Locks:  as FIRE. An operator's connection may have no `lock_timeout`; it then waits as an enqueue would
#
# The first column of the answer is whether the row exists as the caller has seen it. If so, and the second column is
# NULL, the row is locked. CHANGE_SCHEDULE and SWITCH_SCHEDULE answer in the same way.
RUN_SCHEDULE: Final = """/* pgqueue:run_schedule */
WITH asked AS MATERIALIZED (
    SELECT id, task_name, arguments
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s AND revision = %(revision)s
      AND (%(seen_last_run)s = 'any' OR last_run_at IS NOT DISTINCT FROM nullif(%(seen_last_run)s, '')::timestamptz)
    FOR NO KEY UPDATE SKIP LOCKED
),
drawn AS MATERIALIZED (
    SELECT nextval('pgqueue_job_id_seq') AS job_id, coalesce(%(task_name)s::varchar, task_name) AS task_name, arguments
    FROM asked
),
opened AS (
    INSERT INTO pgqueue_uniqueness_window (job_id, task_name, unique_key, ends_at)
    SELECT job_id, task_name, %(unique_key)s,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(period_seconds)s::float8)
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NOT NULL
    ON CONFLICT (task_name, unique_key) DO UPDATE
    SET job_id = excluded.job_id, ends_at = excluded.ends_at
    WHERE pgqueue_uniqueness_window.ends_at <= statement_timestamp() + %(time_shift)s::interval
    RETURNING job_id
),
made AS (
    INSERT INTO pgqueue_job
        (id, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
         unique_key, unique_ready_only, limit_key, limit_weight, limit_order)
    SELECT job_id, task_name, %(queue_name)s, %(priority)s, arguments, %(max_attempts)s,
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval,
           %(headers)s::json,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(expires_seconds)s::float8),
           CASE WHEN %(period_seconds)s::float8 IS NULL THEN %(unique_key)s::varchar END,
           %(unique_ready_only)s::boolean, %(limit_key)s::varchar, %(limit_weight)s::integer, %(limit_order)s::smallint
    FROM drawn
    WHERE %(period_seconds)s::float8 IS NULL OR job_id IN (SELECT job_id FROM opened)
    ON CONFLICT (task_name, unique_key)
        WHERE unique_key IS NOT NULL AND (state = 'ready' OR (state = 'running' AND unique_ready_only IS NULL))
    DO NOTHING
    RETURNING id
),
keyed AS (
    INSERT INTO pgqueue_search_key (job_id, name, value)
    SELECT made.id, given.key, given.value
    FROM made
    CROSS JOIN json_each_text(%(search_keys)s::json) AS given
    ON CONFLICT (job_id, name) DO UPDATE SET value = excluded.value
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id)
    SELECT asked.id, statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval, made.id
    FROM asked
    CROSS JOIN made
),
moved AS (
    UPDATE pgqueue_schedule AS schedule
    SET last_run_at = statement_timestamp() + %(time_shift)s::interval,
        last_job_id = made.id
    FROM asked
    CROSS JOIN made
    WHERE schedule.id = asked.id
)
SELECT EXISTS (
           SELECT
           FROM pgqueue_schedule
           WHERE id = %(schedule_id)s AND revision = %(revision)s
             AND (
                 %(seen_last_run)s = 'any'
                 OR last_run_at IS NOT DISTINCT FROM nullif(%(seen_last_run)s, '')::timestamptz
             )
       ),
       (SELECT CASE WHEN EXISTS (SELECT FROM made) THEN 'fired' ELSE 'duplicate' END FROM asked),
       (SELECT id FROM made)
"""
