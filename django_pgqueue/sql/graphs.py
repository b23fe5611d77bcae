"""Statements on workflows: add nodes and edges, advance waiting jobs, restore them after a retry, read results."""

from typing import Final

from .clauses import LEFT_OVER, OPTIONS_OF_EACH, VALUES_OF_EACH

# Draw ids for the nodes of a workflow, so that edges and arguments can name them before they are stored.
#
# Caller: lifecycle.graphs.draw_ids(), in the caller's transaction
DRAW_JOB_IDS: Final = """/* pgqueue:draw_job_ids */
SELECT nextval('pgqueue_job_id_seq') FROM generate_series(1, %(count)s::bigint)
"""

# Add nodes of a workflow, each with an id, a task and options of its own.
#
# Moves:  new → ready, waiting
# Caller: lifecycle.graphs.add_nodes(), page by page
#
# The calls come as in `enqueueing.ENQUEUE_EACH`.
ADD_NODES: Final = """/* pgqueue:add_nodes */
INSERT INTO pgqueue_job
    (id, state, in_graph, task_name, queue_name, priority, arguments, max_attempts, enqueued_at, run_after, headers,
     expires_at, limit_key, limit_weight, limit_order, batch_id)
SELECT
    given.id, CASE WHEN given.waits THEN 'waiting' ELSE 'ready' END, true,
    """ + VALUES_OF_EACH + """
    given.limit_key, given.limit_weight, given.limit_order, chosen.batch_id
FROM ROWS FROM (
    unnest(%(job_ids)s::bigint[], %(waits)s::boolean[], %(numbers)s::integer[]),
    json_array_elements(%(arguments)s::json),
    json_to_recordset(%(limits)s::json) AS (limit_key varchar, limit_weight integer, limit_order smallint)
) WITH ORDINALITY AS given (id, waits, number, arguments, limit_key, limit_weight, limit_order, place)
""" + OPTIONS_OF_EACH + """
"""  # fmt: skip

# Add edges of a workflow.
#
# Caller: lifecycle.graphs.add_dependencies(), page by page
ADD_DEPENDENCIES: Final = """/* pgqueue:add_dependencies */
INSERT INTO pgqueue_dependency (job_id, needs_id, policy)
SELECT given.job_id, given.needs_id, given.policy
FROM unnest(%(job_ids)s::bigint[], %(needs_ids)s::bigint[], %(policies)s::varchar[])
    AS given (job_id, needs_id, policy)
"""

# A part of a recursive query: it adds the dependents of the failing jobs to `failing`.
DEPENDENTS: Final = """    UNION
    SELECT edge.job_id
    FROM failing
    CROSS JOIN LATERAL (
        SELECT job_id
        FROM pgqueue_dependency
        WHERE needs_id BETWEEN failing.id AND failing.id AND policy = 'cancel'
        ORDER BY needs_id, job_id
    ) AS edge"""

# Whether a dependency in this state is unfinished or blocks the job, to the end of the CASE.
WAITS: Final = """                WHEN 'waiting' THEN true
                WHEN 'ready' THEN true
                WHEN 'running' THEN true
                WHEN 'dead' THEN policy = 'block'
                WHEN 'cancelled' THEN policy = 'block'
                ELSE false
            END"""

# Whether a dependency in this state makes the job fail, to the end of the CASE. A dependency without a row is `gone`.
# FIND_DEPENDENTS repeats it with the name of a table before each `policy`.
FAILS: Final = """              WHEN 'dead' THEN policy = 'cancel'
              WHEN 'cancelled' THEN policy = 'cancel'
              WHEN 'gone' THEN policy <> 'ignore'
              ELSE false
          END"""

# No dependency of the job is unfinished or blocks it. The latest dependency is read first.
UNENDED: Final = """            AND CASE (SELECT state FROM pgqueue_job WHERE id = edge.needs_id)
""" + WAITS + """
          ORDER BY job_id DESC, needs_id DESC
          LIMIT 1
      ) IS NULL"""  # fmt: skip

# Return which dependents of these ended jobs can be advanced: one page of their edges, the last edge of the page, and
# the dependents.
#
# Caller: lifecycle.graphs.find_dependents(), after jobs of workflows have ended
# Locks:  none. Its snapshot is younger than the commit of the caller's completion. Of two sessions that complete the
#         last two dependencies of a job, the one that commits last therefore sees both ends
# Index:  pgqueue_dependency_needs; the primary keys of pgqueue_dependency and pgqueue_job
# Cost:   one search for each edge of the page. Of a dependent, the first dependency is read, and then all from the
#         latest down to one that has not ended. So it takes one or two searches to find that a job with thousands of
#         dependencies has to wait, whether they end in the order of their ids or in the reverse order
#
# BETWEEN, with the whole key in ORDER BY, leaves the planner only the index with this order. With `job_id = met.id`, it
# took the other index for the order of needs_id and read all of it, on statistics from an empty table. With `needs_id =
# failing.id`, it read the whole primary key for each job, on statistics of one workflow.
#
# `failing` follows the dependents of failed jobs, those of their dependents, and so on, up to `limit` of them.
FIND_DEPENDENTS: Final = """/* pgqueue:find_dependents */
WITH RECURSIVE page AS MATERIALIZED (
    SELECT edge.needs_id, edge.job_id, edge.policy
    FROM unnest(%(job_ids)s::bigint[], %(after_ids)s::bigint[]) AS given (id, after_id)
    CROSS JOIN LATERAL (
        SELECT needs_id, job_id, policy
        FROM pgqueue_dependency
        WHERE needs_id BETWEEN given.id AND given.id AND job_id > given.after_id
        ORDER BY needs_id, job_id
        LIMIT %(limit)s
    ) AS edge
    LIMIT %(limit)s
),
met AS MATERIALIZED (
    SELECT page.job_id AS id,
           bool_or(CASE coalesce((SELECT state FROM pgqueue_job WHERE id = page.needs_id), 'gone')
               WHEN 'dead' THEN page.policy = 'cancel'
               WHEN 'cancelled' THEN page.policy = 'cancel'
               WHEN 'gone' THEN page.policy <> 'ignore'
               ELSE false
           END) AS fails
    FROM page
    WHERE (SELECT state FROM pgqueue_job WHERE id = page.job_id) = 'waiting'
    GROUP BY page.job_id
),
failing AS (
    SELECT id FROM met WHERE fails
""" + DEPENDENTS + """
    WHERE (SELECT state FROM pgqueue_job WHERE id = edge.job_id) = 'waiting'
),
decided AS MATERIALIZED (
    (SELECT id FROM failing LIMIT %(limit)s)
    UNION
    SELECT id
    FROM met
    WHERE NOT fails
      AND (
          SELECT (SELECT state FROM pgqueue_job WHERE id = edge.needs_id) IN ('waiting', 'ready', 'running')
          FROM pgqueue_dependency AS edge
          WHERE job_id BETWEEN met.id AND met.id
          ORDER BY job_id, needs_id
          LIMIT 1
      ) IS NOT true
      AND (
          SELECT true
          FROM pgqueue_dependency AS edge
          WHERE job_id BETWEEN met.id AND met.id
""" + UNENDED + """
),
last AS (
    SELECT needs_id, job_id FROM page ORDER BY needs_id DESC, job_id DESC LIMIT 1
)
SELECT (SELECT count(*) FROM page), (SELECT needs_id FROM last), (SELECT job_id FROM last),
       ARRAY (SELECT id FROM decided ORDER BY id)
"""  # fmt: skip

# Return which waiting jobs of one page can be advanced: the number of jobs in the page, the last one, and the jobs.
#
# Caller: lifecycle.graphs.find_missed(), page by page. It finds the jobs whose dependencies have ended without a
#         completion, and the jobs that are left if a worker crashes between a completion and ADVANCE
# Locks:  none
# Index:  pgqueue_job_waiting, primary keys
# Cost:   one search for each edge of the page
FIND_MISSED: Final = """/* pgqueue:find_missed */
WITH page AS MATERIALIZED (
    SELECT id FROM pgqueue_job WHERE state = 'waiting' AND id > %(after_id)s::bigint ORDER BY id LIMIT %(limit)s
),
seen AS MATERIALIZED (
    SELECT page.id, edges.fails, edges.waits
    FROM page
    CROSS JOIN LATERAL (
        SELECT bool_or(CASE state
""" + FAILS + """) AS fails,
               bool_or(CASE state
""" + WAITS + """) AS waits
        FROM (
            SELECT policy, coalesce((SELECT state FROM pgqueue_job WHERE id = edge.needs_id), 'gone') AS state
            FROM pgqueue_dependency AS edge
            WHERE job_id BETWEEN page.id AND page.id
            ORDER BY job_id, needs_id
            OFFSET 0
        ) AS needed
    ) AS edges
)
SELECT (SELECT count(*) FROM page), (SELECT max(id) FROM page),
       ARRAY (SELECT id FROM seen WHERE fails IS NOT false OR waits IS NOT true ORDER BY id)
"""  # fmt: skip

# Lock waiting jobs until the end of the transaction. ADVANCE then makes them ready or cancels them.
#
# Caller: lifecycle.graphs.advance(), before ADVANCE in the same transaction
# Locks:  NO KEY UPDATE, SKIP LOCKED, in id order. A skipped job is tried again by the caller or by the sweep
# Index:  pgqueue_job_pkey
#
# This is a statement of its own. An operator's retry of a dead dependency locks the dependents too (LOCK_RESTORABLE).
# ADVANCE has a younger snapshot than this lock, so it sees that retry. With the lock in the same statement, it could
# cancel a job because of a dependency that is ready again, and nobody would restore the job.
LOCK_WAITING: Final = """/* pgqueue:lock_waiting */
SELECT locked.id
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id FROM pgqueue_job WHERE id = given.id AND state = 'waiting' FOR NO KEY UPDATE SKIP LOCKED
) AS locked
"""

# Return the jobs that still wait. LOCK_WAITING has skipped them, so another session has locked them.
#
# Caller: lifecycle.graphs.advance(), if LOCK_WAITING has not returned all jobs
# Index:  pgqueue_job_pkey
STILL_WAITING: Final = """/* pgqueue:still_waiting */
SELECT job.id
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (SELECT id FROM pgqueue_job WHERE id = given.id AND state = 'waiting' OFFSET 0) AS job
"""

# Advance locked waiting jobs: make a job ready if its dependencies have ended, or cancel it if one has failed. Return
# the changed jobs, and whether each is due.
#
# Moves:  waiting → ready, cancelled
# Caller: lifecycle.graphs.advance()
# Fence:  the lock of LOCK_WAITING, which finds jobs only while they wait: each job is advanced once
# Locks:  the jobs, which the transaction has locked already, and the edges of the cancelled ones
# Index:  primary keys, pgqueue_dependency_needs
#
# The rows of the dependencies decide, not a counter. If the row of a dependency is missing, somebody has deleted it by
# SQL. It counts as failed, and `block` acts as `cancel`: otherwise the job would wait without end.
#
# A condition on the state would let the planner choose the index of waiting jobs. If it believes that there are none,
# it would read them all.
#
# IS true makes the planner hash `given`. Otherwise it can compare each dependent with all others: 5 s for 1,000 jobs.
# `failed` hides from it how many rows `failing` can have: it would not hash so many, and compare them too.
ADVANCE: Final = """/* pgqueue:advance */
WITH RECURSIVE given AS MATERIALIZED (
    SELECT id FROM unnest(%(job_ids)s::bigint[]) AS locked (id)
),
failing AS (
    SELECT id
    FROM given
    WHERE (
        SELECT true
        FROM pgqueue_dependency AS needed
        WHERE job_id BETWEEN given.id AND given.id
          AND CASE coalesce((SELECT state FROM pgqueue_job WHERE id = needed.needs_id), 'gone')
""" + FAILS + """
        ORDER BY job_id, needs_id
        LIMIT 1
    )
""" + DEPENDENTS + """
    WHERE (edge.job_id IN (SELECT id FROM given)) IS true
),
failed AS MATERIALIZED (
    SELECT unnest(ARRAY (SELECT id FROM failing)) AS id
),
decided AS MATERIALIZED (
    SELECT id, 'cancelled' AS state FROM failed
    UNION ALL
    SELECT id, 'ready'
    FROM given
    WHERE id NOT IN (SELECT id FROM failed)
      AND (
          SELECT true
          FROM pgqueue_dependency AS edge
          WHERE job_id BETWEEN given.id AND given.id
""" + UNENDED + """
),
marked AS (
    UPDATE pgqueue_dependency AS edge
    SET has_cancelled = true
    WHERE job_id = ANY (ARRAY (SELECT id FROM failed))
      AND (
          CASE coalesce((SELECT state FROM pgqueue_job WHERE id = edge.needs_id), 'gone')
""" + FAILS + """
          OR policy = 'cancel' AND needs_id IN (SELECT id FROM failed)
      )
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = decided.state,
        run_after = CASE
            WHEN decided.state = 'ready'
            THEN greatest(job.run_after, statement_timestamp() + %(time_shift)s::interval)
            ELSE job.run_after
        END,
        finished_at = CASE
            WHEN decided.state = 'cancelled' THEN statement_timestamp() + %(time_shift)s::interval
        END
    FROM decided
    WHERE job.id = decided.id
    RETURNING job.id, job.state, job.task_name, job.queue_name, job.batch_id,
              job.run_after <= statement_timestamp() + %(time_shift)s::interval AS is_due
)
SELECT id, state, task_name, queue_name, batch_id, is_due FROM moved
"""  # fmt: skip

# The retried jobs, and the jobs that were cancelled because of them.
RESTORED: Final = """WITH RECURSIVE restored AS (
    SELECT id FROM unnest(%(job_ids)s::bigint[]) AS retried (id)
    UNION
    SELECT edge.job_id
    FROM restored
    CROSS JOIN LATERAL (
        SELECT job_id
        FROM pgqueue_dependency
        WHERE needs_id BETWEEN restored.id AND restored.id AND has_cancelled
        ORDER BY needs_id, job_id
    ) AS edge
    WHERE (SELECT state FROM pgqueue_job WHERE id = edge.job_id) = 'cancelled'
)"""

# Return the dependents that a retry of these jobs can change: the jobs that wait for them or are ready, the jobs that
# were cancelled because of them, and the dependents of those.
#
# Caller: lifecycle.graphs.restore(), before RESTORE in the same transaction, until all of them are locked
# Index:  pgqueue_dependency_needs, primary key of pgqueue_job
RESTORABLE: Final = """/* pgqueue:restorable */
""" + RESTORED + """
SELECT DISTINCT edge.job_id
FROM restored
CROSS JOIN LATERAL (
    SELECT job_id
    FROM pgqueue_dependency
    WHERE needs_id BETWEEN restored.id AND restored.id
    ORDER BY needs_id, job_id
) AS edge
WHERE (SELECT state FROM pgqueue_job WHERE id = edge.job_id) IN ('waiting', 'ready', 'cancelled')
"""  # fmt: skip

# Lock dependents until the end of the transaction, so that no session advances or claims them meanwhile.
#
# Caller: lifecycle.graphs.restore()
# Locks:  NO KEY UPDATE, SKIP LOCKED. The caller asks again for a skipped job
# Index:  pgqueue_job_pkey
LOCK_RESTORABLE: Final = """/* pgqueue:lock_restorable */
SELECT locked.id
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id
    FROM pgqueue_job
    WHERE id = given.id AND state IN ('waiting', 'ready', 'cancelled')
    FOR NO KEY UPDATE SKIP LOCKED
) AS locked
"""

# Make jobs wait again after a retry: the jobs that were cancelled because of a retried job, the retried jobs whose
# dependencies have not ended, and the ready dependents of all of these. Return the jobs that wait now, and when each
# had ended before.
#
# Moves:  cancelled → waiting; ready → waiting
# Caller: lifecycle.graphs.restore(), in the transaction of RETRY
# Fence:  has_cancelled, which ADVANCE has set: a job that an operator has cancelled stays cancelled
# Locks:  jobs that RETRY and LOCK_RESTORABLE have locked, and edges
# Index:  primary keys, pgqueue_dependency_needs
#
# `found` hides from the planner how many rows `restored` can have, as in ADVANCE.
RESTORE: Final = """/* pgqueue:restore */
""" + RESTORED + """,
found AS MATERIALIZED (
    SELECT unnest(ARRAY (SELECT id FROM restored)) AS id
),
unmarked AS (
    UPDATE pgqueue_dependency SET has_cancelled = NULL
    WHERE job_id = ANY (ARRAY (SELECT id FROM found)) AND has_cancelled
),
early AS (
    SELECT edge.job_id AS id
    FROM found
    CROSS JOIN LATERAL (
        SELECT job_id
        FROM pgqueue_dependency
        WHERE needs_id BETWEEN found.id AND found.id
        ORDER BY needs_id, job_id
    ) AS edge
    WHERE (SELECT state FROM pgqueue_job WHERE id = edge.job_id) = 'ready'
),
ended AS MATERIALIZED (
    SELECT id, finished_at
    FROM pgqueue_job
    WHERE id = ANY (ARRAY (SELECT id FROM found UNION SELECT id FROM early))
),
moved AS (
    UPDATE pgqueue_job AS job
    SET state = 'waiting', finished_at = NULL, cancel_requested_at = NULL,
        expires_at = CASE WHEN state = 'ready' THEN expires_at END
    FROM ended
    WHERE job.id = ended.id
      AND (
          state = 'cancelled'
          OR state = 'ready' AND (
              SELECT true
              FROM pgqueue_dependency AS edge
              WHERE job_id BETWEEN job.id AND job.id
                AND (
                    (SELECT state FROM pgqueue_job WHERE id = edge.needs_id) IN ('waiting', 'ready', 'running')
                    OR needs_id IN (SELECT id FROM found)
                )
              ORDER BY job_id, needs_id
              LIMIT 1
          )
      )
    RETURNING job.id, ended.finished_at
)
SELECT id, finished_at FROM moved
"""  # fmt: skip

# Make ready nodes wait again whose dependencies have not ended, because one of them was retried since. Return them.
#
# Moves:  ready → waiting
# Caller: lifecycle.graphs.postpone(), after an attempt that was released because it has found such a dependency
# Fence:  ready: a node that another worker has claimed since is left to that attempt
# Locks:  SKIP LOCKED
# Index:  primary keys
#
# A dependency can end between this snapshot and its commit. So the caller advances these jobs afterwards.
POSTPONE: Final = """/* pgqueue:postpone */
WITH mine AS MATERIALIZED (
    SELECT locked.id
    FROM unnest(%(job_ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT id FROM pgqueue_job WHERE id = given.id AND state = 'ready' FOR NO KEY UPDATE SKIP LOCKED
    ) AS locked
    WHERE (
        SELECT true
        FROM pgqueue_dependency AS edge
        WHERE job_id BETWEEN given.id AND given.id
          AND (SELECT state FROM pgqueue_job WHERE id = edge.needs_id) IN ('waiting', 'ready', 'running')
        ORDER BY job_id, needs_id
        LIMIT 1
    )
),
moved AS (
    UPDATE pgqueue_job SET state = 'waiting' WHERE id = ANY (ARRAY (SELECT id FROM mine))
)
SELECT id FROM mine
"""

# Return which of these jobs are nodes of workflows.
#
# Caller: lifecycle.operator.retry(), when it retries jobs one by one because the database refuses one of them
# Index:  pgqueue_job_pkey
NODES_OF: Final = """/* pgqueue:nodes_of */
SELECT job.id
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (SELECT id FROM pgqueue_job WHERE id = given.id AND in_graph OFFSET 0) AS job
"""

# Return the states and results of the dependencies of nodes, as far as their ids lie in these ranges. The state is NULL
# if the job no longer exists. With `most_bytes`, leave out the jobs that have a larger result.
#
# Caller: lifecycle.graphs.read_results(), before a node runs that gets results of others
# Index:  pgqueue_dependency_pkey, pgqueue_job_pkey
#
# The ranges come from the arguments of a job, which a program can write by SQL. So the edges decide which results a job
# may read, and how many rows the answer has.
#
# pg_column_size() returns the compressed size without reading the result, so large ones cost nothing.
READ_RESULTS: Final = """/* pgqueue:read_results */
SELECT given.job_id, edge.needs_id, job.state, job.result::text
FROM unnest(%(job_ids)s::bigint[], %(first_ids)s::bigint[], %(last_ids)s::bigint[])
    AS given (job_id, first_id, last_id)
CROSS JOIN LATERAL (
    SELECT needs_id
    FROM pgqueue_dependency
    WHERE job_id BETWEEN given.job_id AND given.job_id AND needs_id BETWEEN given.first_id AND given.last_id
    ORDER BY job_id, needs_id
    OFFSET 0
) AS edge
LEFT JOIN LATERAL (SELECT state, result FROM pgqueue_job WHERE id = edge.needs_id OFFSET 0) AS job ON true
WHERE %(most_bytes)s::integer IS NULL
   OR job.result IS NULL
   OR CASE
       WHEN pg_column_size(job.result) <= %(most_bytes)s::integer
       THEN octet_length(job.result::text) <= %(most_bytes)s::integer
       ELSE false
   END
"""

# Remove the edges of dependents that no longer exist, from one page of the table. Return how many rows the page had,
# how many of them were removed, and the last dependent of the page. The page has all edges of its last dependent.
#
# Caller: lifecycle.orphans.prune_orphans(), page by page. The statements that remove jobs remove their edges too;
#         this one is for jobs that were deleted by SQL
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  primary keys
PRUNE_DEPENDENCIES: Final = """/* pgqueue:prune_dependencies */
WITH page AS MATERIALIZED (
    SELECT job_id, needs_id
    FROM pgqueue_dependency
""" + LEFT_OVER + """
mine AS MATERIALIZED (
    SELECT job_id, needs_id
    FROM pgqueue_dependency
    WHERE job_id = ANY (ARRAY (SELECT job_id FROM left_over))
    ORDER BY job_id, needs_id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_dependency WHERE job_id = ANY (ARRAY (SELECT job_id FROM mine))
)
SELECT count(*), (SELECT count(*) FROM mine), max(job_id) FROM page
"""  # fmt: skip
