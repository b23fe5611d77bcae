"""The statements of `stats` on single limit keys, and on a job among the others of its key.

The rules of `stats.queries` apply. `key_figures`, `explanation` and `controls` run them.
"""

from typing import Final

# Count the ready jobs of these keys in these lanes, and return the first job of each key in each lane.
#
# Index: pgqueue_job_limited, and the row of the first entry of each key
JOBS_OF_KEYS: Final = """/* pgqueue:jobs_of_keys */
SELECT given.limit_key, given.priority, counted.due, counted.later, first.id,
       date_part('epoch', first.run_after - statement_timestamp() - %(time_shift)s::interval),
       coalesce(first.limit_weight, 1)
FROM unnest(%(queue_names)s::varchar[], %(priorities)s::smallint[], %(limit_keys)s::varchar[])
     AS given (queue_name, priority, limit_key)
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE is_due) AS due, count(*) FILTER (WHERE NOT is_due) AS later
    FROM (
        SELECT run_after <= statement_timestamp() + %(time_shift)s::interval AS is_due
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key = given.limit_key
          AND queue_name = given.queue_name AND priority = given.priority
        ORDER BY run_after, id
        LIMIT %(limit)s
    ) AS jobs
) AS counted
CROSS JOIN LATERAL (
    SELECT id, run_after, limit_weight
    FROM pgqueue_job
    WHERE state = 'ready' AND limit_key = given.limit_key
      AND queue_name = given.queue_name AND priority = given.priority
    ORDER BY run_after, id
    LIMIT 1
) AS first
"""

# Return what the claims of these keys look at: the open executions, the tokens, the hold, and the job that comes first
# in an ordered key.
#
# Index: pgqueue_job_running_key, pgqueue_limit_state_key, pgqueue_limit_state_held, pgqueue_job_ordered
STATES_OF_KEYS: Final = """/* pgqueue:states_of_keys */
SELECT given.limit_key, open.jobs, open.weight, open.job_ids,
       date_part('epoch', state.full_at - statement_timestamp() - %(time_shift)s::interval),
       hold.held_until, date_part('epoch', hold.held_until - statement_timestamp() - %(time_shift)s::interval),
       head.id, head.state, date_part('epoch', head.run_after - statement_timestamp() - %(time_shift)s::interval),
       coalesce(head.limit_weight, 1), head.queue_name, head.priority, head.task_name
FROM unnest(%(limit_keys)s::varchar[]) AS given (limit_key)
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs, coalesce(sum(coalesce(limit_weight, 1)), 0)::bigint AS weight,
           (array_agg(id ORDER BY execution_id))[:%(shown)s] AS job_ids
    FROM (
        SELECT id, execution_id, limit_weight
        FROM pgqueue_job
        WHERE state = 'running' AND limit_key = given.limit_key
        ORDER BY execution_id
        LIMIT %(limit)s
    ) AS first
) AS open
LEFT JOIN LATERAL (
    SELECT full_at
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
    SELECT id, state, run_after, limit_weight, queue_name, priority, task_name
    FROM pgqueue_job
    WHERE limit_key = given.limit_key
      AND limit_order IS NOT NULL
      AND (state IN ('ready', 'running') OR state = 'dead' AND limit_order = 2)
    ORDER BY id
    LIMIT 1
) AS head ON true
"""

# Count the due jobs of a key that a claim takes before a job, in the same lane.
#
# Index: pgqueue_job_limited
AHEAD_IN_KEY: Final = """/* pgqueue:ahead_in_key */
SELECT count(*)
FROM (
    SELECT 1
    FROM pgqueue_job
    WHERE state = 'ready' AND limit_key = %(limit_key)s
      AND queue_name = %(queue_name)s AND priority = %(priority)s
      AND run_after <= statement_timestamp() + %(time_shift)s::interval
      AND (run_after, id) < (%(run_after)s::timestamptz, %(job_id)s)
    ORDER BY run_after, id
    LIMIT %(limit)s
) AS ahead
"""

# Count the jobs of an ordered key that come before a job.
#
# Index: pgqueue_job_ordered
AHEAD_IN_ORDER: Final = """/* pgqueue:ahead_in_order */
SELECT count(*)
FROM (
    SELECT 1
    FROM pgqueue_job
    WHERE limit_key = %(limit_key)s
      AND limit_order IS NOT NULL
      AND (state IN ('ready', 'running') OR state = 'dead' AND limit_order = 2)
      AND id < %(job_id)s
    ORDER BY id
    LIMIT %(limit)s
) AS ahead
"""

# Return the overrides and the pauses in force of these limits and limit keys, with the columns of LIMIT_CONTROLS.
#
# Index: pgqueue_limit_override_key, pgqueue_pause_name, pgqueue_open_breaker_key
#
# A row whose first column is NULL is an open circuit breaker.
CONTROLS_OF_KEYS: Final = """/* pgqueue:controls_of_keys */
SELECT false, override.limit_key, override.concurrency, override.rate, override.burst, override.share,
       override.changed_at, CASE WHEN isfinite(override.valid_until) THEN override.valid_until END,
       override.changed_by, override.reason
FROM unnest(%(names)s::varchar[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT limit_key, concurrency, rate, burst, share, changed_at, valid_until, changed_by, reason
    FROM pgqueue_limit_override
    WHERE limit_key = given.name
      AND (valid_until IS NULL OR valid_until > statement_timestamp() + %(time_shift)s::interval)
    LIMIT 1
) AS override
UNION ALL
SELECT true, pause.name, NULL, NULL, NULL, NULL, pause.paused_at,
       CASE WHEN isfinite(pause.paused_until) THEN pause.paused_until END, pause.paused_by, pause.reason
FROM unnest(%(names)s::varchar[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT name, paused_at, paused_until, paused_by, reason
    FROM pgqueue_pause
    WHERE kind = 'limit' AND name = given.name
      AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)
    LIMIT 1
) AS pause
UNION ALL
SELECT NULL, breaker.limit_key, breaker.probes_failed, NULL, NULL, NULL, breaker.opened_at, NULL, NULL, NULL
FROM unnest(%(names)s::varchar[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT limit_key, probes_failed, opened_at FROM pgqueue_open_breaker WHERE limit_key = given.name LIMIT 1
) AS breaker
"""
