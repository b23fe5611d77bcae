"""Read who has acknowledged a dead job, when and why.

The page of a job and `manage.py pgqueue jobs show` call it, so that operators who find the job later know why nobody
has to deal with it. The row has the time. The name and the reason are in the audit, unless a program has acknowledged
the job.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple, Protocol

from django_pgqueue.models import AuditedJob

from . import ACKNOWLEDGE
from .job_retries import VALUES, has_values


class Acknowledgement(NamedTuple):
    """The acknowledgement of a dead job. `by` is "" if the audit does not have it."""

    at: datetime
    by: str = ""
    reason: str = ""
    has_values: bool = False
    """Whether the filter of the act has a limit key, a search key or an error message, which the reason may repeat."""


class DeadRow(Protocol):
    """The columns of a job that say whether and when it was acknowledged."""

    @property
    def pk(self) -> int: ...
    @property
    def finished_at(self) -> datetime | None: ...
    @property
    def acknowledged_at(self) -> datetime | None: ...


def acknowledgement_of(alias: str, job: DeadRow) -> Acknowledgement | None:
    """Return the acknowledgement of a job; None if it has none. Runs one query for an acknowledged job.

    An act that began before the death of the job belongs to an earlier death.
    """
    if job.acknowledged_at is None:
        return None
    acts = AuditedJob.objects.using(alias).filter(job_id=job.pk, entry__action=ACKNOWLEDGE.name)
    latest = acts.filter(entry__began_at__gte=job.finished_at).order_by("-entry_id")
    entry = latest.values_list("entry__done_by", "entry__reason", *VALUES).first()
    if entry is None:
        return Acknowledgement(job.acknowledged_at)
    by, reason, *values = entry
    return Acknowledgement(job.acknowledged_at, by, reason, has_values(*values))
