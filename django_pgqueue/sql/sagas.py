"""Statements that undo the finished steps of dead and cancelled jobs: they find the next compensations."""

from typing import Final

from .clauses import IDLE_WAIT, OPEN_COMPENSATION

# For each of these jobs, draw an id for the job of its next compensation: that of its last finished step which has one.
# Return what the compensations are. Return nothing for a job while an earlier compensation of it has not succeeded. If
# a job has succeeded, forget its compensations.
#
# Caller: lifecycle.sagas.compensate(), after the end of a job with steps or of a compensation, and from the sweep. It
#         adds the jobs of the compensations in the same transaction
# Fence:  the state of the job, under its lock: a retry by an operator comes before or after this. The compensation of
#         the step is not NULL, under the lock of the step: of two sessions, one adds the job
# Locks:  the jobs, SKIP LOCKED: another session is compensating, retrying or removing them. `idle_wait` is how long a
#         process that is frozen before it adds the jobs can keep them locked
# Index:  pgqueue_job_pkey, pgqueue_step_compensation, pgqueue_step_pkey
#
# A compensation whose job is gone counts as done. So an operator skips a dead one by deleting it.
#
# The subquery reads `finished_at` from the snapshot, also for a row that has changed since. If another session has
# retried the job, and its next attempt has stored a step and died before this statement has the lock, the snapshot does
# not contain that step. The statement would undo an earlier step first. It leaves such a job to the sweep.
#
# CASE keeps the planner from the index of pending compensations when it takes a step. If it believes that there are
# none, it would read those of all jobs.
COMPENSATE: Final = """/* pgqueue:compensate */
WITH ended AS MATERIALIZED (
    SELECT locked.id, locked.state
    FROM unnest(%(job_ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT id, state
        FROM pgqueue_job
        WHERE id = given.id
          AND state IN ('succeeded', 'dead', 'cancelled')
          AND finished_at = (SELECT finished_at FROM pgqueue_job AS seen WHERE seen.id = given.id)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
),
settled AS (
    UPDATE pgqueue_step
    SET compensation = NULL, compensation_arguments = NULL
    WHERE job_id = ANY (ARRAY (SELECT id FROM ended WHERE state = 'succeeded')) AND compensation IS NOT NULL
),
next AS MATERIALIZED (
    SELECT step.job_id, step.name, step.compensation, step.compensation_arguments
    FROM ended
    CROSS JOIN LATERAL (
        SELECT job_id, name, compensation, compensation_arguments
        FROM pgqueue_step
        WHERE job_id = ended.id AND compensation IS NOT NULL
        ORDER BY position DESC, name DESC
        LIMIT 1
    ) AS step
    WHERE ended.state <> 'succeeded'
      AND (
          SELECT true
          FROM pgqueue_step AS later
          CROSS JOIN LATERAL (
              SELECT true FROM pgqueue_job WHERE id = later.compensation_id AND state <> 'succeeded' OFFSET 0
          ) AS unfinished
          WHERE later.job_id = ended.id AND later.compensation_id IS NOT NULL
          LIMIT 1
      ) IS NULL
),
taken AS (
    UPDATE pgqueue_step AS step
    SET compensation_id = nextval('pgqueue_job_id_seq'), compensation = NULL, compensation_arguments = NULL
    FROM next
    WHERE step.job_id = next.job_id
      AND step.name = next.name
      AND CASE WHEN step.compensation IS NULL THEN false ELSE true END
    RETURNING step.job_id, step.compensation_id, next.compensation::text AS call,
              next.compensation_arguments::text AS arguments
)
SELECT job_id, compensation_id, call, arguments
FROM taken
""" + IDLE_WAIT + """
"""  # fmt: skip

# Return one page of the jobs that have a compensation which is neither added nor forgotten, in the order of their ids.
#
# Caller: lifecycle.sagas.pending_sagas(), from the sweep
# Index:  pgqueue_step_compensation, which a step leaves when its compensation is added or forgotten
PENDING_SAGAS: Final = """/* pgqueue:pending_sagas */
SELECT DISTINCT job_id
FROM pgqueue_step
WHERE compensation IS NOT NULL AND job_id > %(after_id)s::bigint
ORDER BY job_id
LIMIT %(limit)s::bigint
"""

# Forget the compensations of these jobs that are not added yet. Return how many there were.
#
# Caller: lifecycle.sagas.forget_compensations(), before `pgqueue adopt` cancels all jobs of a copied database.
#         Otherwise the end of a job would add the jobs that undo its steps
# Locks:  waits for a transaction that is compensating one of these jobs
# Index:  pgqueue_step_pkey
FORGET_COMPENSATIONS: Final = """/* pgqueue:forget_compensations */
WITH forgotten AS (
    UPDATE pgqueue_step
    SET compensation = NULL, compensation_arguments = NULL
    WHERE job_id = ANY (%(job_ids)s::bigint[]) AND compensation IS NOT NULL
    RETURNING job_id
)
SELECT count(*) FROM forgotten
"""

# Return whether the compensation of a job has begun and is not over.
#
# Caller: lifecycle.operator.retry(), to say why it has not retried a single job
# Index:  pgqueue_step_pkey, pgqueue_job_pkey. A condition `compensation_id IS NOT NULL` would let the planner read
#         pgqueue_step_undone, the index of all compensations
IS_COMPENSATING: Final = """/* pgqueue:is_compensating */
SELECT true
FROM pgqueue_step AS step
LEFT JOIN pgqueue_job AS undo ON undo.id = step.compensation_id
WHERE step.job_id = %(job_id)s::bigint
  AND coalesce(step.compensation_id, 0) <> 0
""" + OPEN_COMPENSATION + """
"""  # fmt: skip
