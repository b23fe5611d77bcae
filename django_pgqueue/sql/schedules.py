"""Statements on schedules."""

from typing import Final

# Return all schedules with the columns that a worker needs, and the database's clock.
#
# Caller: lifecycle.read_schedules(), every few seconds while there are any
# Cost:   0.13 ms without schedules; 0.6 ms for 100. The arguments are left out. FIRE reads them, and SCHEDULE_ARGUMENTS
#         returns them if a unique key has to be computed
#
# If there is no schedule, the only row has only the clock. The last columns are the options of the schedule's jobs, in
# the order of `options.STORED`.
#
# A timestamp that Python cannot read, such as infinity, is returned as the nearest readable one. Otherwise one bad row
# would hide all schedules.
SCHEDULES: Final = """/* pgqueue:schedules */
SELECT clock.seen_at, schedule.id, schedule.name, schedule.origin, schedule.task_name, schedule.expression,
       schedule.time_zone, schedule.missed, schedule.jitter_seconds, schedule.enabled,
       CASE WHEN schedule.id IS NOT NULL
            THEN least(greatest(schedule.next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') END,
       schedule.revision, schedule.digest, schedule.former_digests,
       CASE WHEN schedule.confirmed_at IS NOT NULL
            THEN least(greatest(schedule.confirmed_at, '0001-01-03 UTC'), '9999-12-28 UTC') END,
       schedule.is_unique, schedule.is_limited, schedule.has_own_queue, schedule.has_own_priority,
       schedule.queue_name, schedule.priority, schedule.max_attempts, schedule.expires_seconds
FROM (SELECT statement_timestamp() + %(time_shift)s::interval AS seen_at) AS clock
LEFT JOIN pgqueue_schedule AS schedule ON true
ORDER BY schedule.id
"""

# Return the arguments of a schedule's jobs, to compute their unique key.
#
# Caller: lifecycle.arguments_of()
# Fence:  the definition as the caller has read it
SCHEDULE_ARGUMENTS: Final = """/* pgqueue:schedule_arguments */
SELECT arguments::text FROM pgqueue_schedule WHERE id = %(schedule_id)s AND revision = %(revision)s
"""

# Record why a schedule does not fire. The text stays until the schedule fires or its definition changes.
#
# Caller: lifecycle.note_problem(), from a worker that could not create the job
# Fence:  the definition and the next tick as the caller has read them: another worker may have fired it
NOTE_PROBLEM: Final = """/* pgqueue:note_problem */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
      AND revision = %(revision)s
      AND least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') = %(expected_at)s::timestamptz
      AND problem <> %(problem)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule SET problem = %(problem)s WHERE id = ANY (ARRAY (SELECT id FROM mine))
"""

# Set the next tick of a schedule without adding a job. The scheduler uses this to skip missed ticks, and after a clock
# was corrected.
#
# Caller: lifecycle.plan_schedule(), from any worker
# Fence:  the definition and the next tick as the caller has read them, in the form that SCHEDULES returns
PLAN_SCHEDULE: Final = """/* pgqueue:plan_schedule */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
      AND revision = %(revision)s
      AND least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') = %(expected_at)s::timestamptz
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule
SET next_run_at = %(following_at)s::timestamptz
WHERE id = ANY (ARRAY (SELECT id FROM mine))
RETURNING id
"""

# Add a schedule of the code or of the admin, unless one with the same name and origin exists.
#
# Caller: lifecycle.add_schedule(), from any worker whose code has the schedule, or for an operator
ADD_SCHEDULE: Final = """/* pgqueue:add_schedule */
INSERT INTO pgqueue_schedule
    (name, origin, task_name, arguments, expression, time_zone, missed, if_running, jitter_seconds, queue_name,
     priority, max_attempts, expires_seconds, is_unique, is_limited, has_own_queue, has_own_priority, digest,
     next_run_at, enabled, confirmed_at)
VALUES (
    %(name)s, %(origin)s::varchar, %(task_name)s, %(arguments)s::json, %(expression)s, %(time_zone)s, %(missed)s,
    %(if_running)s, %(jitter_seconds)s, %(queue_name)s, %(priority)s, %(max_attempts)s, %(expires_seconds)s,
    %(is_unique)s, %(is_limited)s, %(has_own_queue)s, %(has_own_priority)s, %(digest)s,
    %(next_run_at)s::timestamptz, %(enabled)s,
    CASE WHEN %(origin)s::varchar = 'code'
         THEN statement_timestamp() + %(time_shift)s::interval END
)
ON CONFLICT (origin, name) DO NOTHING
RETURNING id
"""

# Change the definition of a schedule.
#
# Caller: lifecycle.change_schedule(), from any worker whose code has the schedule, or for an operator
# Fence:  the definition as the caller has read it
#
# A tick that is due belongs to the former definition, so it stays due.
CHANGE_SCHEDULE: Final = """/* pgqueue:change_schedule */
WITH mine AS MATERIALIZED (
    SELECT id, enabled AND next_run_at <= statement_timestamp() + %(time_shift)s::interval AS is_due
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s AND revision = %(revision)s
    FOR NO KEY UPDATE SKIP LOCKED
),
changed AS (
    UPDATE pgqueue_schedule AS schedule
    SET name = %(name)s, task_name = %(task_name)s, arguments = %(arguments)s::json, expression = %(expression)s,
        time_zone = %(time_zone)s, missed = %(missed)s, if_running = %(if_running)s,
        jitter_seconds = %(jitter_seconds)s, queue_name = %(queue_name)s, priority = %(priority)s,
        max_attempts = %(max_attempts)s, expires_seconds = %(expires_seconds)s, is_unique = %(is_unique)s,
        is_limited = %(is_limited)s, has_own_queue = %(has_own_queue)s, has_own_priority = %(has_own_priority)s,
        digest = %(digest)s, former_digests = %(former_digests)s, problem = '',
        revision = schedule.revision + 1,
        next_run_at = CASE WHEN mine.is_due THEN schedule.next_run_at ELSE %(next_run_at)s::timestamptz END,
        confirmed_at = CASE WHEN schedule.origin = 'code'
            THEN statement_timestamp() + %(time_shift)s::interval END
    FROM mine
    WHERE schedule.id = mine.id
)
SELECT EXISTS (SELECT FROM pgqueue_schedule WHERE id = %(schedule_id)s AND revision = %(revision)s),
       (SELECT id FROM mine)
"""

# Confirm that the code of a living worker defines these schedules as they are.
#
# Caller: lifecycle.confirm_schedules(), once a minute for all workers together
CONFIRM_SCHEDULES: Final = """/* pgqueue:confirm_schedules */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = ANY (%(schedule_ids)s::bigint[])
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule
SET confirmed_at = statement_timestamp() + %(time_shift)s::interval
WHERE id = ANY (ARRAY (SELECT id FROM mine))
RETURNING id
"""

# Pause or resume a schedule. No job is added later for the ticks during the pause.
#
# Caller: lifecycle.pause_schedule(), lifecycle.resume_schedule(), for an operator
SWITCH_SCHEDULE: Final = """/* pgqueue:switch_schedule */
WITH mine AS MATERIALIZED (
    SELECT id, enabled FROM pgqueue_schedule WHERE id = %(schedule_id)s FOR NO KEY UPDATE SKIP LOCKED
),
switched AS (
    UPDATE pgqueue_schedule AS schedule
    SET enabled = %(enabled)s,
        revision = schedule.revision + 1,
        problem = '',
        next_run_at = coalesce(%(next_run_at)s::timestamptz, schedule.next_run_at)
    FROM mine
    WHERE schedule.id = mine.id AND mine.enabled <> %(enabled)s
)
SELECT EXISTS (SELECT FROM pgqueue_schedule WHERE id = %(schedule_id)s), (SELECT enabled <> %(enabled)s FROM mine)
"""

# Remove schedules with the records of their ticks. Only schedules of the admin are removed, and schedules of the code
# that no worker confirms any more.
#
# Caller: lifecycle.remove_schedules(), for an operator, or from any worker after a week
REMOVE_SCHEDULES: Final = """/* pgqueue:remove_schedules */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = ANY (%(schedule_ids)s::bigint[])
      AND (
          origin = 'admin'
          OR confirmed_at < statement_timestamp() + %(time_shift)s::interval
              - make_interval(secs => %(confirmed_seconds)s::float8)
      )
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
forgotten AS (
    DELETE FROM pgqueue_schedulerun WHERE schedule_id = ANY (ARRAY (SELECT id FROM old))
)
DELETE FROM pgqueue_schedule WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
"""

# Remove the records of old ticks, except the last ones of each schedule. The last ones stay, because they prevent a
# second firing if a clock jumps.
#
# Caller: lifecycle.prune_schedule_runs(), once an hour
# Index:  pgqueue_schedulerun_tick
PRUNE_SCHEDULE_RUNS: Final = """/* pgqueue:prune_schedule_runs */
WITH old AS MATERIALIZED (
    SELECT run.id
    FROM pgqueue_schedule AS schedule
    CROSS JOIN LATERAL (
        SELECT tick_at AS until_at
        FROM pgqueue_schedulerun
        WHERE schedule_id = schedule.id
        ORDER BY tick_at DESC
        OFFSET %(kept)s
        LIMIT 1
    ) AS last
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_schedulerun
        WHERE schedule_id = schedule.id
          AND tick_at <= last.until_at
          AND tick_at < statement_timestamp() + %(time_shift)s::interval
              - make_interval(secs => %(retention_seconds)s::float8)
        ORDER BY tick_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS run
)
DELETE FROM pgqueue_schedulerun WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
"""
