"""Show what *Edit and retry* changed: the link between the two jobs, and the difference of their arguments.

The pages and the histories of both jobs show it. Only a user who may view arguments sees the differences, because they
are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from django.db.models import Exists, OuterRef
from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_pgqueue.acts import EDIT_AND_RETRY
from django_pgqueue.admin import private
from django_pgqueue.admin.formatting import moment, visible
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.models import AuditedJob, Job

IS_EDITED: Final = Exists(AuditedJob.objects.filter(job_id=OuterRef("pk"), entry__action=EDIT_AND_RETRY.name))
"""Whether there is anything to show, as a part of the query that reads a job."""
SHOWN: Final = 10
"""Latest acts that the page of a job shows."""


def related_jobs(request: HttpRequest, job: Job) -> list[dict[str, Any]]:
    """Return the jobs that were made from a job, and the one that it was made from, latest first."""
    if not vars(job).get("is_edited"):
        return []
    rows = AuditedJob.objects.using(str(job._state.db)).filter(job_id=job.pk, entry__action=EDIT_AND_RETRY.name)
    found = rows.select_related("entry").order_by("-entry_id")[:SHOWN]
    is_visible = private.is_visible(job)
    return [
        {
            **other,
            "when": moment(row.entry.began_at),
            "done_by": visible(row.entry.done_by),
            "changes": shown_changes(row.detail) if is_visible else [],
            "note": "" if is_visible else str(private.NO_PERMISSION),
        }
        for row in found
        if (other := other_job(request, row.detail)) is not None
    ]


def other_job(request: HttpRequest, detail: Any) -> dict[str, Any] | None:
    """Return the other job of an *Edit and retry* from the stored detail. None for other acts, and after an erasure."""
    stored = detail if isinstance(detail, Mapping) else {}
    label, key = (_("Retried with other arguments as"), "retried_as")
    if "made_from" in stored:
        label, key = (_("Made with other arguments from"), "made_from")
    job_id = stored.get(key)
    if not isinstance(job_id, int):
        return None
    return {"label": label, "job_id": job_id, "url": page_url(request, "job_change", job_id)}


def shown_changes(detail: Any) -> list[dict[str, str]]:
    """Return the differences that an audit entry has stored, with the values before and after as JSON text.

    Only a user who may view arguments may see them.
    """
    changes = detail.get("changes") if isinstance(detail, Mapping) else None
    if not isinstance(changes, Mapping):
        return []
    found = []
    for name, pair in changes.items():
        if isinstance(pair, list) and len(pair) == 2:
            before, after = (_("not passed") if each is None else visible(str(each)) for each in pair)
        else:
            before = after = _("not recorded, because the project encodes arguments")
        found.append({"name": visible(name), "before": before, "after": after})
    return found
