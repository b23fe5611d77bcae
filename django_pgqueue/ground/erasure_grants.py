"""The part of a statement that says whether a database role may erase values of jobs.

A worker asks it about its own role before it erases (`sql.history`), and the pages of a bulk act ask it about the roles
of the workers (`stats.fleet`). The grants are those of `queue_archivist` that an erasure needs.
"""

from typing import Final

# Whether the role in `role.name` has these grants, on the columns or, without a column, on the table.
HAS_GRANTS: Final = """(
    SELECT bool_and(CASE
        WHEN needed.name = '' THEN has_table_privilege(role.name, to_regclass(needed.relation), needed.privilege)
        ELSE has_column_privilege(role.name, to_regclass(needed.relation), needed.name, needed.privilege)
    END)
    FROM (VALUES
        ('pgqueue_job', 'arguments', 'UPDATE'), ('pgqueue_job', 'headers', 'UPDATE'),
        ('pgqueue_job', 'unique_key', 'UPDATE'), ('pgqueue_job', 'limit_key', 'UPDATE'),
        ('pgqueue_job', 'result', 'UPDATE'), ('pgqueue_job', 'progress_message', 'UPDATE'),
        ('pgqueue_execution', 'error', 'UPDATE'), ('pgqueue_execution', 'traceback', 'UPDATE'),
        ('pgqueue_execution', 'limit_key', 'UPDATE'), ('pgqueue_execution_log', '', 'DELETE'),
        ('pgqueue_search_key', '', 'DELETE'), ('pgqueue_step', 'result', 'UPDATE'),
        ('pgqueue_step', 'error', 'UPDATE'), ('pgqueue_step', 'event_key', 'UPDATE'),
        ('pgqueue_batch', 'on_failure', 'UPDATE'), ('pgqueue_batch', 'on_complete', 'UPDATE'),
        ('pgqueue_batch', 'on_success', 'UPDATE'), ('pgqueue_audit_job', 'detail', 'UPDATE'),
        ('pgqueue_audit_job', '', 'INSERT'), ('pgqueue_audit', 'job_count', 'UPDATE')
    ) AS needed (relation, name, privilege)
)"""
