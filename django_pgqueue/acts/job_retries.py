"""The retries of a job by operators, and the attempts that follow each: a retry begins the numbers of attempts again.

The page of a job and `manage.py pgqueue jobs show` call it, so that no attempt looks like an earlier one with the same
number. The audit has the retries that operators made. Of a retry by a program, only the numbers are left.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.db.models import Exists, OuterRef

from django_pgqueue.declared.limits import has_value
from django_pgqueue.ground.attempt_ends import AttemptRow, is_numbered_anew
from django_pgqueue.models import AuditedJob

from . import RETRY

IS_RETRIED: Final = Exists(AuditedJob.objects.filter(job_id=OuterRef("pk"), entry__action=RETRY.name))
"""Whether the audit has a retry of a job, as a part of the query that reads the job."""
VALUES: Final = ("entry__filter__limit_key", "entry__filter__message", "entry__filter__search")
"""The columns of `AuditedJob` for `has_values()`."""
SHOWN: Final = 10
"""Latest retries of a job that are shown."""
READ: Final = SHOWN + 1
"""One more shows that there are earlier ones."""


class JobRetry(NamedTuple):
    """A retry of a job.

    Attributes:
        at: When the act began. None: the audit has no entry of the retry, or it was not read.
        by: The name of the operator. "" if it is not known.
        reason: The operator's reason.
        is_bulk: Whether the act can have changed other jobs before this one, some time after it began.
        is_read: False for a retry before those that were read.
        has_values: Whether the filter of the act has a limit key, a search key or an error message, which the reason
            may repeat.
    """

    at: datetime | None = None
    by: str = ""
    reason: str = ""
    is_bulk: bool = False
    is_read: bool = True
    has_values: bool = False


UNRECORDED: Final = JobRetry()
"""A retry that the audit does not have."""
EARLIER: Final = JobRetry(is_read=False)
"""A retry before those that were read. Nobody knows whether the audit has it."""


def retries_of(alias: str, job_id: int) -> list[JobRetry]:
    """Return the latest `READ` retries of a job that the audit has, oldest first. Runs one query."""
    found = AuditedJob.objects.using(alias).filter(job_id=job_id, entry__action=RETRY.name).order_by("-entry_id")
    columns = ("entry__began_at", "entry__done_by", "entry__reason", "entry__job_count", "entry__total", *VALUES)
    return [
        JobRetry(began_at, done_by, reason, is_bulk=max(job_count, total or 0) > 1, has_values=has_values(*values))
        for began_at, done_by, reason, job_count, total, *values in reversed(list(found.values_list(*columns)[:READ]))
    ]


def has_values(limit_key: Any, message: Any, search: Any) -> bool:
    """Return whether the filter of an act has a value of a limit key or of a search key, or an error message."""
    return bool(message) or any(has_value(str(key or "")) for key in (limit_key, search))


def retries_before(attempts: Sequence[AttemptRow], retries: Sequence[JobRetry]) -> list[JobRetry | None]:
    """Return, for each attempt, the retry after which its number counts; None for attempts before all retries.

    Args:
        attempts: Executions of the job, latest first.
        retries: Those of `retries_of()`.
    """
    found: list[JobRetry | None] = []
    current: JobRetry | None = None
    recorded: JobRetry | None = None
    before: AttemptRow | None = None
    for row in reversed(attempts):
        latest = next((each for each in reversed(retries) if each.at and each.at <= row.claimed_at), None)
        if latest is not recorded:
            current = recorded = latest
        elif before is not None and is_numbered_anew(row, before):
            current = EARLIER if latest is None and len(retries) == READ else UNRECORDED
        found.append(current)
        before = row
    return found[::-1]
