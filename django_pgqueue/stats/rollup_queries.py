"""The statements of `stats` that read the rollup. The rules of `queries` apply."""

from typing import Final

# Return the database's time.
DATABASE_TIME: Final = """/* pgqueue:database_time */
SELECT statement_timestamp() + %(time_shift)s::interval
"""

# Sum the rollup rows of each minute or hour in a period.
#
# Index: pgqueue_rollup_starts
COUNTS_OVER_TIME: Final = """/* pgqueue:counts_over_time */
SELECT starts_at, CASE WHEN span = 'hour' THEN 3600 ELSE 60 END AS seconds,
       sum(succeeded), sum(retried), sum(dead), sum(cancelled), sum(released), sum(snoozed), sum(crashed),
       sum(wait_seconds), sum(run_seconds)
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= %(since)s AND starts_at < %(until)s
  AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
  AND (%(task_names)s::varchar[] IS NULL OR task_name = ANY (%(task_names)s::varchar[]))
GROUP BY 1, 2
ORDER BY 1, 2
"""

# Sum the histograms of each minute or hour in a period, one row per bucket.
#
# Index: pgqueue_rollup_starts
DURATIONS_OVER_TIME: Final = """/* pgqueue:durations_over_time */
SELECT starts_at, CASE WHEN span = 'hour' THEN 3600 ELSE 60 END AS seconds, kind, bucket, sum(count)
FROM (
    SELECT starts_at, span, 'wait' AS kind, wait.bucket, wait.count
    FROM pgqueue_rollup
    CROSS JOIN LATERAL unnest(wait_buckets, wait_counts) AS wait (bucket, count)
    WHERE span = ANY ('{part,minute,hour}')
      AND starts_at >= %(since)s AND starts_at < %(until)s
      AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
      AND (%(task_names)s::varchar[] IS NULL OR task_name = ANY (%(task_names)s::varchar[]))
    UNION ALL
    SELECT starts_at, span, 'run', run.bucket, run.count
    FROM pgqueue_rollup
    CROSS JOIN LATERAL unnest(run_buckets, run_counts) AS run (bucket, count)
    WHERE span = ANY ('{part,minute,hour}')
      AND starts_at >= %(since)s AND starts_at < %(until)s
      AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
      AND (%(task_names)s::varchar[] IS NULL OR task_name = ANY (%(task_names)s::varchar[]))
) AS counted
GROUP BY 1, 2, 3, 4
"""

# Sum the rollup rows of each task in a period, those with the most attempts first.
#
# Index: pgqueue_rollup_starts
COUNTS_BY_TASK: Final = """/* pgqueue:counts_by_task */
SELECT task_name,
       sum(succeeded), sum(retried), sum(dead), sum(cancelled), sum(released), sum(snoozed), sum(crashed),
       sum(wait_seconds), sum(run_seconds)
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= %(since)s AND starts_at < %(until)s
  AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
GROUP BY task_name
ORDER BY sum(succeeded + retried + dead + cancelled) DESC, task_name
LIMIT %(limit)s
"""

# Sum the histograms of each task in a period, one row per bucket.
#
# Index: pgqueue_rollup_starts
DURATIONS_BY_TASK: Final = """/* pgqueue:durations_by_task */
SELECT task_name, kind, bucket, sum(count)
FROM (
    SELECT task_name, 'wait' AS kind, wait.bucket, wait.count
    FROM pgqueue_rollup
    CROSS JOIN LATERAL unnest(wait_buckets, wait_counts) AS wait (bucket, count)
    WHERE span = ANY ('{part,minute,hour}')
      AND starts_at >= %(since)s AND starts_at < %(until)s
      AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
    UNION ALL
    SELECT task_name, 'run', run.bucket, run.count
    FROM pgqueue_rollup
    CROSS JOIN LATERAL unnest(run_buckets, run_counts) AS run (bucket, count)
    WHERE span = ANY ('{part,minute,hour}')
      AND starts_at >= %(since)s AND starts_at < %(until)s
      AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
) AS counted
GROUP BY 1, 2, 3
"""

# Count the failed attempts in a period by task and exception class.
#
# Index: pgqueue_rollup_starts
FAILURES_BY_CLASS: Final = """/* pgqueue:failures_by_class */
SELECT task_name, exception_class, sum(retried) AS retried, sum(dead) AS dead, max(starts_at)
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= %(since)s AND starts_at < %(until)s
  AND retried + dead > 0
  AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
  AND (%(task_names)s::varchar[] IS NULL OR task_name = ANY (%(task_names)s::varchar[]))
GROUP BY task_name, exception_class
ORDER BY sum(retried + dead) DESC, task_name, exception_class
LIMIT %(limit)s
"""

# Return how many attempts of each queue and task ended in the last minute whose counts are complete: those that ended
# their job.
#
# Index: pgqueue_rollup_starts
ENDED_BY_TASK: Final = """/* pgqueue:ended_by_task */
SELECT queue_name, task_name, sum(succeeded + dead + cancelled)
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute}')
  AND starts_at = date_trunc(
      'minute',
      statement_timestamp() + %(time_shift)s::interval - make_interval(secs => 60 + %(delay_seconds)s::float8),
      'UTC'
  )
GROUP BY queue_name, task_name
"""
