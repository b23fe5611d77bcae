"""The audit: who changed which jobs, when and why.

`history.erase()`, `manage.py pgqueue` and the admin begin an entry, record the jobs of each batch, and end it. It
protects one invariant: the entry and its jobs agree with what was changed, because `record_audit()` runs in the
transaction of the change. `bulk_acts` does the same for the acts that workers execute.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute, sparse
from django_pgqueue.states import ActOutcome

from .execute import execute_with_retry
from .pruning import PRUNE_LIMIT
from .ranges import removed_in_ranges

NAME_LENGTH: Final = 150
"""Characters that are stored of a person's or a program's name."""


def begin_audit(
    connection: Connection,
    action: str,
    chosen: Mapping[str, Any],
    *,
    done_by: str = "",
    reason: str = "",
    total: int | None = None,
    rate: float | None = None,
    stops_on_repeat: bool = False,
) -> int:
    """Begin an entry of the audit; return its id. `chosen` is stored as JSON, and must contain no arguments."""
    params = {
        "action": action,
        "done_by": done_by[:NAME_LENGTH],
        "reason": reason,
        "filter": json.dumps(chosen),
        "total": total,
        "rate": rate,
        "stops_on_repeat": stops_on_repeat,
    }
    return int(execute(connection, sql.audit.BEGIN_AUDIT, params)[0][0])


def begin_audit_once(
    connection: Connection,
    form_token: UUID,
    action: str,
    chosen: Mapping[str, Any],
    *,
    done_by: str,
    reason: str = "",
) -> int | None:
    """Begin an entry for a form that makes one job; return its id, or None if an entry of this form exists.

    Call it first in the transaction that makes the job: a second call with the token waits for that transaction.
    """
    params = {
        "action": action,
        "done_by": done_by[:NAME_LENGTH],
        "reason": reason,
        "filter": json.dumps(chosen),
        "form_token": str(form_token),
    }
    rows = execute(connection, sql.audit.BEGIN_AUDIT_ONCE, params)
    return int(rows[0][0]) if rows else None


def record_audit(
    connection: Connection,
    audit_id: int,
    job_ids: Sequence[int],
    *,
    left: int = 0,
    details: Mapping[int, Any] | None = None,
) -> bool:
    """Add the jobs that a batch has changed to an entry, and the number of those that it left unchanged.

    Call it in the transaction that changed the jobs. `details` maps a job to JSON that describes what was done to it.
    Return whether somebody has asked the act to stop.
    """
    texts = [json.dumps(details[job_id]) if details and job_id in details else None for job_id in job_ids]
    params = {
        "audit_id": audit_id,
        "job_ids": list(job_ids),
        "details": ["" if text is None else text for text in sparse(texts)],
        "left_count": left,
    }
    rows = execute(connection, sql.audit.RECORD_AUDIT, params)
    return bool(rows and rows[0][0])


def edited_jobs(connection: Connection, job_ids: Sequence[int]) -> dict[int, int | None]:
    """Return which of these jobs *Edit and retry* has made new jobs of, in their order, each with its latest new job.

    None stands for a new job that no longer exists.
    """
    found: dict[int, int | None] = dict(execute(connection, sql.audit.EDITED_JOBS, {"job_ids": [*job_ids]}))
    return {job_id: found[job_id] for job_id in job_ids if job_id in found}


def end_audit(
    connection: Connection,
    audit_id: int,
    outcome: ActOutcome = ActOutcome.DONE,
    *,
    failed_job_id: int | None = None,
    error: str = "",
) -> None:
    """End an entry of the audit that has not ended yet."""
    params = {"audit_id": audit_id, "outcome": outcome.value, "failed_job_id": failed_job_id, "error": error}
    execute_with_retry(connection, sql.audit.END_AUDIT, params)


def add_audit(
    connection: Connection,
    action: str,
    chosen: Mapping[str, Any],
    job_ids: Sequence[int],
    *,
    done_by: str = "",
    reason: str = "",
    details: Mapping[int, Any] | None = None,
) -> int:
    """Write an entry for an act that is complete, in the transaction that changed its jobs; return its id."""
    audit_id = begin_audit(connection, action, chosen, done_by=done_by, reason=reason, total=len(job_ids))
    record_audit(connection, audit_id, job_ids, details=details)
    end_audit(connection, audit_id)
    return audit_id


def stop_audit(connection: Connection, audit_id: int, stopped_by: str) -> bool:
    """Stop an act that workers execute, or ask another program to stop it; return whether this call did so.

    Return False if the act has ended, or if somebody has asked before.
    """
    params = {"audit_id": audit_id, "stop_asked_by": stopped_by[:NAME_LENGTH]}
    return bool(execute_with_retry(connection, sql.audit.STOP_AUDIT, params))


def prune_audit(connection: Connection, retention_seconds: float, limit: int = PRUNE_LIMIT) -> int:
    """Remove up to `limit` entries that are older than the retention; return how many were removed."""
    params = {"retention_seconds": retention_seconds, "limit": limit}
    return removed_in_ranges(connection, "the removal of audit entry", sql.audit.PRUNE_AUDIT, params)
