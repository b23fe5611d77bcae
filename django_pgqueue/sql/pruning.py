"""Statements that remove finished jobs past their retention.

They leave what unfinished work needs, by the conditions of `sql.needs`.
"""

from typing import Final

# Remove a batch of finished jobs of one state that are past its retention, with their executions.
#
# Moves:  finished → removed
# Caller: lifecycle.prune()
# Locks:  SKIP LOCKED. A job with a locked execution is left for a later batch, so that deleting never waits for a lock
# Index:  pgqueue_job_finished, starting at the mark where the last batch ended
# Cost:   5.4 ms for 1,000 jobs of 1,000,000 finished ones; 5 to 8 µs per job for batches of 500 to 5,000. Looking up
#         the locked executions job by job instead of all at once took 6.9 ms. Deleting by ctid took 6.1 ms
PRUNE: Final = """/* pgqueue:prune */
WITH old AS MATERIALIZED (
    SELECT id, finished_at
    FROM pgqueue_job AS job
    WHERE state = %(state)s
      AND finished_at IS NOT NULL
      AND finished_at >= %(mark)s::timestamptz
      AND finished_at < statement_timestamp() + %(time_shift)s::interval
          - make_interval(secs => %(retention_seconds)s::float8)
      AND task_name <> ALL (%(other_task_names)s::varchar[])
      AND (
          job.in_graph IS NULL
          OR (
              SELECT true
              FROM pgqueue_job AS other
              WHERE other.batch_id = job.batch_id
                AND other.state = ANY (
                    CASE job.state
                        WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                        WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                        ELSE '{waiting,ready,running}'::varchar[]
                    END
                )
              LIMIT 1
          ) IS NULL
      )
      AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
      AND (
          job.state = 'succeeded'
          OR (
              SELECT true
              FROM pgqueue_step AS undone
              WHERE undone.compensation_id = job.id
                AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
              LIMIT 1
          ) IS NULL
      )
    ORDER BY finished_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) ORDER BY id FOR UPDATE SKIP LOCKED
),
busy AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM locked)
    UNION ALL
    SELECT job_id FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND compensation IS NOT NULL
),
free AS MATERIALIZED (
    SELECT id FROM old WHERE id NOT IN (SELECT job_id FROM busy)
),
unkeyed AS (
    DELETE FROM pgqueue_search_key WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unstepped AS (
    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unlinked AS (
    DELETE FROM pgqueue_dependency WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING batch_id, state
),
counted AS (
    INSERT INTO pgqueue_batch_removal (batch_id, state, count)
    SELECT batch_id, state, count(*)
    FROM gone
    WHERE batch_id IS NOT NULL
    GROUP BY batch_id, state
)
SELECT count(*), (SELECT count(*) FROM free), max(finished_at) FROM old
"""

# Remove a batch of finished jobs of one task that has its own retention, with their executions.
#
# Moves:  finished → removed
# Caller: lifecycle.prune(), for one task
# Locks:  as PRUNE
# Index:  pgqueue_job_task
PRUNE_TASK: Final = """/* pgqueue:prune_task */
WITH old AS MATERIALIZED (
    SELECT id, finished_at
    FROM pgqueue_job AS job
    WHERE task_name = %(task_name)s
      AND state = %(state)s
      AND finished_at IS NOT NULL
      AND finished_at >= %(mark)s::timestamptz
      AND finished_at < statement_timestamp() + %(time_shift)s::interval
          - make_interval(secs => %(retention_seconds)s::float8)
      AND (
          job.in_graph IS NULL
          OR (
              SELECT true
              FROM pgqueue_job AS other
              WHERE other.batch_id = job.batch_id
                AND other.state = ANY (
                    CASE job.state
                        WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                        WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                        ELSE '{waiting,ready,running}'::varchar[]
                    END
                )
              LIMIT 1
          ) IS NULL
      )
      AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
      AND (
          job.state = 'succeeded'
          OR (
              SELECT true
              FROM pgqueue_step AS undone
              WHERE undone.compensation_id = job.id
                AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
              LIMIT 1
          ) IS NULL
      )
    ORDER BY finished_at
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) ORDER BY id FOR UPDATE SKIP LOCKED
),
busy AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM locked)
    UNION ALL
    SELECT job_id FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND compensation IS NOT NULL
),
free AS MATERIALIZED (
    SELECT id FROM old WHERE id NOT IN (SELECT job_id FROM busy)
),
unkeyed AS (
    DELETE FROM pgqueue_search_key WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unstepped AS (
    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unlinked AS (
    DELETE FROM pgqueue_dependency WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING batch_id, state
),
counted AS (
    INSERT INTO pgqueue_batch_removal (batch_id, state, count)
    SELECT batch_id, state, count(*)
    FROM gone
    WHERE batch_id IS NOT NULL
    GROUP BY batch_id, state
)
SELECT count(*), (SELECT count(*) FROM free), max(finished_at) FROM old
"""

# Return the jobs that PRUNE would remove. The pruner uses this if PRUNE failed because of one row: PRUNE_JOBS then
# removes the jobs in parts.
#
# Caller: lifecycle.prune()
# Index:  pgqueue_job_finished
OLD_JOBS: Final = """/* pgqueue:old_jobs */
SELECT id, finished_at
FROM pgqueue_job AS job
WHERE state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at >= %(mark)s::timestamptz
  AND finished_at < statement_timestamp() + %(time_shift)s::interval
      - make_interval(secs => %(retention_seconds)s::float8)
  AND task_name <> ALL (%(other_task_names)s::varchar[])
  AND (
      job.in_graph IS NULL
      OR (
          SELECT true
          FROM pgqueue_job AS other
          WHERE other.batch_id = job.batch_id
            AND other.state = ANY (
                CASE job.state
                    WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                    WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                    ELSE '{waiting,ready,running}'::varchar[]
                END
            )
          LIMIT 1
      ) IS NULL
  )
  AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
  AND (
      job.state = 'succeeded'
      OR (
          SELECT true
          FROM pgqueue_step AS undone
          WHERE undone.compensation_id = job.id
            AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
          LIMIT 1
      ) IS NULL
  )
ORDER BY finished_at
LIMIT %(limit)s
"""

# Return the jobs that PRUNE_TASK would remove. The pruner uses this if PRUNE_TASK failed because of one row.
#
# Caller: lifecycle.prune(), for one task
# Index:  pgqueue_job_task
OLD_JOBS_OF_TASK: Final = """/* pgqueue:old_jobs_of_task */
SELECT id, finished_at
FROM pgqueue_job AS job
WHERE task_name = %(task_name)s
  AND state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at >= %(mark)s::timestamptz
  AND finished_at < statement_timestamp() + %(time_shift)s::interval
      - make_interval(secs => %(retention_seconds)s::float8)
  AND (
      job.in_graph IS NULL
      OR (
          SELECT true
          FROM pgqueue_job AS other
          WHERE other.batch_id = job.batch_id
            AND other.state = ANY (
                CASE job.state
                    WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                    WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                    ELSE '{waiting,ready,running}'::varchar[]
                END
            )
          LIMIT 1
      ) IS NULL
  )
  AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
  AND (
      job.state = 'succeeded'
      OR (
          SELECT true
          FROM pgqueue_step AS undone
          WHERE undone.compensation_id = job.id
            AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
          LIMIT 1
      ) IS NULL
  )
ORDER BY finished_at
LIMIT %(limit)s
"""

# Remove these jobs, with their executions, if they are still finished and past their retention.
#
# Moves:  finished → removed
# Caller: lifecycle.prune(), after PRUNE or PRUNE_TASK failed because of one row
# Locks:  as PRUNE
# Index:  primary keys
PRUNE_JOBS: Final = """/* pgqueue:prune_jobs */
WITH old AS MATERIALIZED (
    SELECT id
    FROM pgqueue_job AS job
    WHERE id = ANY (%(job_ids)s::bigint[])
      AND state = %(state)s
      AND finished_at < statement_timestamp() + %(time_shift)s::interval
          - make_interval(secs => %(retention_seconds)s::float8)
      AND (
          job.in_graph IS NULL
          OR (
              SELECT true
              FROM pgqueue_job AS other
              WHERE other.batch_id = job.batch_id
                AND other.state = ANY (
                    CASE job.state
                        WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                        WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                        ELSE '{waiting,ready,running}'::varchar[]
                    END
                )
              LIMIT 1
          ) IS NULL
      )
      AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
      AND (
          job.state = 'succeeded'
          OR (
              SELECT true
              FROM pgqueue_step AS undone
              WHERE undone.compensation_id = job.id
                AND (SELECT true FROM pgqueue_step WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
              LIMIT 1
          ) IS NULL
      )
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
locked AS MATERIALIZED (
    SELECT id FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM old)) ORDER BY id FOR UPDATE SKIP LOCKED
),
busy AS MATERIALIZED (
    SELECT job_id
    FROM pgqueue_execution
    WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND id NOT IN (SELECT id FROM locked)
    UNION ALL
    SELECT job_id FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM old)) AND compensation IS NOT NULL
),
free AS MATERIALIZED (
    SELECT id FROM old WHERE id NOT IN (SELECT job_id FROM busy)
),
unkeyed AS (
    DELETE FROM pgqueue_search_key WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unstepped AS (
    DELETE FROM pgqueue_step WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
unlinked AS (
    DELETE FROM pgqueue_dependency WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (ARRAY (SELECT id FROM free))
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (ARRAY (SELECT id FROM free)) RETURNING batch_id, state
),
counted AS (
    INSERT INTO pgqueue_batch_removal (batch_id, state, count)
    SELECT batch_id, state, count(*)
    FROM gone
    WHERE batch_id IS NOT NULL
    GROUP BY batch_id, state
)
SELECT id FROM free
"""

# Count the jobs of one state that repeated calls of PRUNE would remove, and all that are past the retention. The
# others stay, because unfinished work needs them.
#
# Caller: lifecycle.prunable(), for `pgqueue prune`
PRUNABLE: Final = """/* pgqueue:prunable */
SELECT
    count(*) FILTER (
        WHERE true
          AND (
              job.in_graph IS NULL
              OR (
                  SELECT true
                  FROM pgqueue_job AS other
                  WHERE other.batch_id = job.batch_id
                    AND other.state = ANY (
                        CASE job.state
                            WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                            WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                            ELSE '{waiting,ready,running}'::varchar[]
                        END
                    )
                  LIMIT 1
              ) IS NULL
          )
          AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
          AND (
              job.state = 'succeeded'
              OR (
                  SELECT true
                  FROM pgqueue_step AS undone
                  WHERE undone.compensation_id = job.id
                    AND (SELECT true FROM pgqueue_step
                         WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
                  LIMIT 1
              ) IS NULL
          )
          AND (SELECT true FROM pgqueue_step WHERE job_id = job.id AND compensation IS NOT NULL LIMIT 1) IS NULL
    ),
    count(*)
FROM pgqueue_job AS job
WHERE state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at < statement_timestamp() + %(time_shift)s::interval
      - make_interval(secs => %(retention_seconds)s::float8)
  AND task_name <> ALL (%(other_task_names)s::varchar[])
"""

# Count the jobs of one task and one state that repeated calls of PRUNE_TASK would remove, and all that are past the
# task's retention.
#
# Caller: lifecycle.prunable(), for `pgqueue prune`
PRUNABLE_TASK: Final = """/* pgqueue:prunable_task */
SELECT
    count(*) FILTER (
        WHERE true
          AND (
              job.in_graph IS NULL
              OR (
                  SELECT true
                  FROM pgqueue_job AS other
                  WHERE other.batch_id = job.batch_id
                    AND other.state = ANY (
                        CASE job.state
                            WHEN 'succeeded' THEN '{waiting,ready,running,dead,cancelled}'::varchar[]
                            WHEN 'cancelled' THEN '{waiting,ready,running,dead}'::varchar[]
                            ELSE '{waiting,ready,running}'::varchar[]
                        END
                    )
                  LIMIT 1
              ) IS NULL
          )
          AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
          AND (
              job.state = 'succeeded'
              OR (
                  SELECT true
                  FROM pgqueue_step AS undone
                  WHERE undone.compensation_id = job.id
                    AND (SELECT true FROM pgqueue_step
                         WHERE job_id = undone.job_id AND compensation IS NOT NULL LIMIT 1)
                  LIMIT 1
              ) IS NULL
          )
          AND (SELECT true FROM pgqueue_step WHERE job_id = job.id AND compensation IS NOT NULL LIMIT 1) IS NULL
    ),
    count(*)
FROM pgqueue_job AS job
WHERE task_name = %(task_name)s
  AND state = %(state)s
  AND finished_at IS NOT NULL
  AND finished_at < statement_timestamp() + %(time_shift)s::interval
      - make_interval(secs => %(retention_seconds)s::float8)
"""
