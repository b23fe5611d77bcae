"""The statements that only causes need. The rules of `stats.queries` apply."""

from typing import Final

from django_pgqueue.stats.rollup_queries import VALID

# Count for each task the jobs that died within the last seconds and since its last success, the most first, without
# those that were acknowledged. At most `jobs` of the latest finished jobs of a task are read for these. If it has more,
# and some of them were acknowledged, only the dead letters among those that were read count: the count is not exact.
#
# Index: pgqueue_rollup_starts, pgqueue_job_task
# Cost:  the rollup rows of the period: one for each minute, queue, task and exception class; `jobs` jobs of each task
DEAD_IN_A_ROW: Final = """/* pgqueue:dead_in_a_row */
WITH failing AS MATERIALIZED (
    SELECT task_name, sum(dead)::bigint AS dead, min(starts_at) AS since
    FROM (
        SELECT task_name, dead, starts_at,
               max(starts_at) FILTER (WHERE succeeded > 0) OVER (PARTITION BY task_name) AS succeeded_at
        FROM pgqueue_rollup
        WHERE span = ANY ('{part,minute,hour}')
          AND starts_at >= statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds)s::float8)
          AND succeeded + dead > 0
    ) AS recent
    WHERE succeeded_at IS NULL OR starts_at > succeeded_at
    GROUP BY task_name
    HAVING sum(dead) >= %(least)s
    ORDER BY 2 DESC, 1
    LIMIT %(limit)s
)
SELECT task_name, dead, is_exact
FROM (
    SELECT failing.task_name, jobs.acknowledged = 0 OR jobs.total < %(jobs)s AS is_exact,
           CASE
               WHEN jobs.acknowledged = 0 THEN failing.dead
               ELSE least(failing.dead, jobs.dead)
           END AS dead
    FROM failing
    CROSS JOIN LATERAL (
        SELECT count(*) AS total, count(acknowledged_at) AS acknowledged,
               count(*) FILTER (WHERE state = 'dead' AND acknowledged_at IS NULL) AS dead
        FROM (
            SELECT state, acknowledged_at
            FROM pgqueue_job
            WHERE task_name = failing.task_name AND finished_at IS NOT NULL AND finished_at >= failing.since
            ORDER BY finished_at DESC
            LIMIT %(jobs)s
        ) AS latest
    ) AS jobs
) AS counted
WHERE dead >= %(least)s
ORDER BY dead DESC, task_name
"""

# Return the schedules that are on and late, could not be fired, or whose latest jobs died: the task, how late they are,
# the problem, how many jobs died since the latest one that succeeded, whether these are all, the latest dead job, and
# the job of the latest run if the next run waits for its end. Jobs that were acknowledged do not count. The count does
# not go on behind a removed job, because nobody knows how that ended.
#
# Index: pgqueue_schedulerun_tick and pgqueue_job_pkey for each run
# Cost:  reads the schedules, and at most `runs` runs and jobs of each of the first `schedules` schedules: those with a
#        problem come first, then those that are due first
FAILING_SCHEDULES: Final = """/* pgqueue:failing_schedules */
SELECT id, name, task_name, late_seconds, problem, dead, is_exact, job_id, running_id
FROM (
    SELECT schedule.id, schedule.name, schedule.task_name, schedule.late_seconds, schedule.problem,
           latest.dead, latest.is_exact, latest.job_id,
           CASE WHEN schedule.if_running = 'queue' THEN latest.running_id END AS running_id
    FROM (
        SELECT id, name, task_name, if_running, left(problem, 200) AS problem,
               date_part('epoch', statement_timestamp() + %(time_shift)s::interval
                   - greatest(next_run_at, paused_until)) - jitter_seconds AS late_seconds
        FROM pgqueue_schedule
        WHERE enabled
          AND (paused_until IS NULL OR paused_until <= statement_timestamp() + %(time_shift)s::interval)
        ORDER BY problem = '', next_run_at, id
        LIMIT %(schedules)s
    ) AS schedule
    CROSS JOIN LATERAL (
        SELECT count(*) FILTER (WHERE is_dead AND place < coalesce(end_place, place + 1)) AS dead,
               CASE WHEN bool_or(end_place IS NOT NULL) THEN bool_or(place = end_place AND state = 'succeeded')
                    ELSE count(*) < %(runs)s END AS is_exact,
               max(job_id) FILTER (WHERE is_dead AND place < coalesce(end_place, place + 1)) AS job_id,
               max(job_id) FILTER (WHERE place = 1 AND state IN ('ready', 'waiting', 'running')) AS running_id
        FROM (
            SELECT run.job_id, job.state, job.is_dead, run.place,
                   min(run.place) FILTER (
                       WHERE run.job_id IS NOT NULL AND (job.state IS NULL OR job.state = 'succeeded')
                   ) OVER () AS end_place
            FROM (
                SELECT job_id, row_number() OVER (ORDER BY tick_at DESC) AS place
                FROM (
                    SELECT job_id, tick_at
                    FROM pgqueue_schedulerun
                    WHERE schedule_id = schedule.id
                    ORDER BY tick_at DESC
                    LIMIT %(runs)s
                ) AS newest
            ) AS run
            LEFT JOIN LATERAL (
                SELECT state, state = 'dead' AND acknowledged_at IS NULL AS is_dead
                FROM pgqueue_job
                WHERE id = run.job_id
                LIMIT 1
            ) AS job ON true
        ) AS placed
    ) AS latest
) AS found
WHERE late_seconds >= %(late_seconds)s OR problem <> '' OR dead >= %(least)s
ORDER BY problem = '', dead DESC, late_seconds DESC, id
LIMIT %(limit)s
"""

# Count the newest dead jobs of workflows that other jobs wait for, or that have cancelled other jobs within the last
# seconds, by task and by what became of the others: how many dead jobs they are, the first of them, its batch, how many
# jobs depend on them directly, whether there can be more of these, how many workflows they are, and whether there are
# possibly more dead jobs of workflows. Many other jobs may have died since, so `searched` dead jobs are looked through.
#
# Index: pgqueue_job_dead for the dead jobs, pgqueue_dependency_needs and pgqueue_job_pkey for their dependents
# Cost:  at most `searched` dead jobs, and at most `dependents` edges of the first `limit` that are part of a workflow
DEAD_DEPENDENCIES: Final = """/* pgqueue:dead_dependencies */
SELECT dead.task_name, job.state, count(DISTINCT dead.id), min(dead.id), (array_agg(dead.batch_id ORDER BY dead.id))[1],
       count(DISTINCT edge.job_id), bool_or(edge.is_cut), count(DISTINCT coalesce(dead.batch_id, dead.id)),
       bool_or(dead.number >= %(limit)s)
FROM (
    SELECT id, task_name, batch_id, is_recent, count(*) OVER () AS number
    FROM (
        SELECT id, task_name, batch_id,
               finished_at >= statement_timestamp() + %(time_shift)s::interval
                   - make_interval(secs => %(seconds)s::float8) AS is_recent
        FROM (
            SELECT id, task_name, batch_id, in_graph, finished_at
            FROM pgqueue_job
            WHERE state = 'dead' AND finished_at IS NOT NULL AND acknowledged_at IS NULL
            ORDER BY finished_at DESC
            LIMIT %(searched)s
        ) AS newest
        WHERE in_graph
        ORDER BY finished_at DESC
        LIMIT %(limit)s
    ) AS of_workflows
) AS dead
CROSS JOIN LATERAL (
    SELECT job_id, policy, has_cancelled, count(*) OVER () >= %(dependents)s AS is_cut
    FROM (
        SELECT job_id, policy, has_cancelled FROM pgqueue_dependency WHERE needs_id = dead.id LIMIT %(dependents)s
    ) AS first
) AS edge
CROSS JOIN LATERAL (SELECT state FROM pgqueue_job WHERE id = edge.job_id LIMIT 1) AS job
WHERE CASE job.state
      WHEN 'waiting' THEN edge.policy = 'block'
      WHEN 'cancelled' THEN edge.has_cancelled AND dead.is_recent
  END
GROUP BY dead.task_name, job.state
ORDER BY 6 DESC, 1, 2
LIMIT %(tasks)s
"""

# Count the first jobs of workflows that wait for dead jobs that were acknowledged, by the task of the dead jobs: how
# many dead jobs they are, the first of them, how many jobs wait for them directly, and whether there can be more.
#
# Index: pgqueue_job_waiting, pgqueue_dependency_pkey for the edges of each, pgqueue_job_pkey for each edge
# Cost:  at most `limit` waiting jobs, the oldest first, and `edges` edges of them all
#
# No index has the acknowledged jobs that others wait for, so the search begins at those that wait. A job that waits for
# ever is among the oldest ones.
ACKNOWLEDGED_DEPENDENCIES: Final = """/* pgqueue:acknowledged_dependencies */
SELECT dead.task_name, count(DISTINCT dead.id), min(dead.id), count(DISTINCT edge.job_id),
       bool_or(edge.is_cut OR edge.is_last)
FROM (
    SELECT job_id, needs_id, is_last, count(*) OVER () >= %(edges)s AS is_cut
    FROM (
        SELECT waiting.id AS job_id, needed.needs_id, waiting.is_last
        FROM (
            SELECT id, count(*) OVER () >= %(limit)s AS is_last
            FROM (SELECT id FROM pgqueue_job WHERE state = 'waiting' ORDER BY id LIMIT %(limit)s) AS oldest
        ) AS waiting
        CROSS JOIN LATERAL (
            SELECT needs_id
            FROM pgqueue_dependency
            WHERE job_id = waiting.id AND policy = 'block'
            ORDER BY needs_id
            LIMIT %(edges)s
        ) AS needed
        LIMIT %(edges)s
    ) AS first
) AS edge
CROSS JOIN LATERAL (
    SELECT id, task_name, state, acknowledged_at FROM pgqueue_job WHERE id = edge.needs_id LIMIT 1
) AS dead
WHERE dead.state = 'dead' AND dead.acknowledged_at IS NOT NULL
GROUP BY dead.task_name
ORDER BY 4 DESC, 1
LIMIT %(tasks)s
"""

# Sum the histograms of the run times of some tasks within the last seconds, one row for each bucket.
#
# Index: pgqueue_rollup_starts
# Cost:  the rollup rows of the period, and 0.15 µs for each bucket of these tasks
RUN_TIMES: Final = """/* pgqueue:run_times */
SELECT task_name, bucket, sum(count)::bigint
FROM (
    SELECT task_name, unnest(run_buckets) AS bucket, unnest(run_counts) AS count
    FROM pgqueue_rollup
    WHERE span = ANY ('{part,minute,hour}')
      AND starts_at >= statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds)s::float8)
      AND task_name = ANY (%(task_names)s::varchar[])
) AS run""" + VALID + """
GROUP BY task_name, bucket
"""  # fmt: skip # noqa: S608 -- all parts are literals of this package

# Count the started jobs that have run for longer than the limit of their task: how many, for how long at most, and the
# first of them.
#
# Index: pgqueue_job_running, and the primary key of the executions for each entry
# Cost:  at most `limit` running jobs
LONG_RUNNING: Final = """/* pgqueue:long_running */
SELECT running.task_name, count(*), max(running.seconds), (array_agg(running.id ORDER BY running.seconds DESC))[1]
FROM (
    SELECT job.id, job.task_name,
           date_part('epoch', statement_timestamp() + %(time_shift)s::interval - opened.started_at) AS seconds
    FROM (
        SELECT id, task_name, execution_id
        FROM pgqueue_job
        WHERE state = 'running' AND worker_id IS NOT NULL
        ORDER BY worker_id, execution_id
        LIMIT %(limit)s
    ) AS job
    CROSS JOIN LATERAL (
        SELECT started_at FROM pgqueue_execution WHERE id = job.execution_id AND outcome IS NULL LIMIT 1
    ) AS opened
) AS running
JOIN unnest(%(task_names)s::varchar[], %(limits_seconds)s::float8[]) AS given (task_name, limit_seconds)
    ON given.task_name = running.task_name
WHERE running.seconds > given.limit_seconds
GROUP BY running.task_name
ORDER BY 2 DESC, 1
"""

# Whether the role of this process may read schedules. The role of a worker that fires none may not.
MAY_READ_SCHEDULES: Final = """/* pgqueue:may_read_schedules */
SELECT has_table_privilege('pgqueue_schedule', 'SELECT') AND has_table_privilege('pgqueue_schedulerun', 'SELECT')
"""
