"""Statements that add jobs without a unique key."""

from typing import Final

# Add one job.
#
# Moves:  new → ready
# Caller: lifecycle.enqueue(), from `Task.enqueue()`, on the application's connection and in its transaction
# Cost:   one insert into three indexes (a ready job is in two of them)
ENQUEUE: Final = """/* pgqueue:enqueue */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at)
VALUES (
    %(task_name)s, %(queue_name)s, %(priority)s, %(arguments)s::json, %(max_attempts)s,
    statement_timestamp() + %(time_shift)s::interval,
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(expires_seconds)s::float8)
    )
)
RETURNING id, run_after, enqueued_at, expires_at
"""

# Add many jobs of one task, and return their ids in the order of the calls.
#
# Moves:  new → ready
# Caller: lifecycle.enqueue_many(), from `Task.enqueue_many()`, a chunk at a time
# Cost:   5 µs per job. The calls come as one JSON array whose elements are stored as they are written, because building
#         an array of texts cost the client 5 µs per job.
ENQUEUE_MANY: Final = """/* pgqueue:enqueue_many */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at)
SELECT
    %(task_name)s, %(queue_name)s, %(priority)s, given.arguments, %(max_attempts)s,
    statement_timestamp() + %(time_shift)s::interval,
    coalesce(
        %(run_after)s::timestamptz,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(delay_seconds)s::float8)
    ),
    %(headers)s::json,
    coalesce(
        %(expires_at)s::timestamptz,
        statement_timestamp() + %(time_shift)s::interval + make_interval(secs => %(expires_seconds)s::float8)
    )
FROM json_array_elements(%(arguments)s::json) WITH ORDINALITY AS given (arguments, place)
ORDER BY given.place
RETURNING id
"""
