"""Statements that choose finished jobs and remove them.

A removal is a choice of ids and REMOVE. The choice reads a page without locks, and LOCK_FINISHED decides which of its
jobs may go.
"""

from typing import Final

from .clauses import BUSY, COUNTED_REMOVALS, LOCKED_TO_DELETE, NEEDED_BY_SAGA, UNNEEDED

# The page behind a position, the oldest jobs first.
OLDEST: Final = """      AND finished_at IS NOT NULL
      AND finished_at >= %(after_at)s::timestamptz
      AND (finished_at, id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)
      AND finished_at < least(
          %(before_at)s::timestamptz,
          statement_timestamp() + %(time_shift)s::interval - make_interval(secs => %(older_than_seconds)s::float8)
      )
    ORDER BY finished_at
    FETCH FIRST (%(limit)s::bigint) ROWS WITH TIES
) AS oldest
ORDER BY finished_at, id
LIMIT %(limit)s::bigint"""

# A page of finished jobs of one state, the oldest first, and whether each is wanted. Jobs that are not wanted count
# towards the limit, so the cost of a page does not depend on how rare the wanted ones are. The inner query reads in the
# order of the index and stops after the last instant of the page; only its rows are sorted by id, on any statistics.
#
# Caller: lifecycle.finished_page(), for prune, archive and erase
# Index:  pgqueue_job_finished
FINISHED_JOBS: Final = """/* pgqueue:finished_jobs */
SELECT
    id,
    finished_at,
    (cardinality(%(task_names)s::varchar[]) = 0 OR task_name = ANY (%(task_names)s::varchar[]))
        AND task_name <> ALL (%(other_task_names)s::varchar[])
        AND (cardinality(%(queue_names)s::varchar[]) = 0 OR queue_name = ANY (%(queue_names)s::varchar[]))
FROM (
    SELECT id, finished_at, task_name, queue_name
    FROM pgqueue_job
    WHERE state = %(state)s
""" + OLDEST + """
"""  # fmt: skip

# A page of finished jobs of one task, which can have a retention of its own. Jobs in other states are not wanted.
#
# Caller: lifecycle.finished_page(), for one task
# Index:  pgqueue_job_task
FINISHED_JOBS_OF_TASK: Final = """/* pgqueue:finished_jobs_of_task */
SELECT id, finished_at, state = %(state)s
FROM (
    SELECT id, finished_at, state
    FROM pgqueue_job
    WHERE task_name = %(task_name)s
""" + OLDEST + """
"""  # fmt: skip

# Lock those of these jobs until the end of the transaction that are finished and that no unfinished work needs (NEEDS).
# Return them, and when each finished. A condition on the state, or on `finished_at` alone, would let the planner read
# the whole history by pgqueue_job_finished.
#
# Caller: lifecycle.pruning.lock_finished(), before REMOVE. It leaves out the jobs that have finished again since
# Locks:  SKIP LOCKED. A job with a locked execution is left alone, so that deleting never waits for a lock
# Index:  primary keys, pgqueue_execution_job
# Cost:   Looking up the locked executions job by job instead of all at once took a quarter longer
LOCK_FINISHED: Final = """/* pgqueue:lock_finished */
WITH old AS MATERIALIZED (
    SELECT id, finished_at
    FROM pgqueue_job AS job
    WHERE id = ANY (%(job_ids)s::bigint[])
      AND (finished_at IS NULL) IS NOT true
      AND (
""" + UNNEEDED + """
      )
      AND (job.state <> 'dead' OR job.limit_order IS DISTINCT FROM 2)
      AND (
          job.state = 'succeeded'
          OR (
""" + NEEDED_BY_SAGA + """
          ) IS NULL
      )
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
""" + LOCKED_TO_DELETE + BUSY + """
SELECT id, finished_at FROM old WHERE id NOT IN (SELECT job_id FROM busy)
"""  # fmt: skip

# Remove these jobs with their executions, steps, search keys and dependencies, and count them for their batches. With
# the two flags, remove the kept log lines and the rows of the audit too. Their uniqueness windows stay.
#
# Moves:  finished → removed
# Caller: lifecycle.pruning.remove()
# Fence:  the locks of LOCK_FINISHED
# Index:  primary keys, pgqueue_execution_job, pgqueue_audit_job_once
REMOVE: Final = """/* pgqueue:remove */
WITH unlogged AS (
    DELETE FROM pgqueue_execution_log
    WHERE %(removes_logs)s::boolean
      AND execution_id = ANY (ARRAY (SELECT id FROM pgqueue_execution WHERE job_id = ANY (%(job_ids)s::bigint[])))
),
unaudited AS (
    DELETE FROM pgqueue_audit_job WHERE %(removes_acts)s::boolean AND job_id = ANY (%(job_ids)s::bigint[])
),
unkeyed AS (
    DELETE FROM pgqueue_search_key WHERE job_id = ANY (%(job_ids)s::bigint[])
),
unstepped AS (
    DELETE FROM pgqueue_step WHERE job_id = ANY (%(job_ids)s::bigint[])
),
unlinked AS (
    DELETE FROM pgqueue_dependency WHERE job_id = ANY (%(job_ids)s::bigint[])
),
forgotten AS (
    DELETE FROM pgqueue_execution WHERE job_id = ANY (%(job_ids)s::bigint[])
),
gone AS (
    DELETE FROM pgqueue_job WHERE id = ANY (%(job_ids)s::bigint[]) RETURNING batch_id, state
),
""" + COUNTED_REMOVALS + """
SELECT count(*) FROM gone
"""  # fmt: skip
