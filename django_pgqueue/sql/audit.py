"""Statements that keep the audit of what operators did."""

from typing import Final

from .clauses import EDITS

# Begin an entry of the audit.
#
# Caller: lifecycle.audit.begin_audit()
BEGIN_AUDIT: Final = """/* pgqueue:begin_audit */
INSERT INTO pgqueue_audit (action, done_by, reason, began_at, filter, job_count, total, rate, stops_on_repeat)
VALUES (
    %(action)s, %(done_by)s, %(reason)s, statement_timestamp() + %(time_shift)s::interval, %(filter)s::json, 0,
    %(total)s::bigint, %(rate)s::float8, %(stops_on_repeat)s
)
RETURNING id
"""

# Begin an entry of the audit for a form, unless an entry has the token of the form. Then return no row.
#
# Caller: lifecycle.audit.begin_audit_once(), in the transaction that makes the job
# Locks:  waits for another transaction that has just begun an entry for the same form
# Index:  pgqueue_audit_form
BEGIN_AUDIT_ONCE: Final = """/* pgqueue:begin_audit_once */
INSERT INTO pgqueue_audit (action, done_by, reason, began_at, filter, job_count, form_token)
VALUES (
    %(action)s, %(done_by)s, %(reason)s, statement_timestamp() + %(time_shift)s::interval, %(filter)s::json, 0,
    %(form_token)s::uuid
)
ON CONFLICT (form_token) WHERE form_token IS NOT NULL DO NOTHING
RETURNING id
"""

# Add jobs to an entry of the audit: those that a batch has changed, and the change of the number of those that were
# left. A job that the entry has already is not counted again. Return whether somebody has asked the act to stop.
#
# Caller: lifecycle.audit.record_audit(), in the transaction that changes the jobs
# Locks:  waits for the entry, which only its own act and a request to stop update
# Index:  the primary key, pgqueue_audit_job_once
RECORD_AUDIT: Final = """/* pgqueue:record_audit */
WITH changed AS (
    INSERT INTO pgqueue_audit_job (audit_id, job_id, detail)
    SELECT %(audit_id)s::bigint, job_id, nullif(detail, '')::json
    FROM unnest(%(job_ids)s::bigint[], %(details)s::text[]) AS given (job_id, detail)
    ON CONFLICT (job_id, audit_id) DO NOTHING
    RETURNING job_id
)
UPDATE pgqueue_audit
SET job_count = job_count + (SELECT count(*) FROM changed), left_count = left_count + %(left_count)s
WHERE id = %(audit_id)s::bigint
RETURNING stop_asked_at IS NOT NULL
"""

# Return which of these jobs *Edit and retry* has made new jobs of, and the latest new job of each. NULL: that no longer
# exists. The audit can still have it, until PRUNE_AUDITED_JOBS.
#
# Caller: lifecycle.audit.edited_jobs(), for an operator who retries jobs. RETRY leaves out the same jobs
# Index:  pgqueue_audit_job_once, pgqueue_audit_job_entry, the primary keys
EDITED_JOBS: Final = """/* pgqueue:edited_jobs */
SELECT job.id, (
    SELECT job_id
    FROM pgqueue_audit_job AS made
    WHERE audit_id = latest.audit_id AND job_id <> job.id
      AND (SELECT true FROM pgqueue_job WHERE id = made.job_id)
    LIMIT 1
)
FROM unnest(%(job_ids)s::bigint[]) AS job (id)
CROSS JOIN LATERAL (
        SELECT edited.audit_id
        """ + EDITS + """
        ORDER BY edited.audit_id DESC
        LIMIT 1
) AS latest
"""  # fmt: skip

# End an entry of the audit. An entry that has ended stays as it is.
#
# Caller: lifecycle.audit.end_audit()
# Index:  the primary key
END_AUDIT: Final = """/* pgqueue:end_audit */
UPDATE pgqueue_audit
SET ended_at = statement_timestamp() + %(time_shift)s::interval, next_batch_at = NULL,
    outcome = %(outcome)s, failed_job_id = %(failed_job_id)s::bigint, error = %(error)s
WHERE id = %(audit_id)s::bigint AND ended_at IS NULL
"""

# Ask an act to stop. If workers execute it, it ends at once, because each of its batches is a transaction that holds
# the row lock of the entry. Another program reads the request after its next batch.
#
# Caller: lifecycle.audit.stop_audit()
# Locks:  waits for the batch that is under way, which takes less than a second
# Index:  the primary key
STOP_AUDIT: Final = """/* pgqueue:stop_audit */
UPDATE pgqueue_audit
SET stop_asked_at = statement_timestamp() + %(time_shift)s::interval, stop_asked_by = %(stop_asked_by)s,
    ended_at = CASE WHEN next_batch_at IS NOT NULL THEN statement_timestamp() + %(time_shift)s::interval END,
    outcome = CASE WHEN next_batch_at IS NOT NULL THEN 'stopped' END,
    next_batch_at = NULL
WHERE id = %(audit_id)s::bigint AND ended_at IS NULL AND stop_asked_at IS NULL
RETURNING id
"""

# Remove a batch of old entries that have ended or were interrupted, the oldest first. Their jobs are removed by
# PRUNE_AUDITED_JOBS.
#
# Caller: lifecycle.audit.prune_audit()
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  the primary key, because ids rise with `began_at`
PRUNE_AUDIT: Final = """/* pgqueue:prune_audit */
WITH oldest AS MATERIALIZED (
    SELECT id, began_at, next_batch_at
    FROM pgqueue_audit
    WHERE id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
    ORDER BY id
    LIMIT %(limit)s
),
mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_audit
    WHERE id = ANY (ARRAY (
        SELECT id
        FROM oldest
        WHERE next_batch_at IS NULL
          AND began_at < statement_timestamp() + %(time_shift)s::interval
              - make_interval(secs => %(retention_seconds)s::float8)
    ))
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_audit WHERE id = ANY (ARRAY (SELECT id FROM mine))
)
SELECT count(*) FROM mine
"""

# Remove the rows of jobs that no longer exist, and those of removed entries, from one page of the table. The rows of an
# act that deleted jobs stay as long as their entry. Return how many rows the page had, how many of them were removed,
# and the last id of the page.
#
# Caller: lifecycle.orphans.prune_orphans(), page by page. A prune itself does not touch these rows, so that it costs
#         nothing more for jobs that nobody has changed
# Locks:  SKIP LOCKED: another worker may be removing the same rows
# Index:  primary keys
PRUNE_AUDITED_JOBS: Final = """/* pgqueue:prune_audited_jobs */
WITH page AS MATERIALIZED (
    SELECT id, audit_id, job_id
    FROM pgqueue_audit_job
    WHERE id > %(after_id)s::bigint
    ORDER BY id
    LIMIT %(limit)s
),
left_over AS MATERIALIZED (
    SELECT id
    FROM page
    WHERE (
        SELECT act.action = 'delete' OR (SELECT true FROM pgqueue_job AS job WHERE job.id = page.job_id)
        FROM pgqueue_audit AS act
        WHERE act.id = page.audit_id
    ) IS NOT TRUE
      AND id BETWEEN %(first_id)s::bigint AND %(last_id)s::bigint
),
mine AS MATERIALIZED (
    SELECT id
    FROM pgqueue_audit_job
    WHERE id = ANY (ARRAY (SELECT id FROM left_over))
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
gone AS (
    DELETE FROM pgqueue_audit_job WHERE id = ANY (ARRAY (SELECT id FROM mine))
)
SELECT count(*), (SELECT count(*) FROM mine), max(id) FROM page
"""
