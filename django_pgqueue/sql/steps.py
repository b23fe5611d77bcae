"""Statements that read, store and remove the durable steps of jobs, and those that suspend and wake jobs."""

from typing import Final

from .clauses import CLOSED, LEFT_OVER, LOCKED, RELEASED

# Return the steps of a job in their order, with the seconds until each one wakes. A step that was compensated counts as
# not done. RETRY removes it, but an attempt must not use it in any case.
#
# Caller: lifecycle.load_steps(), at the first use of a step in an attempt
# Index:  primary key
LOAD_STEPS: Final = """/* pgqueue:load_steps */
SELECT name, kind, result::text, finished_at IS NOT NULL, event_id, tries, event_name, event_key,
       (date_part('epoch', wake_at) - date_part('epoch', statement_timestamp() + %(time_shift)s::interval))::float8,
       position, compensation IS NOT NULL
FROM pgqueue_step
WHERE job_id = %(job_id)s::bigint AND compensation_id IS NULL
ORDER BY position, name
"""

# The columns of a step that has ended, without those of its compensation.
STEP_COLUMNS: Final = """INSERT INTO pgqueue_step
    (job_id, name, position, kind, attempt, tries, result, started_at, finished_at, event_name, event_key, event_id"""

# Their values. The columns of the compensation follow, if there is one.
STEP_VALUES: Final = """)
SELECT job_id, %(name)s::varchar, %(position)s::float8, %(kind)s::varchar, attempt, %(tries)s::integer,
       %(result)s::json,
       statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(started_seconds_ago)s::float8),
       statement_timestamp() + %(time_shift)s::interval,
       %(event_name)s::varchar, %(event_key)s::varchar, %(event_id)s::bigint"""

# The lock and the fence of the step, and what a row that exists becomes.
STEP_FENCE: Final = """
FROM pgqueue_execution AS execution
WHERE execution.id = %(execution_id)s::bigint
  AND floor(1000 * date_part('epoch', execution.claimed_at)) = %(claimed_ms)s::float8
  AND execution.outcome IS NULL
FOR NO KEY UPDATE SKIP LOCKED
ON CONFLICT (job_id, name) DO UPDATE
SET attempt = excluded.attempt, tries = excluded.tries, result = excluded.result, error = '',
    finished_at = excluded.finished_at, event_id = excluded.event_id, event_name = excluded.event_name,
    event_key = excluded.event_key, compensation_id = NULL"""

# Store a step that has ended and has no compensation. Return nothing if the execution is not open, or is locked.
#
# Caller: lifecycle.store_step(), on the Django connection of the job's thread; for an atomic step in its transaction
# Fence:  id and time of the claim, outcome IS NULL. The lock of the execution orders this statement and a rescue: the
#         attempt after the rescue sees the step, or this statement writes nothing
# Locks:  the execution, SKIP LOCKED: the caller asks again if a heartbeat has locked it
# Index:  primary keys
# Cost:   Planned at each call, because Django's connections prepare no statements. With the lock in a CTE, planning
#         took 0.16 ms instead of 0.08.
#
# It does not name the columns of the compensation, because the role of a worker without compensations must not write
# them: the call in them becomes a job. A row that exists keeps its compensation. It has one only if the step was stored
# with it before, and then its effects still have to be undone.
STORE_STEP: Final = """/* pgqueue:store_step */
""" + STEP_COLUMNS + STEP_VALUES + STEP_FENCE + """
RETURNING job_id
"""  # fmt: skip

# Store a step that has ended, with its compensation. Return nothing if the execution is not open, or is locked.
#
# Caller, Fence, Locks, Index, Cost: as STORE_STEP
STORE_STEP_AND_UNDO: Final = """/* pgqueue:store_step_and_undo */
""" + STEP_COLUMNS + """,
     compensation, compensation_arguments""" + STEP_VALUES + """,
       %(compensation)s::json, %(compensation_arguments)s::json""" + STEP_FENCE + """,
    compensation = excluded.compensation, compensation_arguments = excluded.compensation_arguments
RETURNING job_id
"""  # fmt: skip

# Suspend jobs whose task sleeps, waits for an event, or retries a step: close the execution, and store the reason in
# the row of the step. The job becomes ready, due at the time at which it continues. The attempt is not counted.
#
# Moves:  running → ready later, cancelled (if a cancellation was requested)
# Caller: lifecycle.steps.suspend(), from the completer
# Fence, Locks, Index: as SUCCEED
#
# A job that has started in time does not expire while it is suspended. If a job is suspended again by the same sleep or
# wait, the end that was stored first stays. The job is due exactly at that end. WAKE compares both times, to know
# whether this step suspends the job. So no other statement may make the job due at that time.
#
# New code may no longer call a wait that has not ended. Its event must not wake the job, which waits for something else
# now, so the other waits lose their events. If the code calls such a wait again, this statement stores its event again.
# CASE keeps the planner from the index of all waits.
SUSPEND: Final = """/* pgqueue:suspend */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.job_id, locked.attempt, locked.cancelled, given.started_seconds_ago,
           given.finished_seconds_ago, given.reason, given.name, given.position, given.kind, given.delay_seconds,
           given.tries, given.error, given.event_name, given.event_key,
           CASE WHEN given.has_end THEN coalesce(
               CASE WHEN given.kind <> 'step' THEN (
                   SELECT wake_at FROM pgqueue_step WHERE job_id = locked.job_id AND name = given.name
               ) END,
               statement_timestamp() + %(time_shift)s::interval + make_interval(secs => given.delay_seconds)
           ) END AS wake_at
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(started_seconds_ago)s::float8[],
        %(finished_seconds_ago)s::float8[], %(reasons)s::text[], %(names)s::varchar[], %(positions)s::float8[],
        %(kinds)s::varchar[], %(delays_seconds)s::float8[], %(have_end)s::boolean[], %(tries)s::integer[],
        %(errors)s::text[], %(event_names)s::varchar[], %(event_keys)s::varchar[]
    ) AS given (
        id, claimed_ms, started_seconds_ago, finished_seconds_ago, reason, name, position, kind, delay_seconds,
        has_end, tries, error, event_name, event_key
    )
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id, execution.attempt, job.cancel_requested_at IS NOT NULL AS cancelled
""" + LOCKED + """
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = 'suspended',
        error = mine.reason,
        started_at = statement_timestamp() + %(time_shift)s::interval - make_interval(secs => mine.started_seconds_ago),
""" + CLOSED + """
stored AS (
    INSERT INTO pgqueue_step
        (job_id, name, position, kind, attempt, tries, error, started_at, wake_at, event_name, event_key)
    SELECT job_id, name, position, kind, attempt, tries, error, statement_timestamp() + %(time_shift)s::interval,
           wake_at, nullif(event_name, ''), CASE WHEN event_name <> '' THEN event_key END
    FROM mine
    ON CONFLICT (job_id, name) DO UPDATE
    SET attempt = excluded.attempt, tries = excluded.tries, error = excluded.error,
        event_name = excluded.event_name, event_key = excluded.event_key, wake_at = excluded.wake_at
),
passed AS (
    UPDATE pgqueue_step AS step
    SET event_name = NULL, event_key = NULL
    FROM mine
    WHERE step.job_id = mine.job_id
      AND step.name <> mine.name
      AND CASE WHEN step.event_name IS NULL THEN false ELSE step.finished_at IS NULL END
),
""" + RELEASED + """
        unknown_since = NULL,
        expires_at = NULL,
        run_after = CASE
            WHEN mine.cancelled THEN job.run_after
            ELSE coalesce(
                mine.wake_at,
                statement_timestamp() + %(time_shift)s::interval + make_interval(secs => mine.delay_seconds)
            )
        END,
        finished_at = CASE
            WHEN mine.cancelled
            THEN statement_timestamp() + %(time_shift)s::interval - make_interval(secs => mine.finished_seconds_ago)
        END
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' ELSE 'ready' END FROM mine
"""  # fmt: skip

# Lock the jobs, and make them due now.
DUE_NOW: Final = """        FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
),
moved AS (
    UPDATE pgqueue_job AS job
    SET run_after = statement_timestamp() + %(time_shift)s::interval
    FROM mine
    WHERE job.id = mine.id
)"""

# Make the jobs due that wait for an event with this name and key. Return the number of waits in the page, its last job,
# and the jobs that are due now.
#
# Moves:  ready, unchanged
# Caller: lifecycle.steps.wake(), after the transaction that has sent the event has committed
# Locks:  SKIP LOCKED, in id order. The sweep wakes a job that was locked
# Index:  pgqueue_step_waiting
#
# If the job has failed or snoozed since its wait, it is due later for another reason, and its backoff stays. It finds
# the event when it runs again. A wait without an end suspends its job for 100 years.
WAKE: Final = """/* pgqueue:wake */
WITH page AS MATERIALIZED (
    SELECT job_id, wake_at
    FROM pgqueue_step
    WHERE event_name = %(event_name)s::varchar
      AND event_key = %(event_key)s::varchar
      AND finished_at IS NULL
      AND job_id > %(after_id)s::bigint
    ORDER BY job_id
    LIMIT %(limit)s
),
mine AS MATERIALIZED (
    SELECT locked.id
    FROM page
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM pgqueue_job AS job
        WHERE job.id = page.job_id
          AND page.job_id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
          AND job.state = 'ready'
          AND job.run_after > statement_timestamp() + %(time_shift)s::interval
          AND (
              job.run_after = page.wake_at
              OR page.wake_at IS NULL
                 AND job.run_after > statement_timestamp() + %(time_shift)s::interval + interval '50 years'
          )
""" + DUE_NOW + """
SELECT (SELECT count(*) FROM page), (SELECT max(job_id) FROM page), ARRAY (SELECT id FROM mine)
"""  # fmt: skip

# Make a job due if its event has come. Return the ids of the jobs that are due now.
#
# Moves:  ready, unchanged
# Caller: lifecycle.wake_suspended(), after SUSPEND has committed. An event that was committed before is seen here. The
#         sender of an event that is committed later sees the suspended job. And lifecycle.wake_missed(), with the jobs
#         that MISSED_WAKE_UPS has found.
# Locks:  SKIP LOCKED, in id order
# Index:  primary key, pgqueue_event_key
WAKE_SUSPENDED: Final = """/* pgqueue:wake_suspended */
WITH mine AS MATERIALIZED (
    SELECT locked.id
    FROM unnest(%(job_ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT job.id
        FROM pgqueue_job AS job
        WHERE job.id = given.id
          AND job.state = 'ready'
          AND job.run_after > statement_timestamp() + %(time_shift)s::interval
          AND EXISTS (
              SELECT
              FROM pgqueue_step AS step
              JOIN pgqueue_event AS event ON event.name = step.event_name AND event.key = step.event_key
              WHERE step.job_id = job.id
                AND step.event_name IS NOT NULL
                AND step.finished_at IS NULL
                AND (
                    job.run_after = step.wake_at
                    OR step.wake_at IS NULL
                       AND job.run_after > statement_timestamp() + %(time_shift)s::interval + interval '50 years'
                )
                AND event.id <> ALL (
                    ARRAY (SELECT coalesce(event_id, 0) FROM pgqueue_step WHERE job_id = step.job_id)
                )
          )
""" + DUE_NOW + """
SELECT id FROM mine
"""  # fmt: skip

# Return the jobs that still sleep and wait for one of these events, in the order of their ids.
#
# Caller: lifecycle.steps.wake_for_events(), before WAKE_SUSPENDED, in each worker that hears of the events. The first
#         one wakes the jobs, so the others find none
# Index:  pgqueue_event_pkey, pgqueue_step_waiting, pgqueue_job_pkey
WAITING_FOR_EVENTS: Final = """/* pgqueue:waiting_for_events */
SELECT DISTINCT job.id
FROM (SELECT DISTINCT name, key FROM pgqueue_event WHERE id = ANY (%(event_ids)s::bigint[])) AS event
CROSS JOIN LATERAL (
    SELECT job_id
    FROM pgqueue_step
    WHERE event_name = event.name AND event_key = event.key AND finished_at IS NULL
    LIMIT %(limit)s
) AS step
CROSS JOIN LATERAL (
    SELECT id
    FROM pgqueue_job
    WHERE id = step.job_id
      AND state = 'ready'
      AND run_after > statement_timestamp() + %(time_shift)s::interval
) AS job
ORDER BY job.id
LIMIT %(limit)s
"""

# Read one page of waits. Return the number of waits in the page, the values after which the next page begins, and the
# jobs that still sleep although their event has come.
#
# Caller: lifecycle.wake_missed(), page by page. WAKE_SUSPENDED wakes the jobs: those that are left if a process crashes
#         between a commit and its WAKE, or between SUSPEND and WAKE_SUSPENDED, and if an event was inserted by SQL.
# Index:  pgqueue_step_waiting, pgqueue_event_key, primary keys
MISSED_WAKE_UPS: Final = """/* pgqueue:missed_wake_ups */
WITH page AS MATERIALIZED (
    SELECT event_name, event_key, job_id
    FROM pgqueue_step
    WHERE event_name IS NOT NULL
      AND finished_at IS NULL
      AND (event_name, event_key, job_id)
          > (%(after_name)s::varchar, %(after_key)s::varchar, %(after_id)s::bigint)
    ORDER BY event_name, event_key, job_id
    LIMIT %(limit)s
),
due AS MATERIALIZED (
    SELECT job_id
    FROM page
    WHERE EXISTS (
        SELECT
        FROM pgqueue_event AS event
        WHERE event.name = page.event_name
          AND event.key = page.event_key
          AND event.id <> ALL (
              ARRAY (SELECT coalesce(event_id, 0) FROM pgqueue_step WHERE job_id = page.job_id)
          )
    )
),
asleep AS (
    SELECT job.id
    FROM due
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_job
        WHERE id = due.job_id
          AND state = 'ready'
          AND run_after > statement_timestamp() + %(time_shift)s::interval
    ) AS job
),
last AS (
    SELECT event_name, event_key, job_id FROM page ORDER BY event_name DESC, event_key DESC, job_id DESC LIMIT 1
)
SELECT (SELECT count(*) FROM page), (SELECT event_name FROM last), (SELECT event_key FROM last),
       (SELECT job_id FROM last), ARRAY (SELECT id FROM asleep)
"""

# Remove the steps of these jobs. Return the job of each, and whether it had a compensation that was not added yet.
#
# Caller: lifecycle.remove_steps(), after SUCCEED_AND_DISCARD has removed jobs that had used steps, and in the
#         transaction of a statement that has replaced the calls of jobs
# Index:  primary key
REMOVE_STEPS: Final = """/* pgqueue:remove_steps */
DELETE FROM pgqueue_step WHERE job_id = ANY (%(job_ids)s::bigint[]) RETURNING job_id, compensation IS NOT NULL
"""

# Remove the steps of jobs that no longer exist, from one page of the table. Return how many rows the page had, how many
# of them were removed, and the last job of the page. The page has all rows of its last job.
#
# Caller: lifecycle.orphans.prune_orphans(), page by page. The statements that remove jobs remove their steps too; this
#         one is for jobs that were deleted by SQL, and for a crash between SUCCEED_AND_DISCARD and REMOVE_STEPS.
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  primary keys
PRUNE_STEPS: Final = """/* pgqueue:prune_steps */
WITH page AS MATERIALIZED (
    SELECT job_id, name
    FROM pgqueue_step
""" + LEFT_OVER + """
mine AS MATERIALIZED (
    SELECT job_id, name
    FROM pgqueue_step
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM left_over))
    ORDER BY job_id, name
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT job_id FROM mine))
)
SELECT count(*), (SELECT count(*) FROM mine), max(job_id) FROM page
"""  # fmt: skip
