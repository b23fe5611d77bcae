"""Statements that pause and resume queues and tasks."""

from typing import Final

from .clauses import UNTIL

# Pause a queue or a task. If it is already paused, replace the end, the person and the reason. With `only_new`, leave a
# pause in force as it is, and return no row. Return the end, and what the pause in force was that this one replaces.
#
# Caller: lifecycle.pauses.pause(), in the operator's transaction, which writes the audit too
# Locks:  the row of the pause. No job is changed: workers skip what is paused once they have read the pauses again.
PAUSE: Final = """/* pgqueue:pause */
WITH former AS MATERIALIZED (
    SELECT paused_at, paused_until, paused_by
    FROM pgqueue_pause
    WHERE kind = %(kind)s AND name = %(name)s
      AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)
    FOR UPDATE
),
paused AS (
    INSERT INTO pgqueue_pause (kind, name, paused_at, paused_until, paused_by, reason)
    SELECT
        %(kind)s, %(name)s, statement_timestamp() + %(time_shift)s::interval,
        """ + UNTIL + """,
        %(paused_by)s, %(reason)s
    FROM (SELECT count(*) FROM former) AS locked
    ON CONFLICT (kind, name) DO UPDATE
    SET paused_until = excluded.paused_until, paused_by = excluded.paused_by, reason = excluded.reason,
        paused_at = CASE
            WHEN pgqueue_pause.paused_until <= excluded.paused_at THEN excluded.paused_at ELSE pgqueue_pause.paused_at
        END
    WHERE NOT %(only_new)s::boolean OR pgqueue_pause.paused_until <= excluded.paused_at
    RETURNING paused_until
)
SELECT paused.paused_until, former.paused_at, former.paused_until, former.paused_by
FROM paused
LEFT JOIN former ON true
"""  # fmt: skip

# End a pause, and return what it was. A pause that has ended by itself counts as not paused.
#
# Caller: lifecycle.pauses.resume(), in the operator's transaction, which writes the audit too
RESUME: Final = """/* pgqueue:resume */
WITH ended AS (
    DELETE FROM pgqueue_pause
    WHERE kind = %(kind)s AND name = %(name)s
    RETURNING paused_at, paused_until, paused_by
)
SELECT paused_at, paused_until, paused_by
FROM ended
WHERE paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval
"""

# Remove pauses that ended by themselves long ago.
#
# Caller: lifecycle.pauses.prune_pauses()
PRUNE_PAUSES: Final = """/* pgqueue:prune_pauses */
DELETE FROM pgqueue_pause
WHERE paused_until < statement_timestamp() + %(time_shift)s::interval
    - make_interval(secs => %(older_than_seconds)s::float8)
  AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
"""
