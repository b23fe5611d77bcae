"""Statements that keep the audit of what operators did."""

from typing import Final

# Begin an entry of the audit.
#
# Caller: lifecycle.begin_audit()
BEGIN_AUDIT: Final = """/* pgqueue:begin_audit */
INSERT INTO pgqueue_audit (action, done_by, reason, began_at, filter, job_count)
VALUES (
    %(action)s, %(done_by)s, %(reason)s, statement_timestamp() + %(time_shift)s::interval, %(filter)s::json, 0
)
RETURNING id
"""

# End an entry of the audit.
#
# Caller: lifecycle.end_audit()
# Index:  the primary key
END_AUDIT: Final = """/* pgqueue:end_audit */
UPDATE pgqueue_audit
SET ended_at = statement_timestamp() + %(time_shift)s::interval
WHERE id = %(audit_id)s::bigint
"""
