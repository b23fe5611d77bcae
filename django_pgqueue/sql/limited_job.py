"""Statements that claim one job with a limit by its id, in the foreground.

As with `limits`, the lock of the key and the claim are two statements of one transaction.
"""

from typing import Final

# Read the limit key of a ready job, and lock the key.
#
# Caller: lifecycle.limited_job.lock_key_of(), in the transaction of CLAIM_LIMITED_JOB
# Locks:  an advisory lock for the key, until the transaction ends; SKIP LOCKED: `is_locked` is false if another session
#         claims jobs of the key
# Index:  primary key
#
# Both columns are NULL for a job without a limit. A condition on `limit_key` would let the planner choose the index of
# all limited jobs.
LOCK_KEY_OF_JOB: Final = """/* pgqueue:lock_key_of_job */
SELECT limit_key, pg_try_advisory_xact_lock(hashtextextended('pgqueue:' || limit_key, 0))
FROM pgqueue_job
WHERE id = %(job_id)s AND state = 'ready'
"""

# Claim one job if it is ready and its limit admits it, and open an execution for it. With `only_due`, claim it only if
# it is also due.
#
# Moves:  ready → running
# Caller: lifecycle.limited_job.claim_limited_job(). The caller's transaction holds the advisory lock of the key
# Locks:  the job's row, SKIP LOCKED
# Index:  primary key of jobs, and those of the limit in CLAIM_KEYS
#
# What the limit admits is computed as in CLAIM_KEYS. The job may come before other jobs of its key, except for an
# ordered key. If the limit does not admit a ready job, the only row says why: the job that comes first and its state,
# the slots in use, and the seconds until the hold ends and until the tokens have come back.
CLAIM_LIMITED_JOB: Final = """/* pgqueue:claim_limited_job */
WITH given AS MATERIALIZED (
    SELECT %(limit_key)s::varchar AS limit_key, nullif(%(concurrency)s::bigint, 0) AS concurrency,
           nullif(%(interval_us)s::bigint, 0) AS interval_us, nullif(%(burst)s::bigint, 0) AS burst,
           clock_timestamp() + %(time_shift)s::interval AS claimed_at
),
used AS MATERIALIZED (
    SELECT given.*, CASE WHEN given.concurrency IS NOT NULL THEN open.weight END AS used_slots,
           state.id AS state_id, head.id AS head_id, head.state AS head_state,
           coalesce(ceil(1e6 * date_part('epoch', hold.held_until - given.claimed_at)), 0)::bigint AS held_us,
           least(
               greatest(ceil(1e6 * date_part('epoch', state.full_at - given.claimed_at)), 0),
               given.burst * given.interval_us
           )::bigint AS used_us
    FROM given
    LEFT JOIN LATERAL (
        SELECT coalesce(sum(least(limit_weight, given.concurrency)), 0) AS weight
        FROM pgqueue_execution
        WHERE given.concurrency IS NOT NULL AND limit_key = given.limit_key AND outcome IS NULL
    ) AS open ON true
    LEFT JOIN LATERAL (
        SELECT id, full_at
        FROM pgqueue_limit_state
        WHERE limit_key = given.limit_key AND held_until IS NULL
        ORDER BY id DESC
        LIMIT 1
    ) AS state ON true
    LEFT JOIN LATERAL (
        SELECT held_until
        FROM pgqueue_limit_state
        WHERE limit_key = given.limit_key AND held_until IS NOT NULL
        ORDER BY held_until DESC
        LIMIT 1
    ) AS hold ON true
    LEFT JOIN LATERAL (
        SELECT id, state
        FROM pgqueue_job
        WHERE %(is_ordered)s::boolean
          AND limit_key = given.limit_key
          AND limit_order IS NOT NULL
          AND (state IN ('ready', 'running') OR state = 'dead' AND limit_order = 2)
        ORDER BY id
        LIMIT 1
    ) AS head ON true
),
picked AS MATERIALIZED (
    SELECT job.id, job.task_name, job.queue_name, job.priority, job.run_after, job.arguments, job.attempt,
           job.max_attempts, job.crashes, job.isolated, job.unknown_since, job.headers, job.expires_at,
           job.batch_id, job.in_graph, job.limit_weight,
           least(coalesce(job.limit_weight, 1), used.concurrency, 1000000000) AS slots,
           least(coalesce(job.limit_weight, 1), used.burst, 1000000000) AS tokens,
           used.limit_key, used.concurrency, used.interval_us, used.burst, used.used_slots, used.used_us, used.held_us,
           used.state_id, used.head_id, used.head_state, used.claimed_at
    FROM used
    CROSS JOIN LATERAL (
        SELECT id, task_name, queue_name, priority, run_after, arguments, attempt,
               max_attempts, crashes, isolated, unknown_since, headers, expires_at, batch_id,
               in_graph, limit_weight
        FROM pgqueue_job
        WHERE id = %(job_id)s
          AND state = 'ready'
          AND limit_key = used.limit_key
          AND (NOT %(only_due)s
               OR run_after <= statement_timestamp() + %(time_shift)s::interval)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS job
),
checked AS MATERIALIZED (
    SELECT picked.*,
           held_us <= 0
           AND (head_id IS NULL OR head_id = id)
           AND (concurrency IS NULL OR used_slots + slots <= concurrency)
           AND (interval_us IS NULL OR used_us + tokens * interval_us <= burst * interval_us) AS is_admitted
    FROM picked
),
due AS MATERIALIZED (
    SELECT checked.*, nextval('pgqueue_execution_id_seq') AS execution_id
    FROM checked
    WHERE is_admitted
),
claimed AS (
    UPDATE pgqueue_job AS job
    SET state = 'running', attempt = due.attempt + 1
    FROM due
    WHERE job.id = due.id
),
opened AS (
    INSERT INTO pgqueue_execution
        (id, job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at, limit_key, limit_weight)
    SELECT execution_id, id, attempt + 1, %(worker_id)s,
           claimed_at, claimed_at, claimed_at + make_interval(secs => %(lease_seconds)s::float8),
           limit_key, coalesce(limit_weight, 1)
    FROM due
),
spent AS (
    INSERT INTO pgqueue_limit_state (limit_key, full_at)
    SELECT limit_key,
           claimed_at
           + (used_us + CASE WHEN is_admitted THEN tokens * interval_us ELSE 0 END) * interval '1 microsecond'
    FROM checked
    WHERE interval_us IS NOT NULL AND (is_admitted OR used_us >= burst * interval_us)
),
replaced AS (
    DELETE FROM pgqueue_limit_state
    WHERE id = ANY (ARRAY (
        SELECT state_id
        FROM checked
        WHERE interval_us IS NOT NULL AND (is_admitted OR used_us >= burst * interval_us)
    ))
)
SELECT id, execution_id, task_name, queue_name, priority, run_after, arguments::text,
       attempt + 1, max_attempts, crashes, isolated,
       CASE WHEN isfinite(unknown_since) THEN date_part('epoch', claimed_at - unknown_since) END,
       floor(1000 * date_part('epoch', claimed_at))::bigint,
       headers::text,
       CASE WHEN isfinite(expires_at) THEN date_part('epoch', expires_at - claimed_at) END,
       batch_id, in_graph, NULL::bigint, NULL::varchar, NULL::bigint, NULL::float8, NULL::float8, NULL::bigint
FROM due
UNION ALL
SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
       CASE WHEN head_id <> id THEN head_id END, head_state, used_slots::bigint, greatest(held_us, 0) / 1e6,
       greatest(used_us + (tokens - burst) * interval_us, 0) / 1e6, coalesce(limit_weight, 1)
FROM checked
WHERE NOT is_admitted
"""
