"""Statements of an operator's acts on jobs: cancel, retry, acknowledge, run now, move, change attempts and delete.

`lifecycle.operator` runs them.

Each changes a job only if it is still as the operator saw it, and skips a row that another transaction has locked.
"""

from typing import Final

from .clauses import COUNTED_REMOVALS, EDITS, FREE, LINES_OF_FREE, LOCKED_TO_DELETE, OPEN_COMPENSATION, UNNEEDED

# The jobs with their states. If the state or `finished_at` is not what the operator saw, the word is 'changed' instead.
# So it is if the operator saw whether the job was acknowledged ('true', 'false'; '' if not), and that has changed.
ASKED: Final = """WITH asked AS MATERIALIZED (
    SELECT job.id, CASE
               WHEN seen.state <> '' AND (
                   job.state <> seen.state OR job.finished_at IS DISTINCT FROM nullif(seen.instant, '')::timestamptz
                   OR seen.acknowledged <> '' AND seen.acknowledged::boolean <> (job.acknowledged_at IS NOT NULL)
               )
               THEN 'changed'
               ELSE job.state"""

# The rows of the jobs and their locks, to the end of the CTE.
LOCKED_AS_SEEN: Final = """        FROM pgqueue_job
        WHERE id = seen.id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),"""

# Cancel ready and waiting jobs. With `running`, also request the cancellation of running jobs.
#
# Moves:  ready, waiting → cancelled; running: sets the job's cancel_requested_at
# Caller: lifecycle.operator.cancel()
# Fence:  what the operator saw, if `seen_states` has it ('' if not): the state and the exact `finished_at`
#
# The rows are found by id only, and their state is checked after they are locked. With the state in the WHERE clause
# that finds them, a claim that was just committing made this statement answer "nothing to cancel".
CANCEL: Final = """/* pgqueue:cancel */
""" + ASKED + """
           END AS state, job.cancel_requested_at, job.in_graph
    FROM unnest(
        %(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[], %(seen_acknowledged)s::text[]
    ) AS seen (id, state, instant, acknowledged)
    CROSS JOIN LATERAL (
        SELECT id, state, finished_at, acknowledged_at, cancel_requested_at, in_graph
""" + LOCKED_AS_SEEN + """
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN asked.state IN ('ready', 'waiting') THEN 'cancelled' ELSE asked.state END,
        cancel_requested_at = coalesce(
            asked.cancel_requested_at, statement_timestamp() + %(time_shift)s::interval
        ),
        finished_at = CASE
            WHEN asked.state IN ('ready', 'waiting')
            THEN statement_timestamp() + %(time_shift)s::interval
        END
    FROM asked
    WHERE job.id = asked.id
      AND (
          asked.state IN ('ready', 'waiting')
          OR (%(running)s AND asked.state = 'running' AND asked.cancel_requested_at IS NULL)
      )
)
SELECT id, CASE
    WHEN state IN ('ready', 'waiting') THEN 'cancelled'
    WHEN %(running)s AND state = 'running' AND cancel_requested_at IS NULL THEN 'running'
END, in_graph
FROM asked
"""  # fmt: skip

# Make finished jobs ready again, as if they were new. A job is not changed if another job has its unique key now. Of
# several jobs with the same key, only the latest is retried.
#
# Moves:  finished → ready
# Caller: lifecycle.operator.retry(), for an operator
# Fence:  what the operator saw, if `seen_states` has it ('' if not): the state and the exact `finished_at`. A job that
#         another operator has retried and that has failed again has another `finished_at`
#
# Executions stay. `isolated` stays, because a job that has crashed a worker can crash it again after a retry. Progress
# stays, so that the task can continue from it. Jobs that had succeeded lose their progress, because their work has to
# be done again. A job that was acknowledged is so no longer, and blocks its limit key again if it dies again, unless
# the key was erased: all erased jobs of a limit have one key.
#
# A job whose compensation has begun and is not over is not changed. The steps that were compensated are removed, so
# they run again.
#
# A job of which *Edit and retry* has made a new job is not changed, unless `with_edited`: its task would run twice. An
# edit can commit after this statement has taken its snapshot, which does not show its entry of the audit. But the edit
# has written the row of the job (TOUCH), so the locked row is at a place that the snapshot does not show, and the
# update does not find it. The job is not in the answer then, and the caller repeats the statement as for a locked row.
#
# The subqueries are scalar, because the planner could replace EXISTS by a hash of all unique keys.
RETRY: Final = """/* pgqueue:retry */
""" + ASKED + """
           END AS state, job.place, job.task_name, job.unique_key, job.in_graph,
           CASE WHEN %(with_edited)s THEN NULL ELSE (
        SELECT true
        """ + EDITS + """
        LIMIT 1
           ) END AS is_edited
    FROM unnest(
        %(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[], %(seen_acknowledged)s::text[]
    ) AS seen (id, state, instant, acknowledged)
    CROSS JOIN LATERAL (
        SELECT id, ctid AS place, state, finished_at, acknowledged_at, task_name, unique_key, in_graph
""" + LOCKED_AS_SEEN + """
fit AS MATERIALIZED (
    SELECT id, place, state
    FROM (
        SELECT asked.*, row_number() OVER (PARTITION BY task_name, unique_key ORDER BY id DESC) AS rank
        FROM asked
        WHERE state IN ('succeeded', 'dead', 'cancelled')
    ) AS finished
    WHERE is_edited IS NULL
    AND (
        SELECT true
        FROM pgqueue_step AS step
        LEFT JOIN pgqueue_job AS undo ON undo.id = step.compensation_id
        WHERE step.job_id = finished.id
          AND step.compensation_id IS NOT NULL
""" + OPEN_COMPENSATION + """
    ) IS NULL
    AND (
        unique_key IS NULL
        OR rank = 1 AND (
            SELECT true
            FROM pgqueue_job AS owner
            WHERE owner.task_name = finished.task_name
              AND owner.unique_key = finished.unique_key
              AND owner.unique_key IS NOT NULL
              AND (owner.state = 'ready' OR (owner.state = 'running' AND owner.unique_ready_only IS NULL))
            LIMIT 1
        ) IS NULL
    )
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = 'ready', attempt = 0, crashes = 0, result = NULL,
        finished_at = NULL, acknowledged_at = NULL, cancel_requested_at = NULL, unknown_since = NULL, expires_at = NULL,
        limit_order = CASE
            WHEN job.limit_order IS DISTINCT FROM 3 THEN job.limit_order
            WHEN right(job.limit_key, 9) = ':[erased]' THEN 1
            ELSE 2
        END,
        progress_done = CASE WHEN fit.state <> 'succeeded' THEN job.progress_done END,
        progress_total = CASE WHEN fit.state <> 'succeeded' THEN job.progress_total END,
        progress_message = CASE WHEN fit.state <> 'succeeded' THEN job.progress_message END,
        progress_at = CASE WHEN fit.state <> 'succeeded' THEN job.progress_at END,
        run_after = statement_timestamp() + %(time_shift)s::interval
    FROM fit
    WHERE job.ctid = fit.place
    RETURNING fit.id, fit.state
),
unstepped AS (
    DELETE FROM pgqueue_step
    WHERE job_id = ANY (ARRAY (SELECT id FROM moved))
      AND (compensation_id IS NOT NULL OR job_id IN (SELECT id FROM moved WHERE state = 'succeeded'))
)
SELECT id, CASE WHEN id IN (SELECT id FROM moved) THEN 'ready' END, in_graph
FROM asked
WHERE id IN (SELECT id FROM moved) OR id NOT IN (SELECT id FROM fit)
"""  # fmt: skip

# Acknowledge dead jobs: they stay dead, and leave the index of dead letters. A job that blocks its limit key blocks it
# no longer: its order becomes 3, which pgqueue_job_ordered does not contain. So claims and removals need no further
# condition. The last column of the answer is whether the job has blocked its key.
#
# Moves:  dead, unchanged: sets the job's acknowledged_at
# Caller: lifecycle.operator.acknowledge(), for an operator
# Fence:  what the operator saw, as for RETRY, and that nobody has acknowledged the job
# Index:  the primary key
ACKNOWLEDGE: Final = """/* pgqueue:acknowledge */
""" + ASKED + """
           END AS state, job.acknowledged_at, job.limit_order = 2 AS is_blocking
    FROM unnest(
        %(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[], %(seen_acknowledged)s::text[]
    ) AS seen (id, state, instant, acknowledged)
    CROSS JOIN LATERAL (
        SELECT id, state, finished_at, acknowledged_at, limit_order
""" + LOCKED_AS_SEEN + """
moved AS (
    UPDATE pgqueue_job AS job
    SET acknowledged_at = statement_timestamp() + %(time_shift)s::interval,
        limit_order = CASE WHEN asked.is_blocking THEN 3 ELSE job.limit_order END
    FROM asked
    WHERE job.id = asked.id AND asked.state = 'dead' AND asked.acknowledged_at IS NULL
)
SELECT id, CASE WHEN state = 'dead' AND acknowledged_at IS NULL THEN state END, is_blocking
FROM asked
"""  # fmt: skip

# Write a finished job again as it is, so that a RETRY which has begun does not change it. Return no row if the job has
# changed since the operator saw it, or is locked.
#
# Moves:  finished, unchanged
# Caller: lifecycle.operator.touch(), in the transaction of *Edit and retry*
# Fence:  what the operator saw, as for RETRY
# Index:  the primary key
TOUCH: Final = """/* pgqueue:touch */
UPDATE pgqueue_job AS job
SET state = job.state
WHERE job.id = (
    SELECT id
    FROM pgqueue_job
    WHERE id = %(job_id)s AND state = %(state)s
      AND finished_at IS NOT DISTINCT FROM nullif(%(instant)s, '')::timestamptz
    FOR NO KEY UPDATE SKIP LOCKED
)
RETURNING job.id
"""

# Set the due time of ready and waiting jobs that are due later to now.
#
# Moves:  ready, waiting, unchanged
# Caller: lifecycle.operator.run_now(), for an operator
# Fence:  what the operator saw, as for RETRY, with `run_after` in place of `finished_at`: each retry sets a new one
RUN_NOW: Final = """/* pgqueue:run_now */
WITH asked AS MATERIALIZED (
    SELECT job.id, job.state, job.state IN ('ready', 'waiting')
            AND job.run_after > statement_timestamp() + %(time_shift)s::interval
            AND (seen.state = '' OR job.state = seen.state AND job.run_after = seen.instant::timestamptz) AS waits
    FROM unnest(%(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[]) AS seen (id, state, instant)
    CROSS JOIN LATERAL (
        SELECT id, state, run_after FROM pgqueue_job WHERE id = seen.id FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),
moved AS (
    UPDATE pgqueue_job AS job
    SET run_after = statement_timestamp() + %(time_shift)s::interval
    FROM asked
    WHERE job.id = asked.id AND asked.waits
)
SELECT id, CASE WHEN waits THEN state END FROM asked
"""

# Change the queue or the priority of ready and waiting jobs, due or not. A parameter that is NULL leaves its column
# unchanged.
#
# Moves:  ready, waiting, unchanged
# Caller: lifecycle.operator.move(), for an operator
# Fence:  what the operator saw, as for RUN_NOW
#
# `run_after` stays, so a moved job keeps its place in line. The job can lie behind a worker's cursor of its new lane.
# Then the worker's next claim from the start finds it.
MOVE: Final = """/* pgqueue:move */
WITH asked AS MATERIALIZED (
    SELECT job.id, job.state, job.state IN ('ready', 'waiting')
            AND (job.queue_name, job.priority) <> (
                coalesce(%(queue_name)s::text, job.queue_name), coalesce(%(priority)s::smallint, job.priority)
            )
            AND (seen.state = '' OR job.state = seen.state AND job.run_after = seen.instant::timestamptz) AS moves
    FROM unnest(%(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[]) AS seen (id, state, instant)
    CROSS JOIN LATERAL (
        SELECT id, state, run_after, queue_name, priority
""" + LOCKED_AS_SEEN + """
moved AS (
    UPDATE pgqueue_job AS job
    SET queue_name = coalesce(%(queue_name)s::text, job.queue_name),
        priority = coalesce(%(priority)s::smallint, job.priority)
    FROM asked
    WHERE job.id = asked.id AND asked.moves
)
SELECT id, CASE WHEN moves THEN state END FROM asked
"""  # fmt: skip

# Change how many attempts of unfinished jobs may count. A job that would have no attempt left is not changed: one that
# waits needs one more than it has made, and one that runs needs its present attempt.
#
# Moves:  ready, waiting, running, unchanged
# Caller: lifecycle.operator.set_max_attempts(), for an operator
# Fence:  what the operator saw, as for RUN_NOW
#
# The worker of a running job has read the old number with its claim. FAIL and RESCUE read the new one.
SET_MAX_ATTEMPTS: Final = """/* pgqueue:set_max_attempts */
WITH asked AS MATERIALIZED (
    SELECT job.id, job.state, job.state IN ('ready', 'waiting', 'running')
            AND job.max_attempts <> %(max_attempts)s
            AND job.attempt + CASE WHEN job.state = 'running' THEN 0 ELSE 1 END <= %(max_attempts)s
            AND (seen.state = '' OR job.state = seen.state AND job.run_after = seen.instant::timestamptz) AS changes
    FROM unnest(%(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[]) AS seen (id, state, instant)
    CROSS JOIN LATERAL (
        SELECT id, state, run_after, attempt, max_attempts
""" + LOCKED_AS_SEEN + """
moved AS (
    UPDATE pgqueue_job AS job
    SET max_attempts = %(max_attempts)s
    FROM asked
    WHERE job.id = asked.id AND asked.changes
)
SELECT id, CASE WHEN changes THEN state END FROM asked
"""  # fmt: skip

# Delete finished jobs with their executions and kept log lines. Their uniqueness windows stay, as after REMOVE. A job
# that NEEDS names with WORKFLOW or COMPENSATION stays. A dead job that blocks others is deleted: that is the decision
# of an operator, who lets the others run.
#
# Moves:  finished → gone
# Caller: lifecycle.operator.delete(), for an operator and for `delete()` of the models
# Fence:  what the operator saw, as for RETRY
# Locks:  as LOCK_FINISHED. A job with a locked execution is not in the answer, like a job with a locked row
# Index:  primary keys, pgqueue_execution_job
DELETE: Final = """/* pgqueue:delete */
""" + ASKED + """
           END AS state, job.in_graph, job.batch_id
    FROM unnest(
        %(job_ids)s::bigint[], %(seen_states)s::text[], %(seen_instants)s::text[], %(seen_acknowledged)s::text[]
    ) AS seen (id, state, instant, acknowledged)
    CROSS JOIN LATERAL (
        SELECT id, state, finished_at, acknowledged_at, in_graph, batch_id
        FROM pgqueue_job
        WHERE id = seen.id
        FOR UPDATE SKIP LOCKED
    ) AS job
),
old AS MATERIALIZED (
    SELECT id
    FROM asked AS job
    WHERE state IN ('succeeded', 'dead', 'cancelled')
      AND (
""" + UNNEEDED + """
      )
),
""" + LOCKED_TO_DELETE + FREE + """,
unlogged AS (
    DELETE FROM pgqueue_execution_log AS log
    WHERE """ + LINES_OF_FREE + """
),
unkeyed AS (
    DELETE FROM pgqueue_search_key WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unstepped AS (
    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unlinked AS (
    DELETE FROM pgqueue_dependency WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING batch_id, state
),
""" + COUNTED_REMOVALS + """
SELECT id, CASE WHEN id IN (SELECT id FROM free) THEN state END
FROM asked
WHERE id NOT IN (SELECT job_id FROM busy)
   OR (SELECT true FROM pgqueue_step WHERE job_id = asked.id AND compensation IS NOT NULL LIMIT 1)
"""  # fmt: skip

# Return which of these jobs exist. If a transition returned no row for an existing job, the job's row is locked.
#
# Caller: lifecycle, after a transition that an operator requested
EXISTING: Final = """/* pgqueue:existing */
SELECT id FROM pgqueue_job WHERE id = ANY (%(job_ids)s::bigint[])
"""
