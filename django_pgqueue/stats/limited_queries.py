"""The statements of `stats` on ready jobs with a limit, which have an index of their own.

The rules of `queries` apply. A lane of jobs with a limit is a range of the index in the order of the limit keys, not in
the order of times. Counting therefore reads the first jobs of a lane, whether they are due or not.
"""

from typing import Final

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
