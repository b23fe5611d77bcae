"""Statements that complete an execution, release it, or write its progress."""

from typing import Final

from .clauses import CLOSED, DUE_AGAIN, JOB_OF_CLAIM, LEFT_OVER, LOCKED, OF_CLAIM, RELEASED

# The executions of these claims that are open, with their jobs, to the end of the CTE.
MINE: Final = """    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id
""" + LOCKED  # fmt: skip

# Close executions as succeeded, and their jobs with them.
#
# Moves:  running → succeeded
# Caller: lifecycle.completions.succeed(), from the completer or from an atomic task's own transaction
# Fence:  id and time of the claim, outcome IS NULL
# Locks:  execution and job, SKIP LOCKED, in the order of `execution_ids`, which is ascending
# Index:  primary keys
#
# Times are passed as microseconds ago, so that the worker's clock does not matter. Both sides read and write whole
# numbers faster than others. The place of the locked row finds the job
# again without its index. If another session has changed the job since the statement began, its row is at another
# place. The statement changes nothing then, and the caller repeats it as for a locked row.
#
# Each row is read and locked by a subquery of its own, so the plan does not depend on statistics. A join of all rows
# cost 2,700 instructions less for each job of a batch of 500. But without statistics it could compare all open
# executions with all given ones, and then cost twice as much.
SUCCEED: Final = """/* pgqueue:succeed */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.place, given.result,
           make_interval(secs => 0.000001::float8 * given.started_us_ago) AS started_ago,
           make_interval(secs => 0.000001::float8 * given.finished_us_ago) AS finished_ago
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(results)s::text[],
        %(started_us_ago)s::bigint[], %(finished_us_ago)s::bigint[]
    ) AS given (id, claimed_ms, result, started_us_ago, finished_us_ago)
    CROSS JOIN LATERAL (
        SELECT execution.id, job.ctid AS place
""" + LOCKED + """
done AS (
    UPDATE pgqueue_job AS job
    SET state = 'succeeded',
        result = mine.result::json,
        finished_at = statement_timestamp() + %(time_shift)s::interval - mine.finished_ago
    FROM mine
    WHERE job.ctid = mine.place
    RETURNING mine.id, mine.started_ago, job.finished_at
)
UPDATE pgqueue_execution AS execution
SET outcome = 'succeeded',
    started_at = statement_timestamp() + %(time_shift)s::interval - done.started_ago,
    finished_at = done.finished_at
FROM done
WHERE execution.id = done.id
RETURNING execution.id
"""  # fmt: skip

# Close executions as succeeded, and remove their jobs. The completer uses this for tasks that keep no finished jobs.
#
# Moves:  running → removed
# Caller: lifecycle.completions.succeed_and_discard()
# Fence, Locks, Index: as SUCCEED
SUCCEED_AND_DISCARD: Final = """/* pgqueue:succeed_and_discard */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.job_id
    FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
""" + MINE + """
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT job_id FROM mine)) RETURNING batch_id
),
counted AS (
    INSERT INTO pgqueue_batch_removal (batch_id, state, count)
    SELECT batch_id, 'succeeded', count(*)
    FROM gone
    WHERE batch_id IS NOT NULL
    GROUP BY batch_id
),
unkeyed AS (
    DELETE FROM pgqueue_search_key WHERE job_id = ANY (ARRAY (SELECT job_id FROM mine))
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT job_id FROM mine))
)
SELECT id FROM mine
"""  # fmt: skip

# Close executions as failed or crashed. Their jobs become ready for the next attempt, dead or cancelled.
#
# Moves:  running → ready later (with a delay), dead (without one), cancelled (if a cancellation was requested)
#
# The worker chooses the delay by the `max_attempts` of the claim. An operator can have changed it since. If this was
# the last attempt, the job becomes dead all the same. If it is no longer the last one, the spare delay counts.
#
# Caller: lifecycle.completions.fail(), from the completer, and from the supervisor for a child process that died
# Fence, Locks, Index: as SUCCEED
#
# Only executions that had started are charged with a crash. If no heartbeat has recorded the start of a crashed
# execution, its start is recorded as now.
FAIL: Final = """/* pgqueue:fail */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.job_id, locked.cancelled, given.outcome,
           CASE WHEN locked.has_more THEN coalesce(given.delay_seconds, given.spare_seconds) END AS delay_seconds,
           given.started_seconds_ago, given.finished_seconds_ago,
           given.exception_class, given.error, given.traceback
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(outcomes)s::text[], %(delays_seconds)s::float8[],
        %(spares_seconds)s::float8[], %(started_seconds_ago)s::float8[], %(finished_seconds_ago)s::float8[],
        %(exception_classes)s::text[], %(errors)s::text[], %(tracebacks)s::text[]
    ) AS given (
        id, claimed_ms, outcome, delay_seconds, spare_seconds, started_seconds_ago, finished_seconds_ago,
        exception_class, error, traceback
    )
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id, job.cancel_requested_at IS NOT NULL AS cancelled,
               job.attempt < job.max_attempts AS has_more
""" + LOCKED + """
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = mine.outcome,
        started_at = coalesce(
            statement_timestamp() + %(time_shift)s::interval - make_interval(secs => mine.started_seconds_ago),
            execution.started_at,
            CASE WHEN mine.outcome = 'crashed'
                 THEN statement_timestamp() + %(time_shift)s::interval END
        ),
        finished_at = statement_timestamp() + %(time_shift)s::interval
            - make_interval(secs => mine.finished_seconds_ago),
        exception_class = mine.exception_class,
        error = mine.error,
        traceback = mine.traceback
    FROM mine
    WHERE execution.id = mine.id
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' WHEN mine.delay_seconds IS NULL THEN 'dead' ELSE 'ready' END,
        crashes = least(job.crashes + (mine.outcome = 'crashed')::int, 32767),
        isolated = job.isolated OR mine.outcome = 'crashed',
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,
        unknown_since = NULL,
""" + DUE_AGAIN + """
        finished_at = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL
            THEN statement_timestamp() + %(time_shift)s::interval - make_interval(secs => mine.finished_seconds_ago)
        END
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' WHEN delay_seconds IS NULL THEN 'dead' ELSE 'ready' END FROM mine
"""  # fmt: skip

# Release executions without counting the attempt. Their jobs become ready again.
#
# Moves:  running → ready (at its old time, or after a delay), cancelled (if a cancellation was requested)
# Caller: lifecycle.completions.release() and snooze()
# Fence, Locks, Index: as SUCCEED
#
# `unknown`: the worker cannot run the job. The job keeps the time of the first such release until an attempt has
# started. For jobs that go into free slots, the claim records the start.
#
# `holds`: the task raised `Throttled`. The limit key of its job is held until the job is due. The hold is a row of its
# own, which no claim replaces, so the statement needs no lock of the key.
RELEASE: Final = """/* pgqueue:release */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.job_id, locked.started, locked.cancelled, given.delay_seconds, given.error,
           CASE WHEN given.holds AND given.delay_seconds > 0 THEN locked.limit_key END AS held_key
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(delays_seconds)s::float8[], %(errors)s::text[],
        %(holds)s::boolean[]
    ) AS given (id, claimed_ms, delay_seconds, error, holds)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id, execution.started_at IS NOT NULL AS started, execution.limit_key,
               job.cancel_requested_at IS NOT NULL AS cancelled
""" + LOCKED + """
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = %(outcome)s,
        error = mine.error,
        finished_at = statement_timestamp() + %(time_shift)s::interval
    FROM mine
    WHERE execution.id = mine.id
),
held AS (
    INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until)
    SELECT held_key, until, until
    FROM (
        SELECT held_key,
               statement_timestamp() + %(time_shift)s::interval + make_interval(secs => max(delay_seconds)) AS until
        FROM mine
        WHERE held_key IS NOT NULL
        GROUP BY held_key
    ) AS longest
),
""" + RELEASED + """
        unknown_since = CASE
            WHEN %(unknown)s THEN
                coalesce(
                    job.unknown_since, statement_timestamp() + %(time_shift)s::interval
                )
            WHEN %(outcome)s = 'released' AND NOT mine.started THEN job.unknown_since
        END,
""" + DUE_AGAIN + """
        finished_at = CASE
            WHEN mine.cancelled THEN statement_timestamp() + %(time_shift)s::interval
        END
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' ELSE 'ready' END FROM mine
"""  # fmt: skip

# Close executions whose task raised `Cancel`, or that stopped because of a cancellation request.
#
# Moves:  running → cancelled
# Caller: lifecycle.completions.end_cancelled()
# Fence, Locks, Index: as SUCCEED
END_CANCELLED: Final = """/* pgqueue:end_cancelled */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.job_id, given.started_seconds_ago, given.finished_seconds_ago, given.error
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(started_seconds_ago)s::float8[],
        %(finished_seconds_ago)s::float8[], %(errors)s::text[]
    ) AS given (id, claimed_ms, started_seconds_ago, finished_seconds_ago, error)
""" + MINE + """
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = 'cancelled',
        error = mine.error,
        started_at = coalesce(
            statement_timestamp() + %(time_shift)s::interval - make_interval(secs => mine.started_seconds_ago),
            execution.started_at
        ),
""" + CLOSED + """
done AS (
    UPDATE pgqueue_job AS job
    SET state = 'cancelled',
        finished_at = statement_timestamp() + %(time_shift)s::interval
            - make_interval(secs => mine.finished_seconds_ago)
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id FROM mine
"""  # fmt: skip

# Write the progress that running attempts have reported.
#
# Moves:  running, unchanged
# Caller: lifecycle.completions.note_progress(), at most once a second from each completer, and before the end of an
#         attempt is written
# Fence, Locks, Index: as SUCCEED
# Cost:   one HOT update per job, because no index has these columns. Progress is in the job's row and not in the
#         execution's, because it outlives the attempt.
NOTE_PROGRESS: Final = """/* pgqueue:note_progress */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.job_id, given.done, given.total, given.message, given.noted_seconds_ago
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(done)s::float8[], %(totals)s::float8[],
        %(messages)s::text[], %(noted_seconds_ago)s::float8[]
    ) AS given (id, claimed_ms, done, total, message, noted_seconds_ago)
""" + MINE + """
noted AS (
    UPDATE pgqueue_job AS job
    SET progress_done = mine.done,
        progress_total = mine.total,
        progress_message = mine.message,
        progress_at = statement_timestamp() + %(time_shift)s::interval - make_interval(secs => mine.noted_seconds_ago)
    FROM mine
    WHERE job.id = mine.job_id
)
SELECT id FROM mine
"""  # fmt: skip

# Return the outcomes of executions that a transition skipped because they were closed or locked, whether their jobs
# exist, and whether these run in them.
#
# Caller: lifecycle, after a transition that returned fewer executions than were requested, and for the lease monitor
SETTLE: Final = """/* pgqueue:settle */
SELECT asked.id, asked.outcome, asked.has_job, asked.is_current
FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
CROSS JOIN LATERAL (
    SELECT execution.id, execution.outcome, job.id IS NOT NULL AS has_job,
           coalesce(job.execution_id = execution.id, false) AS is_current
    FROM pgqueue_execution AS execution
    LEFT JOIN pgqueue_job AS job ON job.id = execution.job_id
""" + OF_CLAIM + """
    OFFSET 0
) AS asked
"""  # fmt: skip

# Return the stored results of jobs that have succeeded in these executions, as text.
#
# Caller: lifecycle.completions.stored_results(), for completions of remote workers that were written before
# Cost:   nothing for a completion that is not repeated
STORED_RESULTS: Final = """/* pgqueue:stored_results */
SELECT asked.id, asked.result
FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
CROSS JOIN LATERAL (
    SELECT execution.id, job.result::text AS result
""" + JOB_OF_CLAIM + """
      AND job.execution_id = execution.id
      AND job.state = 'succeeded'
    OFFSET 0
) AS asked
"""  # fmt: skip

# Remove open executions whose job was deleted by hand.
#
# Caller: lifecycle, after SETTLE found one
REMOVE_ORPHANS: Final = """/* pgqueue:remove_orphans */
WITH orphan AS MATERIALIZED (
    SELECT locked.id
    FROM unnest(%(execution_ids)s::bigint[], %(claimed_ms)s::float8[]) AS given (id, claimed_ms)
    CROSS JOIN LATERAL (
        SELECT id
        FROM pgqueue_execution AS execution
        WHERE id = given.id
          AND floor(1000 * date_part('epoch', claimed_at)) = given.claimed_ms
          AND (SELECT true FROM pgqueue_job AS job WHERE job.id = execution.job_id) IS NULL
        FOR UPDATE SKIP LOCKED
    ) AS locked
)
DELETE FROM pgqueue_execution WHERE id = ANY (ARRAY (SELECT id FROM orphan))
"""

# Remove the executions of jobs that no longer exist, from one page of the table. Return how many rows the page had, how
# many of them were removed, and the last job of the page. The page has all rows of its last job.
#
# Caller: lifecycle.orphans.prune_orphans(), page by page. The statements that remove jobs remove their executions too;
#         this one is for jobs that were deleted by SQL. No index finds their open executions, because that of running
#         jobs has an entry only while the job exists
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  pgqueue_execution_job, primary keys
PRUNE_EXECUTIONS: Final = """/* pgqueue:prune_executions */
WITH page AS MATERIALIZED (
    SELECT job_id, id
    FROM pgqueue_execution
""" + LEFT_OVER + """
mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM left_over))
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_execution WHERE id = ANY (ARRAY (SELECT id FROM mine))
)
SELECT count(*), (SELECT count(*) FROM mine), max(job_id) FROM page
"""  # fmt: skip
