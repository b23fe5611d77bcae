"""The clauses that statements of several modules share. A clause of one module stands above its first statement."""

from typing import Final

# The execution of this claim, open or not. Its id alone does not identify it.
OF_CLAIM: Final = """        WHERE execution.id = given.id
          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms"""

# The same, with its job.
JOB_OF_CLAIM: Final = """        FROM pgqueue_execution AS execution
        JOIN pgqueue_job AS job ON job.id = execution.job_id
""" + OF_CLAIM  # fmt: skip

# The fence of a worker's transitions: an open execution of this claim, with the job that runs in it.
FENCED: Final = JOB_OF_CLAIM + """
          AND execution.outcome IS NULL
          AND job.execution_id = execution.id"""  # fmt: skip

# The row locks of a worker's transitions, to the end of the CTE.
LOCK_BOTH: Final = """        FOR NO KEY UPDATE OF execution, job SKIP LOCKED
    ) AS locked
),"""

# The fence with the row locks, to the end of the CTE.
LOCKED: Final = FENCED + "\n" + LOCK_BOTH

# The end of an execution some seconds ago, to the end of the CTE.
CLOSED: Final = """        finished_at = statement_timestamp() + %(time_shift)s::interval
            - make_interval(secs => mine.finished_seconds_ago)
    FROM mine
    WHERE execution.id = mine.id
),"""

# Make jobs ready again without counting the attempt, or cancel them. They give up a key that ends with the first claim.
RELEASED: Final = """moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' ELSE 'ready' END,
        attempt = greatest(job.attempt - 1, 0),
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,"""

# When a job is due for its next attempt. It keeps its time if it has none.
DUE_AGAIN: Final = """        run_after = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL THEN job.run_after
            ELSE statement_timestamp() + %(time_shift)s::interval + make_interval(secs => mine.delay_seconds)
        END,"""

# The same, and the end of a job that has no other attempt.
DUE_OR_ENDED: Final = DUE_AGAIN + """
        finished_at = CASE
            WHEN mine.cancelled OR mine.delay_seconds IS NULL
            THEN statement_timestamp() + %(time_shift)s::interval
        END
    FROM mine"""  # fmt: skip

# Open an execution for each due job, up to the time of the claim.
OPENED: Final = """opened AS (
    INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at)
    SELECT execution_id, id, attempt + 1, %(worker_id)s,
           statement_timestamp() + %(time_shift)s::interval,"""

# The same, and start all of them at once, to the end of the CTE.
STARTED: Final = OPENED + """
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(lease_seconds)s::float8)
    FROM due
)"""  # fmt: skip

# Leave out the jobs that lifecycle.claims.exclusions() names: those whose rows make claims fail, and those of paused
# tasks.
NOT_EXCLUDED: Final = """          AND id <> ALL (%(skipped_ids)s::bigint[])
          AND task_name <> ALL (%(paused_task_names)s::varchar[])"""

# The ready jobs with a limit key in one lane.
LIMITED_IN_LANE: Final = """        WHERE state = 'ready'
          AND limit_key IS NOT NULL
          AND queue_name = %(queue_name)s
          AND priority = %(priority)s"""

# The arguments of a job. They are '' if a worker must not read them, because a program has added more by SQL than
# `enqueue()` would. So a claim returns as many bytes as the slots can take, whatever the rows have.
#
# pg_column_size() reads no value that is stored out of line. Up to 2,000 bytes, a value can be compressed: no value of
# that size has more than 510 kB. A larger one is read, and measured, unless it is too large as it is stored.
ARGUMENTS: Final = """CASE WHEN pg_column_size(job.arguments) > 2000
              AND (pg_column_size(job.arguments) > %(most_bytes)s
                   OR octet_length(job.arguments::text) > %(most_bytes)s)
         THEN '' ELSE job.arguments::text END"""

# The headers of a job in the same way. `enqueue()` refuses more than 4 kB.
HEADERS: Final = """CASE WHEN pg_column_size(job.headers) > 16384 OR octet_length(job.headers::text) > 16384
         THEN '' ELSE job.headers::text END"""

# The size of the arguments, or 0 for those that a claim does not return.
SIZE: Final = """CASE WHEN pg_column_size(arguments) > %(most_bytes)s THEN 0
                  ELSE octet_length(arguments::text) END AS size"""

# Make the due jobs run, and return the first columns of each.
RUN: Final = """UPDATE pgqueue_job AS job
SET state = 'running', attempt = due.attempt + 1, worker_id = %(worker_id)s, execution_id = due.execution_id
FROM due
WHERE job.id = due.id
RETURNING
    job.id, job.execution_id, job.task_name, job.queue_name, job.priority, job.run_after,
    """ + ARGUMENTS + """,
    job.attempt, job.max_attempts, job.crashes, job.isolated,"""  # fmt: skip

# The same with all columns of a claimed job. The times are those of the statement.
CLAIMED_JOBS: Final = RUN + """
    CASE WHEN isfinite(job.unknown_since)
         THEN date_part('epoch', statement_timestamp() + %(time_shift)s::interval - job.unknown_since) END,
    (SELECT floor(1000 * date_part('epoch', statement_timestamp() + %(time_shift)s::interval))::bigint),
    """ + HEADERS + """,
    CASE WHEN isfinite(job.expires_at)
         THEN date_part('epoch', job.expires_at - statement_timestamp() - %(time_shift)s::interval) END,
    job.batch_id, job.in_graph
"""  # fmt: skip

# When a new or replaced job is due: at a time, or after a delay.
DUE_AT: Final = """coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(delay_seconds)s::float8)
    )"""

# When a new or replaced job expires: at a time, after a while, or never.
EXPIRES_AT: Final = """coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(expires_seconds)s::float8)
    )"""

# When jobs are enqueued, become due and expire, with their headers between.
TIMES: Final = """    statement_timestamp() + %(time_shift)s::interval,
    """ + DUE_AT + """,
    %(headers)s::json,
    """ + EXPIRES_AT + ","  # fmt: skip

# The columns from `task_name` to `expires_at` of jobs with options of their own.
VALUES_OF_EACH: Final = """chosen.task_name, chosen.queue_name, chosen.priority, given.arguments, chosen.max_attempts,
    statement_timestamp() + %(time_shift)s::interval,
    coalesce(
        chosen.run_after,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => chosen.delay_seconds)
    ),
    chosen.headers::json,
    coalesce(
        chosen.expires_at,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => chosen.expires_seconds)
    ),"""

# The options of jobs that have their own. Those of a unique key and the batch follow.
OPTIONS: Final = """JOIN json_to_recordset(%(options)s::json) AS chosen (
    number integer, task_name varchar, queue_name varchar, priority smallint, max_attempts smallint,
    run_after timestamptz, delay_seconds float8, headers text, expires_at timestamptz, expires_seconds float8,"""

# The same for jobs without a unique key, and the order of the calls.
OPTIONS_OF_EACH: Final = OPTIONS + """
    batch_id bigint
) ON chosen.number = given.number
ORDER BY given.place"""  # fmt: skip

# True if a job of the workflow needs this one, otherwise no row.
NEEDED: Final = """              SELECT true
              FROM pgqueue_job AS other
              WHERE other.batch_id = job.batch_id
                AND other.state = ANY (
                    CASE job.state
                        WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                        WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                        ELSE '{waiting,ready,running}'::varchar[]
                    END
                )
              LIMIT 1"""

# Whether no job of the workflow needs this one (NEEDS).
UNNEEDED: Final = """          job.in_graph IS NULL
          OR (
""" + NEEDED + """
          ) IS NULL"""  # fmt: skip

# True if the job undoes a step, and compensations that wait for it are not added yet, otherwise no row.
NEEDED_BY_SAGA: Final = """              SELECT true
              FROM pgqueue_step AS undone
              WHERE undone.compensation_id = job.id
                AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
              LIMIT 1"""

# A compensation that is not over: its job has not succeeded, or there are others that are not added yet. RETRY does not
# change the job then, and IS_COMPENSATING says so.
OPEN_COMPENSATION: Final = """          AND (
              undo.state <> 'succeeded'
              OR (
                  SELECT true FROM pgqueue_step WHERE job_id = step.job_id AND compensation IS NOT NULL LIMIT 1
              ) IS NOT NULL
          )
        LIMIT 1"""

# The entries of the audit by which *Edit and retry* has made a new job of this one. Their filter names the old job,
# also after an erasure of arguments. A subquery of one row reads the entry, because a join may read the whole audit.
EDITS: Final = """FROM pgqueue_audit_job AS edited
        WHERE edited.job_id = job.id
          AND (
              SELECT act.action = 'edit_and_retry' AND act.filter #>> '{jobs,0}' = job.id::text
              FROM pgqueue_audit AS act
              WHERE act.id = edited.audit_id
          )"""

# Lock the executions of the old jobs, which are to be deleted with them.
LOCKED_TO_DELETE: Final = """locked AS MATERIALIZED (
    SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) ORDER BY id FOR UPDATE SKIP LOCKED
),
"""

# Which of the old jobs have an execution that another session has locked, or a pending compensation.
BUSY: Final = """busy AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM locked)
    UNION ALL
    SELECT job_id FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND compensation IS NOT NULL
)"""

# The same, and the old jobs that are not among them.
FREE: Final = BUSY + """,
free AS MATERIALIZED (
    SELECT id FROM old WHERE id NOT IN (SELECT job_id FROM busy)
)"""  # fmt: skip

# The kept lines of the free jobs: those of locked executions whose job is free.
LINES_OF_FREE: Final = """execution_id = ANY (ARRAY (SELECT id FROM locked))
      AND (SELECT job_id FROM pgqueue_execution WHERE id = log.execution_id) = ANY (ARRAY (SELECT id FROM free))"""

# Count the removed jobs for their batches, which keep the numbers.
COUNTED_REMOVALS: Final = """counted AS (
    INSERT INTO pgqueue_batch_removal (batch_id, state, count)
    SELECT batch_id, state, count(*)
    FROM gone
    WHERE batch_id IS NOT NULL
    GROUP BY batch_id, state
)"""

# The page of running jobs behind an execution, worker by worker.
RUNNING_PAGE: Final = """FROM pgqueue_job
WHERE state = 'running'
  AND worker_id IS NOT NULL
  AND (worker_id, execution_id) > (%(after_worker_id)s::bigint, %(after_id)s::bigint)
ORDER BY worker_id, execution_id
LIMIT %(limit)s::bigint"""

# The page behind a batch of those that have not succeeded: only their callbacks can still be called.
UNSETTLED_PAGE: Final = """FROM pgqueue_batch
WHERE succeeded_at IS NULL AND id > %(after_id)s::bigint
ORDER BY id
LIMIT %(limit)s::bigint"""

# When a pause or an override ends: at a time, after a while, or not by itself.
UNTIL: Final = """coalesce(
        %(until)s::timestamptz,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(for_seconds)s::float8)
    )"""

# Let the server end the session if it is idle in this transaction for `idle_wait`, so that a frozen process does not
# keep its locks. If `idle_wait` is NULL, the limit of the session stays.
IDLE_WAIT: Final = """CROSS JOIN set_config(
    'idle_in_transaction_session_timeout',
    coalesce(%(idle_wait)s::text, current_setting('idle_in_transaction_session_timeout')),
    true
)"""

# The page of a table behind a job, and which of its jobs no longer exist.
LEFT_OVER: Final = """    WHERE job_id > %(after_id)s::bigint
    ORDER BY job_id
    FETCH FIRST (%(limit)s::bigint) ROWS WITH TIES
),
left_over AS MATERIALIZED (
    SELECT DISTINCT job_id
    FROM page
    WHERE (SELECT true FROM pgqueue_job AS job WHERE job.id = page.job_id) IS NULL
      AND job_id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
),"""
