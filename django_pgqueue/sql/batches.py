"""Statements that create batches, close them, decide their ends, and count their jobs."""

from typing import Final

from .clauses import UNSETTLED_PAGE

# Create a batch. The callbacks are JSON objects with the columns of the jobs to add, or NULL.
#
# Caller: lifecycle.batches.create_batch(), in the caller's transaction
CREATE_BATCH: Final = """/* pgqueue:create_batch */
INSERT INTO pgqueue_batch (description, parent_id, created_at, on_success, on_complete, on_failure)
VALUES (
    %(description)s, %(parent_id)s::bigint, statement_timestamp() + %(time_shift)s::interval,
    %(on_success)s::json, %(on_complete)s::json, %(on_failure)s::json
)
RETURNING id, created_at
"""

# Lock a batch so that it cannot end before the caller's transaction ends. Return whether it is complete already.
#
# Caller: lifecycle.batches.join_batch(), in the transaction that adds a job or a nested batch
# Locks:  KEY SHARE. Callers do not wait for one another, nor for CLOSE_BATCH. They wait for a transaction that is
#         ending the batch, and then read what it has written. LOCK_BATCHES skips the batch meanwhile
# Index:  the primary key
JOIN_BATCH: Final = """/* pgqueue:join_batch */
SELECT completed_at IS NOT NULL FROM pgqueue_batch WHERE id = %(batch_id)s FOR KEY SHARE
"""

# Close a batch: it completes when its last job has ended.
#
# Caller: lifecycle.batches.close_batch(), in the caller's transaction
# Locks:  waits for a transaction that is ending or closing the batch
# Index:  the primary key
CLOSE_BATCH: Final = """/* pgqueue:close_batch */
UPDATE pgqueue_batch
SET closed_at = statement_timestamp() + %(time_shift)s::interval
WHERE id = %(batch_id)s AND closed_at IS NULL
RETURNING id
"""

# Whether a batch has unfinished and failed jobs. A nested batch counts as a job.
DECISION: Final = """    SELECT
        coalesce(
            (
                SELECT true FROM pgqueue_job
                WHERE batch_id = batch.id AND state IN ('waiting', 'ready', 'running')
                LIMIT 1
            ),
            (
                SELECT true
                FROM (SELECT completed_at FROM pgqueue_batch WHERE parent_id = batch.id OFFSET 0) AS nested
                WHERE completed_at IS NULL
                LIMIT 1
            ),
            false
        ) AS has_unfinished,
        coalesce(
            (SELECT true FROM pgqueue_job WHERE batch_id = batch.id AND state IN ('dead', 'cancelled') LIMIT 1),
            (
                SELECT true
                FROM (
                    SELECT completed_at, succeeded_at FROM pgqueue_batch WHERE parent_id = batch.id OFFSET 0
                ) AS nested
                WHERE completed_at IS NOT NULL AND succeeded_at IS NULL
                LIMIT 1
            ),
            (
                SELECT true FROM pgqueue_batch_removal
                WHERE batch_id = batch.id AND state IN ('dead', 'cancelled')
                LIMIT 1
            ),
            false
        ) AS has_failed
    OFFSET 0"""

# Return the batches that fail, complete or succeed now, because of a job, a removed job or a nested batch.
#
# Caller: lifecycle.batches.batches_to_end(), after jobs of the batches have ended, and from the sweep
# Locks:  none. Its snapshot is younger than the commit of the caller's completion. Of two sessions that complete the
#         last two jobs, the one that commits last therefore sees both ends
# Index:  pgqueue_batch_pkey, pgqueue_job_batch, pgqueue_batch_parent, pgqueue_batch_removal_batch
# Cost:   at most five index searches for each batch
#
# The subqueries are scalar, because the planner could replace EXISTS by a hash of all jobs. OFFSET 0 keeps it from the
# indexes of the batches that have not ended. If it knows of none, it would read them all for each batch.
BATCHES_TO_END: Final = """/* pgqueue:batches_to_end */
SELECT batch.id
FROM unnest(%(batch_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id, closed_at, failed_at, completed_at, succeeded_at FROM pgqueue_batch WHERE id = given.id OFFSET 0
) AS batch
CROSS JOIN LATERAL (
""" + DECISION + """
) AS job
WHERE (batch.failed_at IS NULL AND job.has_failed)
   OR (
       batch.closed_at IS NOT NULL AND batch.succeeded_at IS NULL AND NOT job.has_unfinished
       AND (batch.completed_at IS NULL OR NOT job.has_failed)
   )
"""  # fmt: skip

# Lock batches until the end of the transaction, to decide their ends.
#
# Caller: lifecycle.batches.end_batches(), before END_BATCHES in the same transaction
# Locks:  UPDATE, SKIP LOCKED: it conflicts with JOIN_BATCH. A skipped batch is tried again by the caller or the sweep
# Index:  pgqueue_batch_pkey
#
# This is a statement of its own. END_BATCHES has a younger snapshot and sees the jobs that others have added before
# they released the batch. With the lock in the same statement, it would miss such a job, and end the batch too early.
LOCK_BATCHES: Final = """/* pgqueue:lock_batches */
SELECT locked.id
FROM unnest(%(batch_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id FROM pgqueue_batch WHERE id = given.id FOR UPDATE SKIP LOCKED
) AS locked
"""

# Record how locked batches end, and draw ids for the jobs of their callbacks. Return what the callbacks are.
#
# Caller: lifecycle.batches.end_batches(), which adds these jobs in the same transaction
# Fence:  failed_at, completed_at and succeeded_at are NULL, under the lock of LOCK_BATCHES: each callback is added once
# Locks:  the batches, which the transaction has locked already
# Index:  as BATCHES_TO_END
END_BATCHES: Final = """/* pgqueue:end_batches */
WITH seen AS MATERIALIZED (
    SELECT batch.id, batch.parent_id, batch.on_failure, batch.on_complete, batch.on_success,
           batch.failed_at IS NULL AND job.has_failed AS fails,
           batch.completed_at IS NULL AND batch.closed_at IS NOT NULL AND NOT job.has_unfinished AS completes,
           batch.succeeded_at IS NULL AND batch.closed_at IS NOT NULL AND NOT job.has_unfinished
               AND NOT job.has_failed AS succeeds
    FROM unnest(%(batch_ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT id, parent_id, closed_at, failed_at, completed_at, succeeded_at, on_failure, on_complete, on_success
        FROM pgqueue_batch
        WHERE id = given.id
        OFFSET 0
    ) AS batch
    CROSS JOIN LATERAL (
""" + DECISION + """
    ) AS job
),
marked AS (
    UPDATE pgqueue_batch AS batch
    SET failed_at = CASE
            WHEN seen.fails THEN statement_timestamp() + %(time_shift)s::interval ELSE batch.failed_at
        END,
        completed_at = CASE
            WHEN seen.completes THEN statement_timestamp() + %(time_shift)s::interval ELSE batch.completed_at
        END,
        succeeded_at = CASE
            WHEN seen.succeeds THEN statement_timestamp() + %(time_shift)s::interval ELSE batch.succeeded_at
        END
    FROM seen
    WHERE batch.id = seen.id AND (seen.fails OR seen.completes OR seen.succeeds)
),
event AS MATERIALIZED (
    SELECT batch_id, parent_id, name, call,
           CASE WHEN call IS NOT NULL THEN nextval('pgqueue_job_id_seq') END AS job_id
    FROM (
        SELECT id AS batch_id, parent_id, 'failure' AS name, on_failure AS call, 1 AS place FROM seen WHERE fails
        UNION ALL
        SELECT id, parent_id, 'complete', on_complete, 2 FROM seen WHERE completes
        UNION ALL
        SELECT id, parent_id, 'success', on_success, 3 FROM seen WHERE succeeds
        ORDER BY batch_id, place
    ) AS in_order
)
SELECT batch_id, parent_id, name, job_id, call::text, call ->> 'arguments'
FROM event
ORDER BY job_id
"""  # fmt: skip

# Return one page of the batches that are not complete, in the order of their ids.
#
# Caller: lifecycle.batches.incomplete_batches(), from the sweep
# Index:  pgqueue_batch_incomplete, which batches leave when they are complete
INCOMPLETE_BATCHES: Final = """/* pgqueue:incomplete_batches */
SELECT id FROM pgqueue_batch WHERE completed_at IS NULL AND id > %(after_id)s ORDER BY id LIMIT %(limit)s
"""

# Return one page of the batches that have not succeeded, in the order of their ids.
#
# Caller: lifecycle.batches.unsettled_batches(), from the hourly sweep
# Index:  pgqueue_batch_unsettled, which batches leave when they succeed
UNSETTLED_BATCHES: Final = """/* pgqueue:unsettled_batches */
SELECT id FROM pgqueue_batch WHERE succeeded_at IS NULL AND id > %(after_id)s ORDER BY id LIMIT %(limit)s
"""

# Count the jobs of batches and of all batches nested in them by state, with the jobs that were removed since.
#
# Caller: lifecycle.batches.count_jobs()
# Index:  pgqueue_job_batch, pgqueue_batch_parent, pgqueue_batch_removal_batch
# Cost:   it reads one index entry per job
COUNT_BATCH_JOBS: Final = """/* pgqueue:count_batch_jobs */
WITH RECURSIVE tree AS (
    SELECT given.id AS root_id, given.id FROM unnest(%(batch_ids)s::bigint[]) AS given (id)
    UNION ALL
    SELECT tree.root_id, child.id
    FROM tree
    CROSS JOIN LATERAL (SELECT id FROM pgqueue_batch WHERE parent_id = tree.id OFFSET 0) AS child
)
SELECT tree.root_id, counted.state, sum(counted.count)::bigint
FROM tree
CROSS JOIN LATERAL (
    SELECT state, count(*) AS count FROM pgqueue_job WHERE batch_id = tree.id GROUP BY state
    UNION ALL
    SELECT state, count FROM pgqueue_batch_removal WHERE batch_id = tree.id
) AS counted
GROUP BY tree.root_id, counted.state
"""

# Remove the callbacks of one page of the batches that have not succeeded. Return how many batches the page had, the
# number of removed callbacks, and the last batch of the page.
#
# Caller: lifecycle.batches.forget_callbacks(), before `pgqueue adopt` cancels all jobs of a copied database. Otherwise
#         the ends of their batches would enqueue the callbacks
# Locks:  waits for a transaction that is ending one of these batches
# Index:  pgqueue_batch_unsettled, the primary key
FORGET_CALLBACKS: Final = """/* pgqueue:forget_callbacks */
WITH page AS MATERIALIZED (
    SELECT id, num_nonnulls(on_failure, on_complete, on_success) AS callbacks
""" + UNSETTLED_PAGE + """
),
forgotten AS (
    UPDATE pgqueue_batch
    SET on_failure = NULL, on_complete = NULL, on_success = NULL
    WHERE id = ANY (ARRAY (SELECT id FROM page WHERE callbacks > 0))
)
SELECT count(*), coalesce(sum(callbacks), 0)::bigint, max(id) FROM page
"""  # fmt: skip

# Remove the old batches. Their parents take over the counts of removed jobs.
GONE: Final = """uncounted AS (
    DELETE FROM pgqueue_batch_removal WHERE batch_id = ANY (ARRAY (SELECT id FROM old))
    RETURNING batch_id, state, count
),
taken_over AS (
    INSERT INTO pgqueue_batch_removal (batch_id, state, count)
    SELECT old.parent_id, uncounted.state, sum(uncounted.count)::bigint
    FROM uncounted
    JOIN old ON old.id = uncounted.batch_id
    WHERE (SELECT true FROM pgqueue_batch WHERE id = old.parent_id) IS NOT NULL
    GROUP BY old.parent_id, uncounted.state
),
gone AS (
    DELETE FROM pgqueue_batch WHERE id = ANY (ARRAY (SELECT id FROM old))
)"""

# Remove these batches, if they are complete and have no jobs and no nested batches any more. Return the removed ones.
#
# Caller: lifecycle.batches.delete_batches(), for `delete()` of the models
# Locks:  SKIP LOCKED
# Index:  primary keys, pgqueue_job_batch, pgqueue_batch_parent, pgqueue_batch_removal_batch
#
# The parent takes over the counts, as in PRUNE_BATCHES.
DELETE_BATCHES: Final = """/* pgqueue:delete_batches */
WITH old AS MATERIALIZED (
    SELECT locked.id, locked.parent_id
    FROM unnest(%(batch_ids)s::bigint[]) AS given (id)
    CROSS JOIN LATERAL (
        SELECT id, parent_id
        FROM pgqueue_batch
        WHERE id = given.id AND completed_at IS NOT NULL
        FOR UPDATE SKIP LOCKED
    ) AS locked
    WHERE (SELECT true FROM pgqueue_job WHERE batch_id = given.id LIMIT 1) IS NULL
      AND (SELECT true FROM pgqueue_batch WHERE parent_id = given.id LIMIT 1) IS NULL
),
""" + GONE + """
SELECT id FROM old
"""  # fmt: skip

# Remove complete batches past their retention that have no jobs and no nested batches any more, from one page of the
# table. Return how many rows the page had, how many of them were removed, and the last batch of the page.
#
# The parent of a removed batch takes over the counts of its jobs. Otherwise the parent would forget them: its progress
# would shrink, and if the removed batch was all that had failed, the sweep would enqueue its on_success.
#
# Caller: lifecycle.batches.prune_batches(), page by page
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  primary keys, pgqueue_job_batch, pgqueue_batch_parent, pgqueue_batch_removal_batch
PRUNE_BATCHES: Final = """/* pgqueue:prune_batches */
WITH page AS MATERIALIZED (
    SELECT id, completed_at FROM pgqueue_batch WHERE id > %(after_id)s::bigint ORDER BY id LIMIT %(limit)s
),
old AS MATERIALIZED (
    SELECT locked.id, locked.parent_id
    FROM page
    CROSS JOIN LATERAL (
        SELECT id, parent_id FROM pgqueue_batch WHERE id = page.id FOR UPDATE SKIP LOCKED
    ) AS locked
    WHERE page.completed_at < statement_timestamp() + %(time_shift)s::interval
          - make_interval(secs => %(retention_seconds)s::float8)
      AND (SELECT true FROM pgqueue_job WHERE batch_id = page.id LIMIT 1) IS NULL
      AND (SELECT true FROM pgqueue_batch WHERE parent_id = page.id LIMIT 1) IS NULL
      AND page.id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
),
""" + GONE + """
SELECT count(*), (SELECT count(*) FROM old), max(id) FROM page
"""  # fmt: skip
