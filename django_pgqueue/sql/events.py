"""Statements that send, find and remove events."""

from typing import Final

# Add an event. Return its id.
#
# Caller: lifecycle.send_event(), in the transaction of the application
# Cost:   no unique index and no lock, so senders never wait for each other
SEND_EVENT: Final = """/* pgqueue:send_event */
INSERT INTO pgqueue_event (name, key, payload, sent_at)
VALUES (
    %(event_name)s::varchar, %(event_key)s::varchar, %(payload)s::json,
    statement_timestamp() + %(time_shift)s::interval
)
RETURNING id
"""

# Return the earliest event with this name and key that the job has not yet received.
#
# Caller: lifecycle.find_event(), when a running job calls wait_for_event()
# Index:  pgqueue_event_key, primary key
#
# The received events are compared one by one, not by the highest id: an event with a lower id can be committed later.
# A condition `event_id IS NOT NULL` would let the planner read pgqueue_step_event, the index of all received events.
FIND_EVENT: Final = """/* pgqueue:find_event */
SELECT id, payload::text
FROM pgqueue_event
WHERE name = %(event_name)s::varchar
  AND key = %(event_key)s::varchar
  AND id <> ALL (
      ARRAY (SELECT coalesce(event_id, 0) FROM pgqueue_step WHERE job_id = %(job_id)s::bigint)
  )
ORDER BY id
LIMIT 1
"""

# Remove the oldest events if they are past their retention. Return how many events were found, and how many removed.
#
# Caller: lifecycle.prune_events()
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  primary key. The events with the lowest ids are read, which are the oldest but for some seconds
PRUNE_EVENTS: Final = """/* pgqueue:prune_events */
WITH page AS MATERIALIZED (
    SELECT id, sent_at
    FROM pgqueue_event
    WHERE id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
    ORDER BY id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_event
    WHERE id = ANY (
        ARRAY (
            SELECT id
            FROM page
            WHERE sent_at < statement_timestamp() + %(time_shift)s::interval
                - make_interval(secs => %(retention_seconds)s::float8)
        )
    )
    RETURNING id
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM gone)
"""
