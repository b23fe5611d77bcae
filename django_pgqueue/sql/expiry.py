"""Statements that cancel ready jobs whose `expires_at` has passed."""

from typing import Final

# The ready jobs whose `expires_at` has passed.
LATE: Final = """    WHERE state = 'ready'
      AND expires_at IS NOT NULL
      AND expires_at <= statement_timestamp() + %(time_shift)s::interval
      AND id <> ALL (%(skipped_ids)s::bigint[])
    ORDER BY expires_at
    LIMIT %(limit)s"""

# Cancel the late jobs. As in SET_ASIDE, the execution that carries the reason is opened and closed here: nothing ran.
CANCEL_LATE: Final = """ended AS (
    UPDATE pgqueue_job AS job
    SET state = 'cancelled',
        finished_at = statement_timestamp() + %(time_shift)s::interval
    FROM late
    WHERE job.id = late.id
),
recorded AS (
    INSERT INTO pgqueue_execution
        (job_id, attempt, worker_id, outcome, claimed_at, finished_at, lease_expires_at, error)
    SELECT id, attempt, %(worker_id)s, 'cancelled',
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval,
           %(error)s
    FROM late
)
SELECT id, task_name FROM late
"""

# Cancel jobs that have not started by their `expires_at`, and record the reason.
#
# Moves:  ready → cancelled
# Caller: lifecycle.expiry.expire(), for jobs that no worker claims. A job that is claimed too late is cancelled at its
#         start
# Locks:  SKIP LOCKED: a session that has locked the row may be claiming the job
# Index:  pgqueue_job_expiring
EXPIRE: Final = """/* pgqueue:expire */
WITH late AS MATERIALIZED (
    SELECT id, task_name, attempt
    FROM pgqueue_job
""" + LATE + """
    FOR NO KEY UPDATE SKIP LOCKED
),
""" + CANCEL_LATE  # fmt: skip

# Return the jobs that EXPIRE would cancel. `expire()` uses this if EXPIRE failed because of one row: EXPIRE_JOBS then
# cancels in parts.
#
# Caller: lifecycle.expiry.expire()
# Index:  pgqueue_job_expiring
LATE_JOBS: Final = """/* pgqueue:late_jobs */
SELECT id
FROM pgqueue_job
""" + LATE + """
"""  # fmt: skip

# Cancel these jobs if they are still ready and past their `expires_at`.
#
# Moves:  ready → cancelled
# Caller: lifecycle.expiry.expire(), after EXPIRE failed because of one row
# Locks:  as EXPIRE
# Index:  primary keys
EXPIRE_JOBS: Final = """/* pgqueue:expire_jobs */
WITH late AS MATERIALIZED (
    SELECT id, task_name, attempt
    FROM pgqueue_job
    WHERE id = ANY (%(job_ids)s::bigint[])
      AND state = 'ready'
      AND expires_at <= statement_timestamp() + %(time_shift)s::interval
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
),
""" + CANCEL_LATE  # fmt: skip
