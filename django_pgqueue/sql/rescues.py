"""Statements that rescue jobs whose lease has expired."""

from typing import Final

from .clauses import DUE_OR_ENDED, FENCED, LOCK_BOTH

# The workers that run jobs and have no lease of their own after a time, and the executions that each of them has open.
# `late` finds the workers by a loose index scan: each step finds the first entry of the next worker. The time comes
# between the first clause and the second.
LATE: Final = """WITH RECURSIVE worker AS (
    (
        SELECT worker_id AS id
        FROM pgqueue_job
        WHERE state = 'running' AND worker_id IS NOT NULL
        ORDER BY worker_id, execution_id
        LIMIT 1
    )
    UNION ALL
    SELECT next.worker_id
    FROM worker
    CROSS JOIN LATERAL (
        SELECT worker_id
        FROM pgqueue_job
        WHERE state = 'running' AND worker_id > worker.id
        ORDER BY worker_id, execution_id
        LIMIT 1
    ) AS next
),
late AS MATERIALIZED (
    SELECT worker.id, record.lease_expires_at
    FROM worker
    LEFT JOIN LATERAL (
        SELECT lease_expires_at FROM pgqueue_worker WHERE id = worker.id OFFSET 0
    ) AS record ON true
    WHERE coalesce(record.lease_expires_at, '-infinity') < statement_timestamp() + %(time_shift)s::interval"""
OPEN_OF_LATE: Final = """
),
open AS MATERIALIZED (
    SELECT execution.id, execution.lease_expires_at
    FROM late
    CROSS JOIN LATERAL (
        SELECT execution_id
        FROM pgqueue_job
        WHERE state = 'running' AND worker_id = late.id
        ORDER BY worker_id, execution_id
        OFFSET 0
    ) AS job
    CROSS JOIN LATERAL (
        SELECT id, greatest(lease_expires_at, late.lease_expires_at) AS lease_expires_at
        FROM pgqueue_execution
        WHERE id = job.execution_id AND outcome IS NULL
        OFFSET 0
    ) AS execution
)"""

# Return the open executions whose lease ends within some seconds or has ended, and the end of each lease in
# milliseconds.
#
# Caller: lifecycle.rescues.ending_leases()
# Index:  pgqueue_job_running: one index search for each worker that runs jobs, and the jobs of those that are late
# Locks:  none
#
# A lease ends when the lease of its worker has ended, and its own. The end is numeric. A float8 loses digits if the
# role has a low `extra_float_digits`. No bigint can hold the lease -infinity, which a row that is older than the
# constraints can have: the statement would fail, and no job of any worker would be rescued.
ENDING_LEASES: Final = (
    """/* pgqueue:ending_leases */
"""
    + LATE
    + " + make_interval(secs => %(within_seconds)s::float8)"
    + OPEN_OF_LATE
    + """
SELECT id, floor(1000 * date_part('epoch', lease_expires_at))::numeric
FROM open
WHERE lease_expires_at
    < statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(within_seconds)s::float8)
"""
)

# Write a record to the write-ahead log, and commit it. No table changes, and no subscriber asks for the record.
#
# Caller: lifecycle.rescues.prove_commit()
# Locks:  none
#
# The commit waits for the disk and for a synchronous standby, as the commit of a heartbeat does. A statement that only
# reads waits for neither.
PROVE_COMMIT: Final = """/* pgqueue:prove_commit */
SELECT pg_logical_emit_message(true, 'pgqueue', '')
"""

# Return the open executions whose lease has expired, oldest first, with the values that the retry policy needs, and
# whether the worker has recorded its stop. With `execution_ids`, return only these.
#
# Caller: lifecycle.rescues.rescue()
# Index:  as ENDING_LEASES, and primary keys
# Locks:  execution and job of each returned row, SKIP LOCKED, until the statement ends. Rows that RESCUE could not lock
#         do not use up the limit
#
# The limit is 100 or a fifth of the running jobs, whichever is more. It keeps a database outage from being treated as
# the loss of every worker.
RESCUABLE: Final = """/* pgqueue:rescuable */
""" + LATE + OPEN_OF_LATE + """,
stale AS MATERIALIZED (
    SELECT id
    FROM open
    WHERE lease_expires_at < statement_timestamp() + %(time_shift)s::interval
      AND (%(execution_ids)s::bigint[] IS NULL OR id = ANY (%(execution_ids)s::bigint[]))
      AND id <> ALL (%(skipped_ids)s::bigint[])
    ORDER BY id
)
SELECT execution.id, execution.job_id, job.task_name, job.queue_name, job.attempt, job.max_attempts, job.crashes,
       execution.started_at IS NOT NULL, floor(1000 * date_part('epoch', execution.claimed_at))::bigint,
       execution.limit_key,
       coalesce((SELECT stopped_at IS NOT NULL FROM pgqueue_worker WHERE id = execution.worker_id), false)
FROM stale
CROSS JOIN LATERAL (
    SELECT id, job_id, worker_id, started_at, claimed_at, limit_key
    FROM pgqueue_execution
    WHERE id = stale.id AND outcome IS NULL
    FOR NO KEY UPDATE SKIP LOCKED
) AS execution
CROSS JOIN LATERAL (
    SELECT id, task_name, queue_name, attempt, max_attempts, crashes
    FROM pgqueue_job
    WHERE id = execution.job_id AND execution_id = execution.id
    FOR NO KEY UPDATE SKIP LOCKED
) AS job
LIMIT greatest(
    100,
    (
        SELECT count(*) / 5
        FROM pgqueue_job
        WHERE state = 'running' AND worker_id IS NOT NULL AND EXISTS (SELECT FROM stale)
    )
)
"""  # fmt: skip

# When the lease of an execution ends.
LEASE_END: Final = """greatest(
              execution.lease_expires_at,
              (SELECT lease_expires_at FROM pgqueue_worker WHERE id = execution.worker_id)
          )"""

# Close executions whose lease has expired. Their jobs become ready for the next attempt, dead or cancelled.
#
# Moves:  running → ready later (with a delay), dead (without one), cancelled (if a cancellation was requested)
# Caller: lifecycle.rescues.rescue()
# Fence:  id and time of the claim, outcome IS NULL, and the lease still expired: a heartbeat may have extended it since
#         RESCUABLE ran. If a lease is given, it must be the same: a heartbeat whose commit hung can leave another lease
#         that has expired too
# Locks, Index: as SUCCEED
RESCUE: Final = """/* pgqueue:rescue */
WITH mine AS MATERIALIZED (
    SELECT locked.id, locked.job_id, locked.started, locked.cancelled, given.delay_seconds
    FROM unnest(
        %(execution_ids)s::bigint[], %(claimed_ms)s::float8[], %(delays_seconds)s::float8[], %(leases_ms)s::float8[]
    ) AS given (id, claimed_ms, delay_seconds, lease_ms)
    CROSS JOIN LATERAL (
        SELECT execution.id, execution.job_id, execution.started_at IS NOT NULL AS started,
               job.cancel_requested_at IS NOT NULL AS cancelled
""" + FENCED + """
          AND """ + LEASE_END + """ < statement_timestamp() + %(time_shift)s::interval
          AND (given.lease_ms IS NULL OR floor(1000 * date_part('epoch', """ + LEASE_END + """)) = given.lease_ms)
""" + LOCK_BOTH + """
closed AS (
    UPDATE pgqueue_execution AS execution
    SET outcome = 'crashed',
        finished_at = statement_timestamp() + %(time_shift)s::interval,
        error = %(error)s
    FROM mine
    WHERE execution.id = mine.id
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = CASE WHEN mine.cancelled THEN 'cancelled' WHEN mine.delay_seconds IS NULL THEN 'dead' ELSE 'ready' END,
        crashes = least(job.crashes + mine.started::int, 32767),
        isolated = job.isolated OR mine.started,
        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,
        unknown_since = CASE WHEN NOT mine.started THEN job.unknown_since END,
""" + DUE_OR_ENDED + """
    WHERE job.id = mine.job_id
)
SELECT id, CASE WHEN cancelled THEN 'cancelled' WHEN delay_seconds IS NULL THEN 'dead' ELSE 'ready' END FROM mine
"""  # fmt: skip
