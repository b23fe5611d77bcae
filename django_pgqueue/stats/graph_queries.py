"""Statements that read what jobs of workflows wait for. They change nothing."""

from typing import Final

# The first jobs that a waiting job of a workflow waits for.
#
# Caller: stats.why()
# Index:  primary keys
OPEN_DEPENDENCIES: Final = """/* pgqueue:open_dependencies */
SELECT needed.id, needed.task_name, needed.state
FROM (
    SELECT needs_id, policy FROM pgqueue_dependency WHERE job_id = %(job_id)s ORDER BY job_id, needs_id
) AS edge
CROSS JOIN LATERAL (
    SELECT id, task_name, state
    FROM pgqueue_job
    WHERE id = edge.needs_id
      AND (state IN ('waiting', 'ready', 'running') OR edge.policy = 'block' AND state IN ('dead', 'cancelled'))
    OFFSET 0
) AS needed
LIMIT %(limit)s
"""

# Count the first waiting jobs by queue and task.
#
# Index: pgqueue_job_waiting, and the row of each entry
FIRST_WAITING: Final = """/* pgqueue:first_waiting */
WITH first AS MATERIALIZED (
    SELECT queue_name, task_name FROM pgqueue_job WHERE state = 'waiting' ORDER BY id LIMIT %(limit)s + 1
)
SELECT queue_name, task_name, count(*) FROM first GROUP BY queue_name, task_name
"""
