"""Statements on the rollup: the numbers of attempts that ended in each minute, by queue, task and exception class."""

from typing import Final

# Add rows with the numbers of attempts. The values follow in this order.
INSERT_ROLLUPS: Final = """INSERT INTO pgqueue_rollup
    (span, starts_at, queue_name, task_name, exception_class,
     succeeded, retried, dead, cancelled, released, snoozed, crashed,
     wait_seconds, run_seconds, wait_buckets, wait_counts, run_buckets, run_counts)"""

# Append what one process has counted.
#
# Caller: lifecycle.rollups.append_rollups(), every 10 s from each process that has counted something
# Cost:   one row per queue, task and exception class. No row is updated, so that no two processes wait for one another
APPEND_ROLLUPS: Final = """/* pgqueue:append_rollups */
""" + INSERT_ROLLUPS + """
SELECT 'part',
       date_trunc(
           'minute',
           statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds_ago)s::float8),
           'UTC'
       ),
       given.queue_name, given.task_name, given.exception_class,
       given.succeeded, given.retried, given.dead, given.cancelled, given.released, given.snoozed, given.crashed,
       given.wait_seconds, given.run_seconds,
       given.wait_buckets, given.wait_counts, given.run_buckets, given.run_counts
FROM json_to_recordset(%(tallies)s::json) AS given (
    queue_name text, task_name text, exception_class text,
    succeeded bigint, retried bigint, dead bigint, cancelled bigint, released bigint, snoozed bigint, crashed bigint,
    wait_seconds float8, run_seconds float8,
    wait_buckets bigint[], wait_counts bigint[], run_buckets bigint[], run_counts bigint[]
)
"""  # fmt: skip

# Merge the rows of ended minutes (or hours) into one row for each queue, task and exception class. If %(total_span)s is
# not NULL, add one row for all of them together, so that a reader who filters by nothing reads one row per minute.
#
# Caller: lifecycle.rollups.merge_rollups(), from the maintenance of each worker
# Locks:  SKIP LOCKED: another worker merges these rows. If two workers merge parts of one minute, it keeps two rows,
#         which is harmless because readers add the rows
# Index:  pgqueue_rollup_starts
# Cost:   40 µs per row
#
# Each row becomes a number of keys with a value: one for each column, and one for each bucket of a histogram. So one
# aggregation adds them all, and no CTEs have to be joined.
MERGE_ROLLUPS: Final = """/* pgqueue:merge_rollups */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_rollup
    WHERE span = %(from_span)s
      AND starts_at < date_trunc(
          %(unit)s,
          statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(older_than_seconds)s::float8),
          'UTC'
      )
      AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
    ORDER BY starts_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
taken AS (
    DELETE FROM pgqueue_rollup
    WHERE id = ANY (ARRAY (SELECT id FROM old))
    RETURNING date_trunc(%(unit)s, starts_at, 'UTC') AS starts_at, queue_name, task_name, exception_class,
              succeeded, retried, dead, cancelled, released, snoozed, crashed,
              wait_seconds, run_seconds, wait_buckets, wait_counts, run_buckets, run_counts
),
summed AS (
    SELECT taken.starts_at, taken.queue_name, taken.task_name, taken.exception_class,
           item.kind, item.bucket, sum(item.value) AS value
    FROM taken
    CROSS JOIN LATERAL (
        SELECT 'wait' AS kind, wait.bucket, wait.count::float8 AS value
        FROM unnest(taken.wait_buckets, taken.wait_counts) AS wait (bucket, count)
        UNION ALL
        SELECT 'run', run.bucket, run.count
        FROM unnest(taken.run_buckets, taken.run_counts) AS run (bucket, count)
        UNION ALL
        VALUES ('succeeded', 0, taken.succeeded::float8), ('retried', 0, taken.retried), ('dead', 0, taken.dead),
               ('cancelled', 0, taken.cancelled), ('released', 0, taken.released), ('snoozed', 0, taken.snoozed),
               ('crashed', 0, taken.crashed),
               ('wait_seconds', 0, taken.wait_seconds), ('run_seconds', 0, taken.run_seconds)
    ) AS item
    GROUP BY 1, 2, 3, 4, 5, 6
),
summed_with_total AS (
    SELECT %(to_span)s::varchar AS span, starts_at, queue_name, task_name, exception_class, kind, bucket, value
    FROM summed
    UNION ALL
    SELECT %(total_span)s::varchar, starts_at, '', '', '', kind, bucket, sum(value)
    FROM summed
    WHERE %(total_span)s::varchar IS NOT NULL
    GROUP BY starts_at, kind, bucket
),
merged AS (
""" + INSERT_ROLLUPS + """
    SELECT span, starts_at, queue_name, task_name, exception_class,
           sum(value) FILTER (WHERE kind = 'succeeded'), sum(value) FILTER (WHERE kind = 'retried'),
           sum(value) FILTER (WHERE kind = 'dead'), sum(value) FILTER (WHERE kind = 'cancelled'),
           sum(value) FILTER (WHERE kind = 'released'), sum(value) FILTER (WHERE kind = 'snoozed'),
           sum(value) FILTER (WHERE kind = 'crashed'),
           sum(value) FILTER (WHERE kind = 'wait_seconds'), sum(value) FILTER (WHERE kind = 'run_seconds'),
           coalesce(array_agg(bucket ORDER BY bucket) FILTER (WHERE kind = 'wait'), '{}'),
           coalesce(array_agg(value::bigint ORDER BY bucket) FILTER (WHERE kind = 'wait'), '{}'),
           coalesce(array_agg(bucket ORDER BY bucket) FILTER (WHERE kind = 'run'), '{}'),
           coalesce(array_agg(value::bigint ORDER BY bucket) FILTER (WHERE kind = 'run'), '{}')
    FROM summed_with_total
    GROUP BY span, starts_at, queue_name, task_name, exception_class
)
SELECT count(*) FROM old
"""  # fmt: skip

# Remove counts past their retention.
#
# Caller: lifecycle.rollups.prune_rollups()
# Locks:  SKIP LOCKED, because another worker removes or merges these rows
# Index:  pgqueue_rollup_starts
PRUNE_ROLLUPS: Final = """/* pgqueue:prune_rollups */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_rollup
    WHERE span = ANY ('{part,minute,hour,minute_total,hour_total}')
      AND starts_at < statement_timestamp() + %(time_shift)s::interval
          - make_interval(secs => %(retention_seconds)s::float8)
      AND (id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint) IS TRUE
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
removed AS (
    DELETE FROM pgqueue_rollup WHERE id = ANY (ARRAY (SELECT id FROM old))
)
SELECT count(*) FROM old
"""
