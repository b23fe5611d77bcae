"""The statement that reads what follows the ends of jobs that no report describes."""

from typing import Final

# Return those of these jobs that something follows: those in a batch, in a workflow, and with steps to undo.
#
# Caller: lifecycle.ends.find_ended(), after jobs have ended otherwise than by the report of an attempt: by a rescue, a
#         settlement, an expiry, an operator. Completions know the batch and the workflow from the claim
# Index:  pgqueue_job_pkey, pgqueue_step_compensation or pgqueue_step_pkey
FIND_ENDED: Final = """/* pgqueue:find_ended */
SELECT job.id, job.batch_id, job.in_graph IS TRUE, step.has_compensations IS TRUE
FROM unnest(%(job_ids)s::bigint[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id, batch_id, in_graph FROM pgqueue_job WHERE id = given.id OFFSET 0
) AS job
LEFT JOIN LATERAL (
    SELECT true AS has_compensations
    FROM pgqueue_step
    WHERE job_id = job.id AND compensation IS NOT NULL
    LIMIT 1
) AS step ON true
WHERE job.batch_id IS NOT NULL OR job.in_graph OR step.has_compensations
"""
