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

# Remove the events of one page that are past their retention, unless an unfinished job waits for the event and has not
# received it. Return the number of events in the page, how many of them were old, how many were removed, the last event
# of the page, and the last old one.
#
# Caller: lifecycle.prune_events(), page by page
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  pgqueue_event_pkey; for each old event pgqueue_step_waiting, pgqueue_step_pkey and pgqueue_job_pkey. Ids and
#         times rise together, but for some seconds
#
# A job that was woken has not received its event yet: it finds the event when it runs. Its queue can be paused for
# longer than the retention.
PRUNE_EVENTS: Final = """/* pgqueue:prune_events */
WITH page AS MATERIALIZED (
    SELECT id, name, key, sent_at
    FROM pgqueue_event
    WHERE id > %(after_id)s::bigint
      AND id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
    ORDER BY id
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
old AS MATERIALIZED (
    SELECT id, name, key
    FROM page
    WHERE sent_at < statement_timestamp() + %(time_shift)s::interval
        - make_interval(secs => %(retention_seconds)s::float8)
),
gone AS (
    DELETE FROM pgqueue_event
    WHERE id = ANY (
        ARRAY (
            SELECT id
            FROM old
            WHERE (
                SELECT true
                FROM pgqueue_step AS step
                WHERE step.event_name = old.name
                  AND step.event_key = old.key
                  AND step.finished_at IS NULL
                  AND (SELECT finished_at IS NULL FROM pgqueue_job WHERE id = step.job_id)
                  AND old.id <> ALL (
                      ARRAY (SELECT coalesce(event_id, 0) FROM pgqueue_step WHERE job_id = step.job_id)
                  )
                LIMIT 1
            ) IS NULL
        )
    )
    RETURNING id
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM old), (SELECT count(*) FROM gone),
       (SELECT max(id) FROM page), (SELECT max(id) FROM old)
"""
