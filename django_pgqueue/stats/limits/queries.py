"""The statements of `stats` on limits and their keys.

The rules of `queries` apply. A limit has up to two ranges of limit keys: its name alone, and its name with a value, as
in `import:4711`. All statements take such ranges, because names that lie between the two would have to be skipped one
key at a time.
"""

from typing import Final

# Return the limits that have ready jobs in these lanes: the first key of each of their ranges.
#
# Index: pgqueue_job_limited, one index search per lane and range
#
# A search continues behind the range of the key that the last one found: behind `import:` for `import:4711`, and behind
# the key itself if it has no value. The character after ":" in the order of keys is ";".
LIMITS_WITH_JOBS: Final = """/* pgqueue:limits_with_jobs */
WITH RECURSIVE visited AS (
    SELECT lane.queue_name, lane.priority, first.limit_key, 1 AS place
    FROM unnest(%(queue_names)s::varchar[], %(priorities)s::smallint[]) AS lane (queue_name, priority)
    CROSS JOIN LATERAL (
        SELECT limit_key
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
          AND queue_name = lane.queue_name AND priority = lane.priority
        ORDER BY limit_key, run_after, id
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT visited.queue_name, visited.priority, next.limit_key, visited.place + 1
    FROM visited
    CROSS JOIN LATERAL (
        SELECT limit_key
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
          AND queue_name = visited.queue_name AND priority = visited.priority
          AND limit_key >= CASE WHEN strpos(visited.limit_key, ':') > 0
                                THEN split_part(visited.limit_key, ':', 1) || ';'
                                ELSE visited.limit_key || chr(1) END
        ORDER BY limit_key, run_after, id
        LIMIT 1
    ) AS next
    WHERE visited.place < %(limit)s
)
SELECT queue_name, priority, limit_key FROM visited
"""

# Return the first keys with ready jobs in these ranges, and how long the first job of each has been due.
#
# Index: pgqueue_job_limited, one index search per key
KEYS_WITH_JOBS: Final = """/* pgqueue:keys_with_jobs */
WITH RECURSIVE visited AS (
    SELECT given.place AS range, given.queue_name, given.priority, given.high,
           first.limit_key, first.run_after, 1 AS place
    FROM unnest(%(queue_names)s::varchar[], %(priorities)s::smallint[], %(lows)s::varchar[], %(highs)s::varchar[])
         WITH ORDINALITY AS given (queue_name, priority, low, high, place)
    CROSS JOIN LATERAL (
        SELECT limit_key, run_after
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
          AND queue_name = given.queue_name AND priority = given.priority
          AND limit_key >= given.low AND limit_key < given.high
        ORDER BY limit_key, run_after, id
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT visited.range, visited.queue_name, visited.priority, visited.high,
           next.limit_key, next.run_after, visited.place + 1
    FROM visited
    CROSS JOIN LATERAL (
        SELECT limit_key, run_after
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
          AND queue_name = visited.queue_name AND priority = visited.priority
          AND limit_key > visited.limit_key AND limit_key < visited.high
        ORDER BY limit_key, run_after, id
        LIMIT 1
    ) AS next
    WHERE visited.place < %(limit)s
)
SELECT range - 1, queue_name, priority, limit_key,
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval - run_after)
FROM visited
"""

# Count the first jobs of these ranges: those that are due, and those that are due later.
#
# Index: pgqueue_job_limited
JOBS_OF_LIMITS: Final = """/* pgqueue:jobs_of_limits */
SELECT given.place - 1, counted.due, counted.later
FROM unnest(%(queue_names)s::varchar[], %(priorities)s::smallint[], %(lows)s::varchar[], %(highs)s::varchar[])
     WITH ORDINALITY AS given (queue_name, priority, low, high, place)
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE first.is_due) AS due, count(*) FILTER (WHERE NOT first.is_due) AS later
    FROM (
        SELECT run_after <= statement_timestamp() + %(time_shift)s::interval AS is_due
        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NOT NULL
          AND queue_name = given.queue_name AND priority = given.priority
          AND limit_key >= given.low AND limit_key < given.high
        ORDER BY limit_key, run_after, id
        LIMIT %(limit)s
    ) AS first
) AS counted
"""

# Count the open executions of each limit, and add up their weights.
#
# Index: pgqueue_job_running_key, and the row of each entry. Chunk keys begin with +, and come before all limits
RUNNING_OF_LIMITS: Final = """/* pgqueue:running_of_limits */
SELECT split_part(limit_key, ':', 1), count(*), sum(coalesce(limit_weight, 1))::bigint
FROM (
    SELECT limit_key, limit_weight
    FROM pgqueue_job
    WHERE state = 'running' AND limit_key >= ','
    ORDER BY limit_key, execution_id
    LIMIT %(limit)s
) AS opened
GROUP BY split_part(limit_key, ':', 1)
"""

# Return the first keys with open executions in these ranges.
#
# Index: pgqueue_job_running_key, one index search per key
KEYS_WITH_EXECUTIONS: Final = """/* pgqueue:keys_with_executions */
WITH RECURSIVE visited AS (
    SELECT given.high, first.limit_key, 1 AS place
    FROM unnest(%(lows)s::varchar[], %(highs)s::varchar[]) AS given (low, high)
    CROSS JOIN LATERAL (
        SELECT limit_key
        FROM pgqueue_job
        WHERE state = 'running' AND limit_key >= given.low AND limit_key < given.high
        ORDER BY limit_key, execution_id
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT visited.high, next.limit_key, visited.place + 1
    FROM visited
    CROSS JOIN LATERAL (
        SELECT limit_key
        FROM pgqueue_job
        WHERE state = 'running' AND limit_key > visited.limit_key AND limit_key < visited.high
        ORDER BY limit_key, execution_id
        LIMIT 1
    ) AS next
    WHERE visited.place < %(limit)s
)
SELECT limit_key FROM visited
"""

# Return the last keys that have rows of holds, and whether each is held now.
#
# Index: pgqueue_limit_state_held, one index search per key. Backwards, the first entry of a key is its longest hold
HELD_KEYS: Final = """/* pgqueue:held_keys */
WITH RECURSIVE visited AS (
    (
        SELECT limit_key, held_until, 1 AS place
        FROM pgqueue_limit_state
        WHERE held_until IS NOT NULL
        ORDER BY limit_key DESC, held_until DESC
        LIMIT 1
    )
    UNION ALL
    SELECT next.limit_key, next.held_until, visited.place + 1
    FROM visited
    CROSS JOIN LATERAL (
        SELECT limit_key, held_until
        FROM pgqueue_limit_state
        WHERE held_until IS NOT NULL AND limit_key < visited.limit_key
        ORDER BY limit_key DESC, held_until DESC
        LIMIT 1
    ) AS next
    WHERE visited.place < %(limit)s
)
SELECT limit_key, held_until > statement_timestamp() + %(time_shift)s::interval FROM visited
"""

# Return the overrides, the pauses in force and the open circuit breakers of all limits and limit keys, those of names
# before those of keys.
#
# Cost: reads the three tables, which have one row for each limit or key that is changed, up to the limit
#
# A row is an override, or a pause: then its first column is true. The first column of an open breaker is NULL.
# Its number is that of its failed probes.
LIMIT_CONTROLS: Final = """/* pgqueue:limit_controls */
(
    SELECT false, limit_key, concurrency, rate, burst, share, changed_at,
           CASE WHEN isfinite(valid_until) THEN valid_until END, changed_by, reason
    FROM pgqueue_limit_override
    WHERE valid_until IS NULL OR valid_until > statement_timestamp() + %(time_shift)s::interval
    ORDER BY strpos(limit_key, ':') > 0, limit_key
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT true, name, NULL, NULL, NULL, NULL, paused_at,
           CASE WHEN isfinite(paused_until) THEN paused_until END, paused_by, reason
    FROM pgqueue_pause
    WHERE kind = 'limit'
      AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)
    ORDER BY strpos(name, ':') > 0, name
    LIMIT %(limit)s
)
UNION ALL
(
    SELECT NULL, limit_key, probes_failed, NULL, NULL, NULL, opened_at, NULL, NULL, NULL
    FROM pgqueue_open_breaker
    ORDER BY strpos(limit_key, ':') > 0, limit_key
    LIMIT %(limit)s
)
"""
