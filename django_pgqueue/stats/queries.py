"""The statements of `stats`. All of them only read, and each reads a limited number of rows.

The rules of `sql` apply. On the application's connections the planner may choose any plan. Tables are therefore joined
with LATERAL subqueries that have a LIMIT, which the planner cannot turn into a scan of the whole table.
"""

from typing import Final

# The lanes that have ready jobs, by a loose index scan, and how many jobs of each may be read: a round number, because
# people read it if a lane has more.
LANES: Final = """WITH RECURSIVE lane AS (
    (
        SELECT queue_name, priority, 1 AS place FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NULL
        ORDER BY queue_name, priority DESC, run_after, id
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue_name, next.priority, lane.place + 1
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL
              AND queue_name = lane.queue_name AND priority < lane.priority
            ORDER BY queue_name, priority DESC, run_after, id
            LIMIT 1
        )
        UNION ALL
        (
            SELECT queue_name, priority FROM pgqueue_job
            WHERE state = 'ready' AND limit_key IS NULL AND queue_name > lane.queue_name
            ORDER BY queue_name, priority DESC, run_after, id
            LIMIT 1
        )
        LIMIT 1
    ) AS next
    WHERE lane.place < %(lanes_limit)s
),
bound AS MATERIALIZED (
    SELECT trunc(share.due, 1 - length(share.due::text))::bigint AS due,
           trunc(share.later, 1 - length(share.later::text))::bigint AS later
    FROM (
        SELECT least(%(limit)s, greatest(%(due_total)s / greatest(count(*), 1), 100))::numeric AS due,
               least(%(limit)s, greatest(%(later_total)s / greatest(count(*), 1), 100))::numeric AS later
        FROM lane
    ) AS share
)"""

# The due jobs of a lane.
DUE: Final = """        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NULL
          AND queue_name = lane.queue_name AND priority = lane.priority
          AND run_after <= statement_timestamp() + %(time_shift)s::interval
        ORDER BY run_after
        LIMIT (SELECT due FROM bound)
    ) AS first"""

# The later jobs of a lane.
LATER: Final = """        FROM pgqueue_job
        WHERE state = 'ready' AND limit_key IS NULL
          AND queue_name = lane.queue_name AND priority = lane.priority
          AND run_after > statement_timestamp() + %(time_shift)s::interval
        ORDER BY run_after
        LIMIT (SELECT later FROM bound)
    ) AS first"""

# Count the due jobs and the later jobs of each lane, up to a limit for each lane. Later jobs that workers have released
# because they could not run them are counted apart.
#
# Index: pgqueue_job_ready. A lane is one range of it for due jobs, and one for later jobs
# Cost:  one index search per lane, and at most `due_total` and `later_total` entries in all lanes together. For later
#        jobs each row is read too, because the index does not have the attempt
READY_BY_LANE: Final = """/* pgqueue:ready_by_lane */
""" + LANES + """
SELECT lane.queue_name, lane.priority, NULL,
       due.count, due.count >= bound.due, due.oldest_seconds,
       later.count - later.retrying - later.unknown, later.retrying, later.unknown, later.count >= bound.later
FROM lane
CROSS JOIN bound
CROSS JOIN LATERAL (
    SELECT count(*) AS count,
           date_part('epoch', statement_timestamp() + %(time_shift)s::interval - min(run_after)) AS oldest_seconds
    FROM (
        SELECT run_after
""" + DUE + """
) AS due
CROSS JOIN LATERAL (
    SELECT count(*) AS count, count(*) FILTER (WHERE attempt > 0 AND unknown_since IS NULL) AS retrying,
           count(unknown_since) AS unknown
    FROM (
        SELECT attempt, unknown_since
""" + LATER + """
) AS later
"""  # fmt: skip # noqa: S608 -- all parts are literals of this module

# The same for each task of each lane.
#
# Index: pgqueue_job_ready
# Cost:  as READY_BY_LANE, but each row is read, because the index does not have the task
READY_BY_TASK: Final = """/* pgqueue:ready_by_task */
""" + LANES + """
SELECT lane.queue_name, lane.priority, ready.task_name,
       sum(ready.due), sum(sum(ready.due)) OVER in_lane >= min(bound.due),
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval - min(ready.run_after)),
       sum(ready.scheduled), sum(ready.retrying), sum(ready.unknown),
       sum(sum(ready.scheduled + ready.retrying + ready.unknown)) OVER in_lane >= min(bound.later)
FROM lane
CROSS JOIN bound
CROSS JOIN LATERAL (
    SELECT task_name, count(*) AS due, min(run_after) AS run_after,
           0 AS scheduled, 0 AS retrying, 0 AS unknown
    FROM (
        SELECT task_name, run_after
""" + DUE + """
    GROUP BY task_name
    UNION ALL
    SELECT task_name, 0, NULL, count(*) FILTER (WHERE attempt = 0 AND unknown_since IS NULL),
           count(*) FILTER (WHERE attempt > 0 AND unknown_since IS NULL), count(unknown_since)
    FROM (
        SELECT task_name, attempt, unknown_since
""" + LATER + """
    GROUP BY task_name
) AS ready
GROUP BY lane.queue_name, lane.priority, ready.task_name
WINDOW in_lane AS (PARTITION BY lane.queue_name, lane.priority)
"""  # fmt: skip # noqa: S608 -- all parts are literals of this module

# Count the open executions by queue, task and worker: those that run, those that are prefetched, and those whose lease
# is over; and the slots that they occupy, and for how long.
#
# Index: pgqueue_job_running, and the primary keys of executions and workers for each entry
#
# Workers record the start of a prefetched job with the next heartbeat. So of the executions without a start, the oldest
# run too, as long as their worker has slots for them. `slot` numbers the slots of a worker. The executions of a chunk
# have one claim and one slot, and their jobs have a limit key that begins with "+".
OPEN_EXECUTIONS_BY_TASK: Final = """/* pgqueue:open_executions_by_task */
WITH running AS MATERIALIZED (
    SELECT queue_name, task_name, worker_id, execution_id, coalesce(limit_key LIKE '+%%', false) AS in_chunk
    FROM pgqueue_job
    WHERE state = 'running' AND worker_id IS NOT NULL
    ORDER BY worker_id, execution_id
    LIMIT %(limit)s
),
numbered AS (
    SELECT running.queue_name, running.task_name, running.worker_id,
           coalesce(opened.started_at, opened.claimed_at) AS since,
           greatest(opened.lease_expires_at, worker.lease_expires_at)
               < statement_timestamp() + %(time_shift)s::interval AS is_lost,
           opened.started_at IS NULL AS is_unstarted,
           dense_rank() OVER (
               PARTITION BY running.worker_id
               ORDER BY opened.started_at IS NULL,
                        CASE WHEN in_chunk THEN opened.claimed_at END,
                        CASE WHEN NOT in_chunk THEN running.execution_id END
           ) AS slot,
           coalesce(worker.concurrency, 0) AS slots
    FROM running
    CROSS JOIN LATERAL (
        SELECT started_at, claimed_at, lease_expires_at
        FROM pgqueue_execution
        WHERE id = running.execution_id AND outcome IS NULL
        LIMIT 1
    ) AS opened
    LEFT JOIN LATERAL (
        SELECT lease_expires_at, concurrency FROM pgqueue_worker WHERE id = running.worker_id LIMIT 1
    ) AS worker ON true
),
placed AS (
    SELECT *, is_unstarted AND slot > slots AS is_prefetched FROM numbered
)
SELECT queue_name, task_name, worker_id,
       count(*) FILTER (WHERE NOT is_lost AND NOT is_prefetched), count(*) FILTER (WHERE NOT is_lost AND is_prefetched),
       count(*) FILTER (WHERE is_lost),
       count(DISTINCT slot) FILTER (WHERE NOT is_prefetched),
       coalesce(
           date_part('epoch', statement_timestamp() + %(time_shift)s::interval
               - min(since) FILTER (WHERE NOT is_prefetched)),
           0
       )
FROM placed
GROUP BY queue_name, task_name, worker_id
"""

# Count the newest dead letters by queue and task, and those among them that have died within the last seconds.
#
# Index: pgqueue_job_dead, and the row of each entry
NEWEST_DEAD: Final = """/* pgqueue:newest_dead */
WITH newest AS MATERIALIZED (
    SELECT queue_name, task_name, finished_at
    FROM pgqueue_job
    WHERE state = 'dead' AND finished_at IS NOT NULL AND acknowledged_at IS NULL
    ORDER BY finished_at DESC
    LIMIT %(limit)s
)
SELECT queue_name, task_name, count(*),
       count(*) FILTER (
           WHERE finished_at
               >= statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(seconds)s::float8)
       )
FROM newest
GROUP BY queue_name, task_name
"""

# Count the newest jobs by queue and task, and return the lowest and the highest id of all of them.
#
# Index: the primary key, and the row of each entry
NEWEST_ENQUEUED: Final = """/* pgqueue:newest_enqueued */
WITH newest AS MATERIALIZED (
    SELECT queue_name, task_name, id
    FROM pgqueue_job
    WHERE id >= %(first_id)s
    ORDER BY id DESC
    LIMIT %(limit)s
)
SELECT queue_name, task_name, count(*), min(min(id)) OVER (), max(max(id)) OVER ()
FROM newest
GROUP BY queue_name, task_name
"""

# Return the pauses of queues and tasks that have not ended.
#
# Index: pgqueue_pause_name. The table can have thousands of rows of paused limit keys
OPEN_PAUSES: Final = """/* pgqueue:open_pauses */
SELECT kind, name, paused_at, CASE WHEN isfinite(paused_until) THEN paused_until END, paused_by, reason
FROM pgqueue_pause
WHERE kind IN ('queue', 'task')
  AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)
ORDER BY kind, name
"""

# Return the workers that have not stopped, those with the newest heartbeat first.
#
# Cost: reads the whole table, which has one row for each worker process of the last week
WORKERS: Final = """/* pgqueue:workers */
SELECT id, hostname, pid, version, queue_names, concurrency,
       least(greatest(started_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
       least(greatest(last_heartbeat_at, '0001-01-03 UTC'), '9999-12-28 UTC'),
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval
                          - least(greatest(last_heartbeat_at, '0001-01-03 UTC'), '9999-12-28 UTC')),
       supervisor_pid, resident_mib, release
FROM pgqueue_worker
WHERE stopped_at IS NULL
ORDER BY last_heartbeat_at DESC, id
LIMIT %(limit)s
"""

# Count the due jobs of a lane that a claim takes before a job.
#
# Index: pgqueue_job_ready, and the row of each entry if tasks are paused
AHEAD_IN_LANE: Final = """/* pgqueue:ahead_in_lane */
SELECT count(*)
FROM (
    SELECT 1
    FROM pgqueue_job
    WHERE state = 'ready' AND limit_key IS NULL
      AND queue_name = %(queue_name)s AND priority = %(priority)s
      AND run_after <= statement_timestamp() + %(time_shift)s::interval
      AND (run_after, id) < (%(run_after)s::timestamptz, %(job_id)s)
      AND task_name <> ALL (%(paused_task_names)s::varchar[])
    ORDER BY run_after, id
    LIMIT %(limit)s
) AS ahead
"""

# Return a job with its last execution and the worker of that execution.
#
# Index: pgqueue_job_pkey, pgqueue_execution_job, pgqueue_worker_pkey
JOB_WITH_LAST_EXECUTION: Final = """/* pgqueue:job_with_last_execution */
SELECT job.id AS job_id, job.task_name, job.queue_name, job.priority, job.state, job.attempt, job.max_attempts,
       job.run_after, job.run_after > statement_timestamp() + %(time_shift)s::interval AS is_later,
       job.expires_at,
       coalesce(job.expires_at <= statement_timestamp() + %(time_shift)s::interval, false) AS is_expired,
       job.unknown_since, job.finished_at,
       CASE WHEN job.cancel_requested_at IS NOT NULL THEN
           least(greatest(job.cancel_requested_at, '0001-01-03 UTC'), '9999-12-28 UTC')
       END AS cancel_requested_at,
       last.outcome, last.claimed_at, last.started_at,
       coalesce(
           greatest(last.lease_expires_at, worker.lease_expires_at)
               < statement_timestamp() + %(time_shift)s::interval,
           true
       ) AS is_lost,
       greatest(last.lease_expires_at, worker.lease_expires_at) AS lease_expires_at,
       left(last.exception_class, 200) AS exception_class, left(last.error, 500) AS error,
       last.worker_id, worker.hostname, worker.pid,
       statement_timestamp() + %(time_shift)s::interval AS seen_at,
       job.limit_key, coalesce(job.limit_weight, 1) AS limit_weight, job.limit_order, last.finished_at AS ended_at,
       job.in_graph
FROM pgqueue_job AS job
LEFT JOIN LATERAL (
    SELECT outcome, claimed_at, started_at, finished_at, lease_expires_at, exception_class, error, worker_id
    FROM pgqueue_execution
    WHERE job_id = job.id
    ORDER BY id DESC
    LIMIT 1
) AS last ON true
LEFT JOIN LATERAL (
    SELECT hostname, pid, lease_expires_at FROM pgqueue_worker WHERE id = last.worker_id LIMIT 1
) AS worker ON true
WHERE job.id = %(job_id)s
"""
