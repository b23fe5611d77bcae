"""The statements of `stats` that group dead jobs by their error. The rules of `queries` apply."""

from typing import Final

# Group the dead jobs that died last in a period by task and exception class of their latest execution.
#
# Index: pgqueue_job_finished for the jobs, pgqueue_execution_job for the latest execution of each
# Cost:  `limit` jobs, and one probe for each
DEAD_GROUPS: Final = """/* pgqueue:dead_groups */
SELECT dead.task_name, coalesce(latest.exception_class, '') AS exception_class,
       count(*), min(dead.finished_at), max(dead.finished_at),
       (array_agg(dead.id ORDER BY dead.finished_at DESC, dead.id DESC))[1:%(sample)s::integer]
FROM (
    SELECT id, task_name, finished_at
    FROM pgqueue_job
    WHERE state = 'dead' AND finished_at IS NOT NULL
      AND finished_at >= %(since)s AND finished_at < %(until)s
    ORDER BY finished_at DESC
    LIMIT %(limit)s
) AS dead
LEFT JOIN LATERAL (
    SELECT execution.exception_class
    FROM pgqueue_execution AS execution
    WHERE execution.job_id = dead.id
    ORDER BY execution.job_id DESC, execution.id DESC
    LIMIT 1
) AS latest ON true
GROUP BY 1, 2
ORDER BY 3 DESC, 1, 2
"""

# Skip the dead jobs that a limit allows, latest first, and return when the next one died. Without it, return no row.
#
# Index: pgqueue_job_finished
DEAD_BEYOND: Final = """/* pgqueue:dead_beyond */
SELECT finished_at
FROM pgqueue_job
WHERE state = 'dead' AND finished_at IS NOT NULL
  AND finished_at >= %(since)s AND finished_at < %(until)s
ORDER BY finished_at DESC
OFFSET %(limit)s
LIMIT 1
"""

# Return those of some jobs whose latest execution ended with an exception class that fits a regular expression.
#
# Index: pgqueue_execution_job, one probe per job
JOBS_WITH_EXCEPTION: Final = """/* pgqueue:jobs_with_exception */
SELECT wanted.id
FROM unnest(%(job_ids)s::bigint[]) AS wanted (id)
WHERE (
    SELECT execution.exception_class
    FROM pgqueue_execution AS execution
    WHERE execution.job_id = wanted.id
    ORDER BY execution.job_id DESC, execution.id DESC
    LIMIT 1
) ~ %(pattern)s
"""

# Count the failed attempts with one task and exception class in each minute or hour of a period.
#
# Index: pgqueue_rollup_starts
FAILURES_OVER_TIME: Final = """/* pgqueue:failures_over_time */
SELECT task_name, exception_class, starts_at, CASE WHEN span = 'hour' THEN 3600 ELSE 60 END AS seconds,
       sum(retried + dead)::bigint
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= %(since)s AND starts_at < %(until)s
  AND retried + dead > 0
GROUP BY 1, 2, 3, 4
ORDER BY 3
"""

# Return the exception classes of the attempts that failed recently.
#
# Index: pgqueue_rollup_starts
FAILURE_CLASSES: Final = """/* pgqueue:failure_classes */
SELECT DISTINCT exception_class
FROM pgqueue_rollup
WHERE span = ANY ('{part,minute,hour}')
  AND starts_at >= statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds)s::float8)
  AND retried + dead > 0 AND exception_class <> ''
LIMIT %(limit)s
"""
