"""The statement that says which finished jobs unfinished work needs.

LOCK_FINISHED has the same conditions, and DELETE some of them: they leave such a job alone.
tests/deletion/test_needs.py goes through all removals.
"""

from typing import Final

from .clauses import NEEDED, NEEDED_BY_SAGA

# Return these jobs, the state of each, and why it must stay, as a value of `states.Need`. NULL: nothing needs it.
#
# Caller: lifecycle.needs_of(), about jobs that a removal has left, so that its answer can give the reason
# Locks:  none
# Index:  primary keys, pgqueue_job_batch, pgqueue_step_compensation, pgqueue_step_undone
NEEDS: Final = """/* pgqueue:needs */
SELECT
    job.id,
    job.state,
    CASE
        WHEN job.state IN ('waiting', 'ready', 'running') THEN 'unfinished'
        WHEN job.in_graph AND (
""" + NEEDED + """
        ) THEN 'workflow'
        WHEN (
            SELECT true FROM pgqueue_step WHERE job_id = job.id AND compensation IS NOT NULL LIMIT 1
        ) THEN 'compensation'
        WHEN job.state = 'dead' AND job.limit_order = 2 THEN 'order'
        WHEN job.state <> 'succeeded' AND (
""" + NEEDED_BY_SAGA + """
        ) THEN 'saga'
    END
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id, state, in_graph, batch_id, limit_order FROM pgqueue_job WHERE id = given.id OFFSET 0
) AS job
"""  # fmt: skip
