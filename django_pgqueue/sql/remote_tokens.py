"""Statements on the tokens of remote workers. Their table exists only with the app `django_pgqueue.contrib.remote`."""

from typing import Final

# Add a token, and return its id.
#
# Caller: lifecycle.remote_tokens.create_remote_token(), for an operator
ADD_REMOTE_ACCESS: Final = """/* pgqueue:add_remote_access */
INSERT INTO pgqueue_remote_token
    (name, digest, queue_names, task_names, requests_per_minute, created_at, created_by, expires_at, revoked_by)
VALUES (
    %(name)s, %(digest)s::bytea, %(queue_names)s::jsonb, %(task_names)s::jsonb, %(requests_per_minute)s,
    statement_timestamp() + %(time_shift)s::interval, %(created_by)s,
    statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(expires_in_seconds)s::float8), ''
)
RETURNING id
"""

# Return a valid token by its digest, and record that it was used.
#
# Caller: lifecycle.remote_tokens.use_remote_token(), at each request of a remote worker
# Locks:  the token's row, SKIP LOCKED
# Index:  pgqueue_remote_token_digest
# Cost:   0.1 ms. The row is written once a minute at most, because each write makes a dead row.
CHECK_REMOTE_ACCESS: Final = """/* pgqueue:check_remote_access */
WITH found AS MATERIALIZED (
    SELECT id, name, queue_names, task_names, requests_per_minute, used_at
    FROM pgqueue_remote_token
    WHERE digest = %(digest)s::bytea
      AND revoked_at IS NULL
      AND (expires_at IS NULL OR expires_at > statement_timestamp() + %(time_shift)s::interval)
),
late AS MATERIALIZED (
    SELECT locked.id
    FROM found
    CROSS JOIN LATERAL (
        SELECT id FROM pgqueue_remote_token WHERE id = found.id FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
    WHERE found.used_at IS NULL
       OR found.used_at < statement_timestamp() + %(time_shift)s::interval - interval '1 minute'
),
used AS (
    UPDATE pgqueue_remote_token AS token
    SET used_at = statement_timestamp() + %(time_shift)s::interval
    FROM late
    WHERE token.id = late.id
)
SELECT id, name, queue_names::text, task_names::text, requests_per_minute FROM found
"""

# Revoke a token. Return its name, or nothing if it does not exist or was revoked before.
#
# Caller: lifecycle.remote_tokens.revoke_remote_token(), for an operator
# Index:  primary key
REVOKE_REMOTE_ACCESS: Final = """/* pgqueue:revoke_remote_access */
UPDATE pgqueue_remote_token
SET revoked_at = statement_timestamp() + %(time_shift)s::interval, revoked_by = %(revoked_by)s
WHERE id = %(token_id)s AND revoked_at IS NULL
RETURNING name
"""
