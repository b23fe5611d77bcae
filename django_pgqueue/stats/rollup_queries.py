"""The statements of `stats` that read the rollup. The rules of `queries` apply."""

from typing import Final

# Return the database's time.
DATABASE_TIME: Final = """/* pgqueue:database_time */
SELECT statement_timestamp() + %(time_shift)s::interval
"""

# Sum the rollup rows of each minute or hour in a period. `spans` names the parts, and either the totals or the rows of
# each queue and task. If `hourly` is true, the minutes of an hour are added.
#
# Index: pgqueue_rollup_starts
COUNTS_OVER_TIME: Final = """/* pgqueue:counts_over_time */
SELECT CASE WHEN %(hourly)s THEN date_trunc('hour', starts_at, 'UTC') ELSE starts_at END,
       CASE WHEN %(hourly)s OR span IN ('hour', 'hour_total') THEN 3600 ELSE 60 END AS seconds,
       sum(succeeded)::bigint, sum(retried)::bigint, sum(dead)::bigint, sum(cancelled)::bigint,
       sum(released)::bigint, sum(snoozed)::bigint, sum(crashed)::bigint,
       sum(wait_seconds), sum(run_seconds)
FROM pgqueue_rollup
WHERE span = ANY (%(spans)s::varchar[])
  AND starts_at >= %(since)s AND starts_at < %(until)s
  AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
  AND (%(task_names)s::varchar[] IS NULL OR task_name = ANY (%(task_names)s::varchar[]))
GROUP BY 1, 2
ORDER BY 1, 2
"""

# A clause: only buckets that exist, and counts whose sum fits. Other programs can write any number into an array.
VALID: Final = """
    WHERE bucket BETWEEN 0 AND 109 AND count BETWEEN 0 AND 1000000000000"""

# Sum the histograms of each minute or hour in a period: two rows for each, with the numbers and the counts of buckets.
#
# Index: pgqueue_rollup_starts
# Cost:  0.15 µs for each bucket of each row
DURATIONS_OVER_TIME: Final = """/* pgqueue:durations_over_time */
SELECT starts_at, seconds, 'wait' AS kind, array_agg(bucket) AS buckets, array_agg(count) AS counts
FROM (
    SELECT starts_at, seconds, bucket, sum(count)::bigint AS count
    FROM (
        SELECT CASE WHEN %(hourly)s THEN date_trunc('hour', starts_at, 'UTC') ELSE starts_at END AS starts_at,
               CASE WHEN %(hourly)s OR span IN ('hour', 'hour_total') THEN 3600 ELSE 60 END AS seconds,
               unnest(wait_buckets) AS bucket, unnest(wait_counts) AS count
        FROM pgqueue_rollup
        WHERE span = ANY (%(spans)s::varchar[])
          AND starts_at >= %(since)s AND starts_at < %(until)s
          AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
          AND (%(task_names)s::varchar[] IS NULL OR task_name = ANY (%(task_names)s::varchar[]))
    ) AS wait""" + VALID + """
    GROUP BY starts_at, seconds, bucket
) AS wait_sums
GROUP BY starts_at, seconds
UNION ALL
SELECT starts_at, seconds, 'run', array_agg(bucket), array_agg(count)
FROM (
    SELECT starts_at, seconds, bucket, sum(count)::bigint AS count
    FROM (
        SELECT CASE WHEN %(hourly)s THEN date_trunc('hour', starts_at, 'UTC') ELSE starts_at END AS starts_at,
               CASE WHEN %(hourly)s OR span IN ('hour', 'hour_total') THEN 3600 ELSE 60 END AS seconds,
               unnest(run_buckets) AS bucket, unnest(run_counts) AS count
        FROM pgqueue_rollup
        WHERE span = ANY (%(spans)s::varchar[])
          AND starts_at >= %(since)s AND starts_at < %(until)s
          AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
          AND (%(task_names)s::varchar[] IS NULL OR task_name = ANY (%(task_names)s::varchar[]))
    ) AS run""" + VALID + """
    GROUP BY starts_at, seconds, bucket
) AS run_sums
GROUP BY starts_at, seconds
"""  # fmt: skip # noqa: S608 -- all parts are literals of this module

# Sum the rollup rows of each task in a period, those with the most attempts first.
#
# Index: pgqueue_rollup_starts
COUNTS_BY_TASK: Final = """/* pgqueue:counts_by_task */
SELECT task_name,
       sum(succeeded)::bigint, sum(retried)::bigint, sum(dead)::bigint, sum(cancelled)::bigint,
       sum(released)::bigint, sum(snoozed)::bigint, sum(crashed)::bigint,
       sum(wait_seconds), sum(run_seconds)
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= %(since)s AND starts_at < %(until)s
  AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
GROUP BY task_name
ORDER BY sum(succeeded + retried + dead + cancelled) DESC, task_name
LIMIT %(limit)s
"""

# Sum the histograms of each task in a period, one row per bucket. The waits can be left out.
#
# Index: pgqueue_rollup_starts
# Cost:  as DURATIONS_OVER_TIME
DURATIONS_BY_TASK: Final = """/* pgqueue:durations_by_task */
SELECT task_name, 'wait' AS kind, bucket, sum(count)::bigint
FROM (
    SELECT task_name, unnest(wait_buckets) AS bucket, unnest(wait_counts) AS count
    FROM pgqueue_rollup
    WHERE span = ANY ('{part,minute,hour}')
      AND starts_at >= %(since)s AND starts_at < %(until)s
      AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
      AND %(waits)s
) AS wait""" + VALID + """
GROUP BY task_name, bucket
UNION ALL
SELECT task_name, 'run', bucket, sum(count)::bigint
FROM (
    SELECT task_name, unnest(run_buckets) AS bucket, unnest(run_counts) AS count
    FROM pgqueue_rollup
    WHERE span = ANY ('{part,minute,hour}')
      AND starts_at >= %(since)s AND starts_at < %(until)s
      AND (%(queue_name)s::varchar IS NULL OR queue_name = %(queue_name)s::varchar)
) AS run""" + VALID + """
GROUP BY task_name, bucket
"""  # fmt: skip # noqa: S608 -- all parts are literals of this module

# Count the failed attempts in a period by task and exception class.
#
# Index: pgqueue_rollup_starts
FAILURES_BY_CLASS: Final = """/* pgqueue:failures_by_class */
SELECT task_name, exception_class, sum(retried)::bigint AS retried, sum(dead)::bigint AS dead, max(starts_at)
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
SELECT queue_name, task_name, sum(succeeded + dead + cancelled)::bigint
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute}')
  AND starts_at = date_trunc(
      'minute',
      statement_timestamp() + %(time_shift)s::interval - make_interval(secs => 60 + %(delay_seconds)s::float8),
      'UTC'
  )
GROUP BY queue_name, task_name
"""
