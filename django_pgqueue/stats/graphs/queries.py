"""The statements about the graphs of workflows. All of them only read, and each reads a limited number of rows."""

from typing import Final

# Return the nodes of a workflow: the first jobs of its batch that are nodes, and the number of jobs that were read.
#
# Index: pgqueue_job_batch, and the row of each entry
# Cost:  at most `limit` jobs
NODES_OF_WORKFLOW: Final = """/* pgqueue:nodes_of_workflow */
SELECT id, task_name, state, in_graph IS NOT NULL
FROM pgqueue_job
WHERE batch_id = %(batch_id)s::bigint AND state >= ''
ORDER BY batch_id, state
LIMIT %(limit)s
"""

# Return the edges of these nodes.
#
# Index: pgqueue_dependency_pkey, one range for each node
# Cost:  at most `limit` edges
EDGES_OF_NODES: Final = """/* pgqueue:edges_of_nodes */
SELECT given.id, edge.needs_id, edge.policy
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT needs_id, policy
    FROM pgqueue_dependency
    WHERE job_id = given.id
    ORDER BY needs_id
    LIMIT %(limit)s
) AS edge
LIMIT %(limit)s
"""

# Return the first dependencies of a job, with their states. A job that was removed by SQL has none.
#
# Index: pgqueue_dependency_pkey, and pgqueue_job_pkey for each edge
DEPENDENCIES_OF_JOB: Final = """/* pgqueue:dependencies_of_job */
SELECT edge.needs_id, job.task_name, job.state, edge.policy
FROM (
    SELECT needs_id, policy FROM pgqueue_dependency WHERE job_id = %(job_id)s::bigint ORDER BY needs_id LIMIT %(limit)s
) AS edge
LEFT JOIN LATERAL (SELECT task_name, state FROM pgqueue_job WHERE id = edge.needs_id LIMIT 1) AS job ON true
ORDER BY edge.needs_id
"""

# Return the first dependents of a job, with their states.
#
# Index: pgqueue_dependency_needs, and pgqueue_dependency_pkey and pgqueue_job_pkey for each edge
DEPENDENTS_OF_JOB: Final = """/* pgqueue:dependents_of_job */
SELECT edge.job_id, job.task_name, job.state, edge.policy
FROM (
    SELECT job_id, policy FROM pgqueue_dependency WHERE needs_id = %(job_id)s::bigint ORDER BY job_id LIMIT %(limit)s
) AS edge
LEFT JOIN LATERAL (SELECT task_name, state FROM pgqueue_job WHERE id = edge.job_id LIMIT 1) AS job ON true
ORDER BY edge.job_id
"""

# Count the latest dependencies of a job by their states and policies, with the first of each.
#
# Index: pgqueue_dependency_pkey, and pgqueue_job_pkey for each edge
# Cost:  at most `limit` edges
WAITS_OF_JOB: Final = """/* pgqueue:waits_of_job */
SELECT needed.state, needed.policy, count(*), coalesce(bool_or(needed.has_cancelled), false),
       (array_agg(needed.id ORDER BY needed.id))[1:3], (array_agg(needed.task_name ORDER BY needed.id))[1:3]
FROM (
    SELECT edge.needs_id AS id, edge.policy, edge.has_cancelled, coalesce(job.state, 'gone') AS state,
           coalesce(job.task_name, '') AS task_name
    FROM (
        SELECT needs_id, policy, has_cancelled
        FROM pgqueue_dependency
        WHERE job_id = %(job_id)s::bigint
        ORDER BY needs_id DESC
        LIMIT %(limit)s
    ) AS edge
    LEFT JOIN LATERAL (SELECT task_name, state FROM pgqueue_job WHERE id = edge.needs_id LIMIT 1) AS job ON true
) AS needed
GROUP BY needed.state, needed.policy
"""

# Count the failed jobs by which the cancellation of a job began, or that block it, by their states, with the first of
# each: those that are dead or were removed, and those that no dependency has cancelled.
#
# Index: pgqueue_dependency_pkey, and pgqueue_job_pkey for each edge
# Cost:  at most `limit` jobs on the way, and the latest `edges` edges of each
ROOTS_OF_JOB: Final = """/* pgqueue:roots_of_job */
WITH RECURSIVE failed AS (
    SELECT edge.needs_id AS id
    FROM (
        SELECT needs_id, policy, has_cancelled
        FROM pgqueue_dependency
        WHERE job_id = %(job_id)s::bigint
        ORDER BY needs_id DESC
        LIMIT %(edges)s
    ) AS edge
    WHERE has_cancelled OR policy = 'block'
    UNION
    SELECT edge.needs_id
    FROM failed
    CROSS JOIN LATERAL (
        SELECT needs_id, has_cancelled
        FROM pgqueue_dependency
        WHERE job_id = failed.id
        ORDER BY needs_id DESC
        LIMIT %(edges)s
    ) AS edge
    WHERE edge.has_cancelled
)
SELECT state, 'cancel' AS policy, count(*), true, (array_agg(id ORDER BY id))[1:3],
       (array_agg(task_name ORDER BY id))[1:3]
FROM (
    SELECT first.id, coalesce(job.state, 'gone') AS state, coalesce(job.task_name, '') AS task_name
    FROM (SELECT id FROM failed LIMIT %(limit)s) AS first
    LEFT JOIN LATERAL (SELECT task_name, state FROM pgqueue_job WHERE id = first.id LIMIT 1) AS job ON true
    CROSS JOIN LATERAL (
        SELECT coalesce(bool_or(has_cancelled), false) AS has_cancelled
        FROM (
            SELECT has_cancelled FROM pgqueue_dependency WHERE job_id = first.id ORDER BY needs_id DESC LIMIT %(edges)s
        ) AS edge
    ) AS above
    WHERE coalesce(job.state, 'gone') IN ('dead', 'gone') OR job.state = 'cancelled' AND NOT above.has_cancelled
) AS root
GROUP BY state
"""

# Count the first waiting jobs by queue and task.
#
# Index: pgqueue_job_waiting, and the row of each entry
FIRST_WAITING: Final = """/* pgqueue:first_waiting */
WITH first AS MATERIALIZED (
    SELECT queue_name, task_name FROM pgqueue_job WHERE state = 'waiting' ORDER BY id LIMIT %(limit)s
)
SELECT queue_name, task_name, count(*) FROM first GROUP BY queue_name, task_name
"""
