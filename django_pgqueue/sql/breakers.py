"""Statements of circuit breakers: count ended attempts, open and close the breaker of a limit key."""

from typing import Final

# Count attempts that ended. Attempts of a key whose breaker is open are not counted.
#
# Caller: lifecycle.breakers.add_counts(), at most once a second for each process and key
# Index:  pgqueue_open_breaker_key
ADD_BREAKER_COUNTS: Final = """/* pgqueue:add_breaker_counts */
INSERT INTO pgqueue_breaker_count (limit_key, ended_at, succeeded, failed)
SELECT given.limit_key, statement_timestamp() + %(time_shift)s::interval, given.succeeded, given.failed
FROM unnest(%(limit_keys)s::varchar[], %(succeeded)s::integer[], %(failed)s::integer[])
    AS given (limit_key, succeeded, failed)
LEFT JOIN LATERAL (
    SELECT true AS is_open FROM pgqueue_open_breaker WHERE limit_key = given.limit_key LIMIT 1
) AS breaker ON true
WHERE breaker.is_open IS NULL
"""

# How many attempts ended and failed in the window of a key.
IN_WINDOW: Final = """CROSS JOIN LATERAL (
    SELECT coalesce(sum(succeeded + failed), 0) AS ended, coalesce(sum(failed), 0) AS failed
    FROM pgqueue_breaker_count
    WHERE limit_key = given.limit_key
      AND ended_at > statement_timestamp() + %(time_shift)s::interval - make_interval(secs => given.window_seconds)
) AS counted"""

# Enough of them failed to open the breaker.
IS_FAILING: Final = "counted.ended >= given.attempts AND counted.failed >= given.share * counted.ended"

# Return those of these keys in whose windows enough attempts failed.
#
# Caller: lifecycle.breakers.failing_keys(), after ADD_BREAKER_COUNTS. A statement of its own sees what other processes
#         have added before; in one statement, two processes that add at the same time would both miss the threshold
# Index:  pgqueue_breaker_count_key
# Cost:   one row for each process and second of the window
FAILING_KEYS: Final = """/* pgqueue:failing_keys */
SELECT given.limit_key
FROM unnest(
    %(limit_keys)s::varchar[], %(shares)s::numeric[], %(attempts)s::integer[], %(windows_seconds)s::float8[]
) AS given (limit_key, share, attempts, window_seconds)
""" + IN_WINDOW + """
WHERE """ + IS_FAILING + """
"""  # fmt: skip

# Let the other statements of this transaction wait for a lock no longer than this. Then they raise LockNotAvailable.
#
# Caller: lifecycle.breakers.limit_waits(), before OPEN_BREAKERS and CLOSE_BREAKERS
LIMIT_WAITS: Final = """/* pgqueue:limit_waits */
SELECT set_config('lock_timeout', %(lock_timeout)s, true)
"""

# Open the breakers of keys in whose windows enough attempts failed, and open breakers again whose probe has failed.
# Pause these keys. Return them, whether the breaker was open already, and how many attempts ended and failed.
#
# Caller: lifecycle.breakers.open_breakers(), from the completer. The caller's transaction holds the advisory locks of
#         all keys, from an earlier statement: executions with higher ids than `after_execution_id` are claimed later
# Locks:  the rows of the breakers and pauses. A breaker is opened once, because its key is locked
# Index:  pgqueue_breaker_count_key, pgqueue_open_breaker_key, pgqueue_pause_name
#
# `probe_ids` are executions that failed, or 0. They open a breaker again only if they were claimed after it opened.
# Then the executions decide that were claimed after the probe: if the process of a probe has died, the next one can be
# claimed, and can even succeed, before the failure is counted here. The pause of an operator stays as it is. If the
# sequence is behind `after_execution_id`, it was restarted: then each execution decides, because otherwise the breaker
# would stay open until the ids have caught up.
OPEN_BREAKERS: Final = """/* pgqueue:open_breakers */
WITH given AS (
    SELECT each.limit_key, each.share, each.attempts, each.window_seconds, each.pause_seconds, each.probe_id,
           breaker.after_execution_id
    FROM unnest(
        %(limit_keys)s::varchar[], %(shares)s::numeric[], %(attempts)s::integer[], %(windows_seconds)s::float8[],
        %(pauses_seconds)s::float8[], %(probe_ids)s::bigint[]
    ) AS each (limit_key, share, attempts, window_seconds, pause_seconds, probe_id)
    LEFT JOIN LATERAL (
        SELECT after_execution_id FROM pgqueue_open_breaker WHERE limit_key = each.limit_key LIMIT 1
    ) AS breaker ON true
),
opening AS MATERIALIZED (
    SELECT given.limit_key, given.window_seconds, given.pause_seconds, given.after_execution_id, given.probe_id,
           counted.ended, counted.failed
    FROM given
""" + IN_WINDOW + """
    WHERE CASE
        WHEN given.after_execution_id IS NULL
        THEN """ + IS_FAILING + """
        ELSE given.probe_id > CASE
            WHEN given.after_execution_id <= pg_sequence_last_value('pgqueue_execution_id_seq')
            THEN given.after_execution_id ELSE 0
        END
    END
),
opened AS (
    INSERT INTO pgqueue_open_breaker (limit_key, opened_at, after_execution_id)
    SELECT limit_key, statement_timestamp() + %(time_shift)s::interval,
           CASE WHEN after_execution_id IS NULL THEN coalesce(pg_sequence_last_value('pgqueue_execution_id_seq'), 0)
                ELSE probe_id END
    FROM opening
    ON CONFLICT (limit_key) DO UPDATE
    SET after_execution_id = excluded.after_execution_id, probed_at = excluded.opened_at,
        probes_failed = pgqueue_open_breaker.probes_failed + 1
),
paused AS (
    INSERT INTO pgqueue_pause (kind, name, paused_at, paused_until, paused_by, reason)
    SELECT 'limit', limit_key, statement_timestamp() + %(time_shift)s::interval,
           statement_timestamp() + %(time_shift)s::interval + make_interval(secs => pause_seconds),
           %(paused_by)s,
           CASE WHEN after_execution_id IS NULL
                THEN failed || ' of ' || ended || ' attempts failed in ' || window_seconds || ' s'
                ELSE 'the job that probed the key failed' END
    FROM opening
    ON CONFLICT (kind, name) DO UPDATE
    SET paused_at = excluded.paused_at, paused_until = excluded.paused_until, paused_by = excluded.paused_by,
        reason = excluded.reason
    WHERE pgqueue_pause.paused_by = excluded.paused_by OR pgqueue_pause.paused_until <= excluded.paused_at
),
forgotten AS (
    DELETE FROM pgqueue_breaker_count WHERE limit_key = ANY (ARRAY (SELECT limit_key FROM opening))
)
SELECT limit_key, after_execution_id IS NOT NULL, ended, failed FROM opening
"""  # fmt: skip

# Close the breakers of keys that a job has probed with success, and remove their pauses. Return these keys.
#
# Caller: lifecycle.breakers.close_breakers(), from the completer. The caller's transaction holds the advisory locks of
#         all keys
# Locks:  the rows of the breakers and pauses
# Index:  pgqueue_open_breaker_key, pgqueue_pause_name, pgqueue_breaker_count_key
#
# `probe_ids` are executions that succeeded. Those that were claimed before the breaker opened decide nothing. The pause
# of an operator stays. Counts that another process added while the breaker opened are removed, because their attempts
# must not open it again.
CLOSE_BREAKERS: Final = """/* pgqueue:close_breakers */
WITH closing AS MATERIALIZED (
    SELECT given.limit_key
    FROM unnest(%(limit_keys)s::varchar[], %(probe_ids)s::bigint[]) AS given (limit_key, probe_id)
    CROSS JOIN LATERAL (
        SELECT after_execution_id FROM pgqueue_open_breaker WHERE limit_key = given.limit_key LIMIT 1
    ) AS breaker
    WHERE given.probe_id > CASE
        WHEN after_execution_id <= pg_sequence_last_value('pgqueue_execution_id_seq')
        THEN after_execution_id ELSE 0
    END
),
closed AS (
    DELETE FROM pgqueue_open_breaker WHERE limit_key = ANY (ARRAY (SELECT limit_key FROM closing))
    RETURNING limit_key
),
resumed AS (
    DELETE FROM pgqueue_pause
    WHERE kind = 'limit' AND paused_by = %(paused_by)s AND name = ANY (ARRAY (SELECT limit_key FROM closing))
),
forgotten AS (
    DELETE FROM pgqueue_breaker_count WHERE limit_key = ANY (ARRAY (SELECT limit_key FROM closing))
)
SELECT limit_key FROM closed
"""

# Remove the oldest counts that are in no window any more. Return how many.
#
# Caller: lifecycle.breakers.prune_counts()
# Index:  primary key: ids grow with time
# Locks:  SKIP LOCKED: another worker may be removing them
PRUNE_BREAKER_COUNTS: Final = """/* pgqueue:prune_breaker_counts */
WITH oldest AS MATERIALIZED (
    SELECT id, ended_at
    FROM pgqueue_breaker_count
    WHERE id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
    ORDER BY id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_breaker_count
    WHERE id = ANY (ARRAY (
        SELECT id FROM oldest
        WHERE ended_at < statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds)s::float8)
    ))
    RETURNING id
)
SELECT count(*) FROM gone
"""

# Remove open breakers that no probe has opened again or closed for a long time: the code has no such breaker any more.
#
# Caller: lifecycle.breakers.prune_breakers()
PRUNE_OPEN_BREAKERS: Final = """/* pgqueue:prune_open_breakers */
DELETE FROM pgqueue_open_breaker
WHERE coalesce(probed_at, opened_at) < statement_timestamp() + %(time_shift)s::interval
    - make_interval(secs => %(older_than_seconds)s::float8)
  AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
"""
