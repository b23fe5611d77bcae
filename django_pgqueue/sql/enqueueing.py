"""Statements that add jobs without a unique key."""

from typing import Final

from .clauses import OPTIONS_OF_EACH, TIMES, VALUES_OF_EACH

# Add one job.
#
# Moves:  new → ready
# Caller: lifecycle.enqueueing.enqueue(), from `Task.enqueue()`, on the application's connection and in its transaction
# Cost:   one insert into three indexes (a ready job is in two of them)
ENQUEUE: Final = """/* pgqueue:enqueue */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     limit_key, limit_weight, limit_order, batch_id)
VALUES (
    %(task_name)s, %(queue_name)s, %(priority)s, %(arguments)s::json, %(max_attempts)s,
""" + TIMES + """
    %(limit_key)s::varchar, %(limit_weight)s::integer, %(limit_order)s::smallint, %(batch_id)s::bigint
)
RETURNING id, run_after, enqueued_at, expires_at
"""  # fmt: skip

# Add many jobs of one task, and return their ids in the order of the calls.
#
# Moves:  new → ready
# Caller: lifecycle.enqueueing.enqueue_many(), from `Task.enqueue_many()`, a chunk at a time
# Cost:   5 µs per job. The calls come as one JSON array whose elements are stored as they are written, because building
#         an array of texts cost the client 5 µs per job.
ENQUEUE_MANY: Final = """/* pgqueue:enqueue_many */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     limit_key, limit_weight, limit_order, batch_id)
SELECT
    %(task_name)s, %(queue_name)s, %(priority)s, given.arguments, %(max_attempts)s,
""" + TIMES + """
    given.limit_key, given.limit_weight, given.limit_order, %(batch_id)s::bigint
FROM ROWS FROM (
    json_array_elements(%(arguments)s::json),
    json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint)
) WITH ORDINALITY AS given (arguments, limit_key, limit_weight, limit_order, place)
ORDER BY given.place
RETURNING id
"""  # fmt: skip

# Add many jobs, each with a task and options of its own, and return their ids in the order of the calls.
#
# Moves:  new → ready
# Caller: lifecycle.enqueueing.enqueue_each(), from `enqueue_many()`, a chunk at a time, if the calls differ in task or
#         options
# Cost:   that of ENQUEUE_MANY for 2,000 jobs; up to a third more CPU time of client and server for one job
#
# The calls come as in ENQUEUE_MANY. `numbers` has the number of each call's options, and `options` has the options with
# that number. Most calls share their options with others, so they are sent once.
ENQUEUE_EACH: Final = """/* pgqueue:enqueue_each */
INSERT INTO pgqueue_job
    (task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers, expires_at,
     limit_key, limit_weight, limit_order, batch_id)
SELECT
    """ + VALUES_OF_EACH + """
    given.limit_key, given.limit_weight, given.limit_order, chosen.batch_id
FROM ROWS FROM (
    json_array_elements(%(arguments)s::json),
    unnest(%(numbers)s::integer[]),
    json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint)
) WITH ORDINALITY AS given (arguments, number, limit_key, limit_weight, limit_order, place)
""" + OPTIONS_OF_EACH + """
RETURNING id
"""  # fmt: skip
