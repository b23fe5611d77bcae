"""The lanes of ready jobs with a limit: which there are, and how many jobs each has.

`depths` adds these jobs to those without a limit, and the search for jobs visits the lanes.
"""

from __future__ import annotations

from typing import Any, Final

from django_pgqueue.db.statements import Connection, execute

# Return the lanes that have ready jobs with a limit.
#
# Index: pgqueue_job_limited, one index search per lane
LIMITED_LANES: Final = """/* pgqueue:limited_lanes */
WITH RECURSIVE lane AS (
    (
        SELECT queue_name, priority, 1 AS place FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
        ORDER BY queue_name, priority DESC, limit_key, run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue_name, next.priority, lane.place + 1
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL
              AND queue_name = lane.queue_name AND priority < lane.priority
            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT 1
        )
        UNION ALL
        (
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NOT NULL AND queue_name > lane.queue_name
            ORDER BY queue_name, priority DESC, limit_key, run_after, id
            LIMIT 1
        )
        LIMIT 1
    ) AS next
    WHERE lane.place < %(lanes_limit)s
)
SELECT queue_name, priority FROM lane
"""

# Count the ready jobs with a limit of each task in these lanes: those that are due and those that are due later.
#
# Index: pgqueue_job_limited
# Cost:  at most `limit` rows in each lane. Each row is read, because the index has neither the task nor the attempt
READY_LIMITED: Final = """/* pgqueue:ready_limited */
SELECT lane.queue_name, lane.priority, counted.task_name,
       counted.due, counted.is_cut,
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval - counted.oldest_at),
       counted.scheduled, counted.retrying, counted.is_cut
FROM unnest(%(queue_names)s::varchar[], %(priorities)s::smallint[]) AS lane (queue_name, priority)
CROSS JOIN LATERAL (
    SELECT task_name,
           count(*) FILTER (WHERE is_due) AS due,
           min(run_after) FILTER (WHERE is_due) AS oldest_at,
           count(*) FILTER (WHERE NOT is_due AND attempt = 0) AS scheduled,
           count(*) FILTER (WHERE NOT is_due AND attempt > 0) AS retrying,
           sum(count(*)) OVER () >= %(limit)s AS is_cut
    FROM (
        SELECT task_name, attempt, run_after,
               run_after <= statement_timestamp() + %(time_shift)s::interval AS is_due
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
          AND queue_name = lane.queue_name AND priority = lane.priority
        ORDER BY limit_key, run_after, id
        LIMIT %(limit)s
    ) AS first
    GROUP BY task_name
) AS counted
"""


LANES_LIMIT: Final = 1000
ROWS_TOTAL: Final = 20_000
"""Maximum number of jobs to count in all lanes together."""
ROWS_LIMIT: Final = 10_000
"""Maximum number of jobs to count in one lane."""


def limited_lanes(connection: Connection) -> list[tuple[str, int]]:
    """Return the queue and the priority of each lane that has ready jobs with a limit."""
    return [(queue, priority) for queue, priority in execute(connection, LIMITED_LANES, {"lanes_limit": LANES_LIMIT})]


def has_due_limited(connection: Connection, queue_name: str) -> bool:
    """Return whether a due job with a limit is among the first ready ones of a queue."""
    lanes = [lane for lane in limited_lanes(connection) if lane[0] == queue_name]
    return any(due for _, _, _, due, *_ in _count_ready(connection, lanes))


def read_ready_limited(connection: Connection) -> list[tuple[Any, ...]]:
    """Return the ready jobs with a limit of each task in each lane, with the columns of `depths.Ready`.

    Without such jobs, this runs one statement, which reads an empty index.
    """
    return _count_ready(connection, limited_lanes(connection))


def _count_ready(connection: Connection, lanes: list[tuple[str, int]]) -> list[tuple[Any, ...]]:
    """Return the ready jobs of each task in these lanes. Each lane is counted up to a limit."""
    if not lanes:
        return []
    params = {
        "queue_names": [queue for queue, _ in lanes],
        "priorities": [priority for _, priority in lanes],
        "limit": min(ROWS_LIMIT, max(ROWS_TOTAL // len(lanes), 100)),
    }
    return execute(connection, READY_LIMITED, params)
