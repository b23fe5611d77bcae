"""Statements that override limits, end holds, and read what operators have changed for limit keys."""

from typing import Final

from .clauses import UNTIL

# Return the overrides and the pauses in force of these limit keys and names of limits, and their open breakers.
#
# Caller: lifecycle.limit_overrides.controls_of(), in the transactions that claim limited jobs
# Index:  pgqueue_limit_override_key, pgqueue_pause_name, pgqueue_open_breaker_key
# Cost:   0.1 ms for one key; 0.3 ms for 100 keys. Workers run it only for limits with a breaker, and for all limits
#         while an override or a pause of a limit exists (see KEYS).
#
# A row is an override, an open breaker, or a pause: the seconds until it ends (infinity: it does not end by itself),
# and who paused.
KEY_CONTROLS: Final = """/* pgqueue:key_controls */
SELECT given.name, override.concurrency, override.rate, override.burst, override.share,
       NULL::float8, NULL::varchar, false
FROM unnest(%(names)s::varchar[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT concurrency, rate, burst, share
    FROM pgqueue_limit_override
    WHERE limit_key = given.name
      AND (valid_until IS NULL OR valid_until > statement_timestamp() + %(time_shift)s::interval)
    LIMIT 1
) AS override
UNION ALL
SELECT given.name, NULL, NULL, NULL, NULL, pause.seconds, pause.paused_by, false
FROM unnest(%(names)s::varchar[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT CASE WHEN isfinite(paused_until)
                THEN date_part('epoch', paused_until - statement_timestamp() - %(time_shift)s::interval)
                ELSE 'infinity' END AS seconds,
           paused_by
    FROM pgqueue_pause
    WHERE kind = 'limit'
      AND name = given.name
      AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)
    LIMIT 1
) AS pause
UNION ALL
SELECT given.name, NULL, NULL, NULL, NULL, NULL, NULL, true
FROM unnest(%(names)s::varchar[]) AS given (name)
CROSS JOIN LATERAL (
    SELECT limit_key FROM pgqueue_open_breaker WHERE limit_key = given.name LIMIT 1
) AS breaker
"""

# Return the override in force of a limit key, and lock its row.
#
# Caller: lifecycle.limit_overrides.override() and restore(), before they write
# Locks:  the row of the override. It waits for another operator who is changing it
# Index:  pgqueue_limit_override_key
LOCK_OVERRIDE: Final = """/* pgqueue:lock_override */
SELECT concurrency, rate, burst, share, valid_until
FROM pgqueue_limit_override
WHERE limit_key = %(limit_key)s
  AND (valid_until IS NULL OR valid_until > statement_timestamp() + %(time_shift)s::interval)
FOR UPDATE
"""

# Override fields of a limit or of one key. Fields whose names are not in `given` keep what the override in force has.
# With `only_new`, leave an override in force as it is, and return no row.
#
# Caller: lifecycle.limit_overrides.override(), in the operator's transaction
# Locks:  the row of the override. It waits for another operator who is changing it
# Index:  pgqueue_limit_override_key
OVERRIDE_LIMIT: Final = """/* pgqueue:override_limit */
INSERT INTO pgqueue_limit_override
    (limit_key, concurrency, rate, burst, share, valid_until, changed_at, changed_by, reason)
VALUES (
    %(limit_key)s, %(concurrency)s::integer, %(rate)s::varchar, %(burst)s::integer, %(share)s::integer,
    """ + UNTIL + """,
    statement_timestamp() + %(time_shift)s::interval, %(changed_by)s, %(reason)s
)
ON CONFLICT (limit_key) DO UPDATE
SET concurrency = CASE
        WHEN 'concurrency' = ANY (%(given)s::text[]) OR pgqueue_limit_override.valid_until <= excluded.changed_at
        THEN excluded.concurrency ELSE pgqueue_limit_override.concurrency
    END,
    rate = CASE
        WHEN 'rate' = ANY (%(given)s::text[]) OR pgqueue_limit_override.valid_until <= excluded.changed_at
        THEN excluded.rate ELSE pgqueue_limit_override.rate
    END,
    burst = CASE
        WHEN 'burst' = ANY (%(given)s::text[]) OR pgqueue_limit_override.valid_until <= excluded.changed_at
        THEN excluded.burst ELSE pgqueue_limit_override.burst
    END,
    share = CASE
        WHEN 'share' = ANY (%(given)s::text[]) OR pgqueue_limit_override.valid_until <= excluded.changed_at
        THEN excluded.share ELSE pgqueue_limit_override.share
    END,
    valid_until = excluded.valid_until, changed_at = excluded.changed_at, changed_by = excluded.changed_by,
    reason = excluded.reason
WHERE NOT %(only_new)s::boolean OR pgqueue_limit_override.valid_until <= excluded.changed_at
RETURNING concurrency, rate, burst, share, valid_until
"""  # fmt: skip

# Remove the override of a limit or of one key, whether it is in force or not.
#
# Caller: lifecycle.limit_overrides.restore(), after LOCK_OVERRIDE
# Index:  pgqueue_limit_override_key
RESTORE_LIMIT: Final = """/* pgqueue:restore_limit */
DELETE FROM pgqueue_limit_override WHERE limit_key = %(limit_key)s
"""

# End the holds of a key, or of all keys of a limit. Return how many keys were held, and the time of the last end.
#
# Caller: lifecycle.limit_overrides.end_holds(), in the operator's transaction
# Index:  pgqueue_limit_state_held
#
# The keys of a limit are its name, and those between "name:" and "name;" in the order of bytes.
END_HOLDS: Final = """/* pgqueue:end_holds */
WITH ended AS (
    DELETE FROM pgqueue_limit_state
    WHERE held_until IS NOT NULL
      AND (limit_key = %(limit_key)s OR limit_key >= %(first_key)s AND limit_key < %(end_key)s)
    RETURNING limit_key, held_until
)
SELECT count(DISTINCT limit_key), max(held_until)
FROM ended
WHERE held_until > statement_timestamp() + %(time_shift)s::interval
"""

# Remove overrides that ended long ago.
#
# Caller: lifecycle.limit_overrides.prune_overrides()
PRUNE_LIMIT_OVERRIDES: Final = """/* pgqueue:prune_limit_overrides */
DELETE FROM pgqueue_limit_override
WHERE valid_until < statement_timestamp() + %(time_shift)s::interval
    - make_interval(secs => %(older_than_seconds)s::float8)
  AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
"""
