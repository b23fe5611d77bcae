"""Statements on schedules."""

from typing import Final

from .clauses import IDLE_WAIT, UNTIL

# Return all schedules with the columns that a worker needs, and the database's clock.
#
# Caller: lifecycle.schedules.read_schedules(), every few seconds while there are any
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
       CASE WHEN schedule.paused_until IS NOT NULL
            THEN least(greatest(schedule.paused_until, '0001-01-03 UTC'), '9999-12-28 UTC') END,
       schedule.is_unique, schedule.is_limited, schedule.has_own_queue, schedule.has_own_priority,
       schedule.queue_name, schedule.priority, schedule.max_attempts, schedule.expires_seconds
FROM (SELECT statement_timestamp() + %(time_shift)s::interval AS seen_at) AS clock
LEFT JOIN pgqueue_schedule AS schedule ON true
ORDER BY schedule.id
"""

# Return the arguments of a schedule's jobs, to compute their unique key.
#
# Caller: lifecycle.schedules.arguments_of()
# Fence:  the definition as the caller has read it
SCHEDULE_ARGUMENTS: Final = """/* pgqueue:schedule_arguments */
SELECT arguments::text FROM pgqueue_schedule WHERE id = %(schedule_id)s AND revision = %(revision)s
"""

# The schedule, if its definition and its next tick are still those that the caller has read.
AS_PLANNED: Final = """WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
      AND revision = %(revision)s
      AND least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') = %(expected_at)s::timestamptz"""

# Record why a schedule does not fire. The text stays until the schedule fires or its definition changes.
#
# Caller: lifecycle.schedules.note_problem(), from a worker that could not create the job
# Fence:  the definition and the next tick as the caller has read them: another worker may have fired it
NOTE_PROBLEM: Final = """/* pgqueue:note_problem */
""" + AS_PLANNED + """
      AND problem <> %(problem)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule SET problem = %(problem)s WHERE id = ANY (ARRAY (SELECT id FROM mine))
"""  # fmt: skip

# Set the next tick of a schedule without adding a job. The scheduler uses this to skip missed ticks, and after a clock
# was corrected.
#
# Caller: lifecycle.schedules.plan_schedule(), from any worker
# Fence:  the definition and the next tick as the caller has read them, in the form that SCHEDULES returns
PLAN_SCHEDULE: Final = """/* pgqueue:plan_schedule */
""" + AS_PLANNED + """
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE pgqueue_schedule
SET next_run_at = %(following_at)s::timestamptz
WHERE id = ANY (ARRAY (SELECT id FROM mine))
RETURNING id
"""  # fmt: skip

# Add a schedule of the code or of the admin, unless one with the same name and origin exists.
#
# Caller: lifecycle.schedules.add_schedule(), from any worker whose code has the schedule, or for an operator
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
# Caller: lifecycle.schedules.change_schedule(), from any worker whose code has the schedule, or for an operator
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
# Caller: lifecycle.schedules.confirm_schedules(), once a minute for all workers together
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

# A clause: the end of the pause that is in force, NULL without one.
PAUSED_UNTIL: Final = "CASE WHEN paused_until > statement_timestamp() + %(time_shift)s::interval THEN paused_until END"

# Pause or resume a schedule. With an end, it stays enabled and goes on by itself at that time: its ticks during the
# pause are missed then. Without an end, no job is added later for the ticks during the pause.
#
# Caller: lifecycle.schedules.pause_schedule(), lifecycle.schedules.resume_schedule(), for an operator
#
# The answer is whether the row exists; and, NULL if it is locked: whether it has changed, whether it was enabled, and
# the end of the pause.
SWITCH_SCHEDULE: Final = """/* pgqueue:switch_schedule */
WITH wanted AS MATERIALIZED (
    SELECT """ + UNTIL + """ AS until
),
mine AS MATERIALIZED (
    SELECT id, enabled, """ + PAUSED_UNTIL + """ AS former
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s
    FOR NO KEY UPDATE SKIP LOCKED
),
switched AS (
    UPDATE pgqueue_schedule AS schedule
    SET enabled = %(enabled)s,
        paused_until = wanted.until,
        revision = schedule.revision + 1,
        problem = '',
        next_run_at = coalesce(%(next_run_at)s::timestamptz, schedule.next_run_at)
    FROM mine
    CROSS JOIN wanted
    WHERE schedule.id = mine.id AND (mine.enabled <> %(enabled)s OR mine.former IS DISTINCT FROM wanted.until)
)
SELECT EXISTS (SELECT FROM pgqueue_schedule WHERE id = %(schedule_id)s),
       (SELECT mine.enabled <> %(enabled)s OR mine.former IS DISTINCT FROM wanted.until FROM mine CROSS JOIN wanted),
       (SELECT enabled FROM mine),
       (SELECT until FROM wanted)
"""  # fmt: skip

# A clause: the schedule and its next run, if they are as the caller has read them and the run has not come.
WITH_NEXT_RUN: Final = """id = %(schedule_id)s
      AND revision = %(revision)s
      AND next_run_at = %(tick_at)s::timestamptz
      AND next_run_at > statement_timestamp() + %(time_shift)s::interval
      AND enabled
      AND """ + PAUSED_UNTIL + """ IS NULL"""  # fmt: skip

# Skip the next run of a schedule: its tick is recorded now, so that FIRE does not fire it.
#
# Caller: lifecycle.schedules.skip_run(), for an operator
# Fence:  the definition and the next tick as the caller has read them. The new revision makes a worker read the
#         schedule again: the snapshot of its FIRE may not have the record yet
# Index:  pgqueue_schedulerun_tick
#
# The answer is that of RUN_SCHEDULE. A tick that is on record already is not skipped a second time.
SKIP_RUN: Final = """/* pgqueue:skip_run */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE """ + WITH_NEXT_RUN + """
    FOR NO KEY UPDATE SKIP LOCKED
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, skipped_by)
    SELECT id, %(tick_at)s::timestamptz, statement_timestamp() + %(time_shift)s::interval, %(skipped_by)s
    FROM mine
    ON CONFLICT (schedule_id, tick_at) DO NOTHING
    RETURNING schedule_id
),
changed AS (
    UPDATE pgqueue_schedule
    SET revision = revision + 1
    WHERE id = ANY (ARRAY (SELECT schedule_id FROM noted))
)
SELECT EXISTS (
           SELECT
           FROM pgqueue_schedule
           WHERE """ + WITH_NEXT_RUN + """
             AND NOT EXISTS (
                 SELECT
                 FROM pgqueue_schedulerun
                 WHERE schedule_id = %(schedule_id)s AND tick_at = %(tick_at)s::timestamptz
             )
       ),
       (SELECT schedule_id FROM noted)
"""  # fmt: skip

# Undo the skip of a schedule's next run, while it has not come: remove the record of the tick, so that FIRE fires it.
#
# Caller: lifecycle.schedules.undo_skip(), for an operator
# Fence:  that of SKIP_RUN
# Index:  pgqueue_schedulerun_tick
#
# The answer is that of RUN_SCHEDULE. Only a tick that an operator has skipped is removed.
UNDO_SKIP: Final = """/* pgqueue:undo_skip */
WITH mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_schedule
    WHERE """ + WITH_NEXT_RUN + """
    FOR NO KEY UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM pgqueue_schedulerun
    WHERE schedule_id = ANY (ARRAY (SELECT id FROM mine)) AND tick_at = %(tick_at)s::timestamptz
      AND skipped_by IS NOT NULL
    RETURNING schedule_id
),
changed AS (
    UPDATE pgqueue_schedule
    SET revision = revision + 1
    WHERE id = ANY (ARRAY (SELECT schedule_id FROM removed))
)
SELECT EXISTS (
           SELECT
           FROM pgqueue_schedule
           WHERE """ + WITH_NEXT_RUN + """
             AND EXISTS (
                 SELECT
                 FROM pgqueue_schedulerun
                 WHERE schedule_id = %(schedule_id)s AND tick_at = %(tick_at)s::timestamptz AND skipped_by IS NOT NULL
             )
       ),
       (SELECT schedule_id FROM removed)
"""  # fmt: skip

# Remove schedules with the records of their ticks. Only schedules of the admin are removed, and schedules of the code
# that no worker confirms any more.
#
# Caller: lifecycle.schedules.remove_schedules(), for an operator, or from any worker after a week
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

# Remove the records of old ticks, except the last ones of each schedule, and those whose job is unfinished. The last
# ones stay, because they prevent a second firing if a clock jumps. The record of an unfinished job keeps `if_running`
# from firing beside it.
#
# Caller: lifecycle.schedules.prune_schedule_runs(), once an hour
# Index:  pgqueue_schedulerun_tick, pgqueue_job_pkey
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
        FROM pgqueue_schedulerun AS fired
        WHERE schedule_id = schedule.id
          AND tick_at <= last.until_at
          AND tick_at < statement_timestamp() + %(time_shift)s::interval
              - make_interval(secs => %(retention_seconds)s::float8)
          AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
          AND (
              fired.job_id IS NULL
              OR (SELECT finished_at IS NULL FROM pgqueue_job WHERE id = fired.job_id) IS NOT TRUE
          )
        ORDER BY tick_at
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS run
)
DELETE FROM pgqueue_schedulerun WHERE id = ANY (ARRAY (SELECT id FROM old)) RETURNING id
"""

# Decide about the next ticks of schedules, record them, and set the ticks that follow: all of this or nothing. Return
# what happens at each tick. If its job is to be added, return the id that was drawn for it, and its arguments.
#
# Caller: lifecycle.ticks.fire() and lifecycle.ticks.fire_many(), from any worker. They add the jobs in the same
#         transaction
# Fence:  the definition and the next tick as the caller has read them; the unique constraint on (schedule, tick)
# Locks:  the rows of the schedules, SKIP LOCKED. For a job with a unique key, `drawn` sets how long its INSERT may wait
#         (`key_wait`), because the session has no `lock_timeout` behind a pooler. A process that is frozen before the
#         INSERT can keep the rows locked for `idle_wait`
# Index:  pgqueue_schedulerun_tick: for the tick itself, and for the last 20 ticks to find a job that is not finished
# Cost:   2.8 ms for 100 ticks; the same with 50,000 ticks on record
#
# The database's clock decides whether a tick is due. A definition of the code is valid while a worker confirms it
# (`confirmed_at`). The ticks come as one JSON array. Each schedule has at most one tick in it. If another job has the
# unique key, the caller rolls its transaction back, and repeats this statement with `is_duplicate`.
FIRE: Final = """/* pgqueue:fire */
WITH due AS MATERIALIZED (
    SELECT schedule.id, schedule.arguments, schedule.if_running, tick.tick_at, tick.following_at
    FROM json_to_recordset(%(ticks)s::json) AS tick (
        schedule_id bigint, revision bigint, expected_at timestamptz, tick_at timestamptz, following_at timestamptz
    )
    CROSS JOIN LATERAL (
        SELECT id, arguments, if_running
        FROM pgqueue_schedule
        WHERE id = tick.schedule_id
          AND revision = tick.revision
          AND next_run_at = tick.expected_at
          AND enabled
          AND """ + PAUSED_UNTIL + """ IS NULL
          AND (
              origin = 'admin'
              OR confirmed_at > statement_timestamp() + %(time_shift)s::interval
                  - make_interval(secs => %(confirmed_seconds)s::float8)
          )
          AND tick.tick_at <= statement_timestamp() + %(time_shift)s::interval
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS schedule
),
judged AS MATERIALIZED (
    SELECT due.*, CASE
        WHEN on_record.skipped_by IS NOT NULL THEN 'skipped by an operator'
        WHEN on_record.id IS NOT NULL THEN 'again'
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
        ) THEN CASE WHEN %(is_duplicate)s::boolean THEN 'duplicate' ELSE 'fired' END
        WHEN due.if_running = 'queue' THEN 'waits'
        ELSE 'skipped'
    END AS what
    FROM due
    LEFT JOIN LATERAL (
        SELECT id, skipped_by FROM pgqueue_schedulerun WHERE schedule_id = due.id AND tick_at = due.tick_at LIMIT 1
    ) AS on_record ON true
),
drawn AS MATERIALIZED (
    SELECT judged.*, CASE WHEN what = 'fired' THEN nextval('pgqueue_job_id_seq') END AS job_id,
           CASE WHEN %(key_wait)s::text IS NOT NULL THEN set_config('lock_timeout', %(key_wait)s::text, true) END
    FROM judged
""" + IDLE_WAIT + """
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id)
    SELECT id, tick_at, statement_timestamp() + %(time_shift)s::interval, job_id
    FROM drawn
    WHERE what IN ('fired', 'skipped', 'duplicate')
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
SELECT id, what, job_id, CASE WHEN job_id IS NOT NULL THEN arguments::text END FROM drawn
"""  # fmt: skip

# Record that a job of a schedule is enqueued now, in addition to its ticks. Return the id that was drawn for the job,
# and its arguments.
#
# Caller: lifecycle.ticks.run_schedule(), for an operator. It adds the job in the same transaction, and rolls it back if
#         another job has the unique key
# Fence:  the definition as the caller has read it
# Locks:  the row of the schedule, SKIP LOCKED
#
# The first column of the answer is whether the row exists as the caller has seen it. If so, and the second column is
# NULL, the row is locked. CHANGE_SCHEDULE, SWITCH_SCHEDULE, SKIP_RUN and UNDO_SKIP answer in the same way.
RUN_SCHEDULE: Final = """/* pgqueue:run_schedule */
WITH asked AS MATERIALIZED (
    SELECT id, arguments
    FROM pgqueue_schedule
    WHERE id = %(schedule_id)s AND revision = %(revision)s
      AND (%(seen_last_run)s = 'any' OR last_run_at IS NOT DISTINCT FROM nullif(%(seen_last_run)s, '')::timestamptz)
    FOR NO KEY UPDATE SKIP LOCKED
),
drawn AS MATERIALIZED (
    SELECT id, arguments, nextval('pgqueue_job_id_seq') AS job_id FROM asked
),
noted AS (
    INSERT INTO pgqueue_schedulerun (schedule_id, tick_at, fired_at, job_id)
    SELECT id, statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval, job_id
    FROM drawn
),
moved AS (
    UPDATE pgqueue_schedule AS schedule
    SET last_run_at = statement_timestamp() + %(time_shift)s::interval,
        last_job_id = drawn.job_id
    FROM drawn
    WHERE schedule.id = drawn.id
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
       (SELECT job_id FROM drawn), (SELECT arguments::text FROM drawn)
"""
