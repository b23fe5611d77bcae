"""Find the acts of operators on a batch and on its jobs, for its history, and the retries of a workflow for its page.

`batch_admin` and `page` call it. An act on many jobs names no batch, so the first job that it has changed decides: an
act from the page of a batch changes jobs of this batch only. The cost is bounded: four queries, which read `READ`
entries.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from django.db.models import OuterRef, Subquery, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.acts import CLOSE_BATCH, EDIT_AND_RETRY, ERASE, JOB_ACTS, RETRY
from django_pgqueue.admin import databases
from django_pgqueue.admin.console import act_rows
from django_pgqueue.admin.formatting import REASON_SHOWN, by_until, full_date, seen_at, shortened
from django_pgqueue.admin.list_filters import row_id_of
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.display import number
from django_pgqueue.models import AuditedJob, AuditEntry, Job, JobBatch
from django_pgqueue.stats import past_acts as stats_of_acts
from django_pgqueue.stats.batch_counts import nested_batches

ACTIONS: Final = (*JOB_ACTS, EDIT_AND_RETRY.name, ERASE.name, CLOSE_BATCH.name)
READ: Final = 1000
"""Latest acts on jobs and batches that are read."""
SHOWN: Final = 50
"""Latest acts on a batch that its history shows."""
RETRIES_SHOWN: Final = 5
"""Latest retries of a workflow that its page shows."""
FILTER_READ: Final = 300
"""Characters of a filter that are read: a filter can have 10,000 numbers of jobs."""
FIRST_ID: Final = re.compile(r'"(?:job_ids|jobs)": ?\[(\d{1,18})[,\]]')
"""The first job of a filter, of which the act may have changed none yet."""


class _ReadAct(NamedTuple):
    act_id: int
    changed: int | None
    chosen: str

    @property
    def first_job(self) -> int | None:
        if self.changed is not None:
            return self.changed
        found = FIRST_ID.search(self.chosen)
        return int(found[1]) if found else None

    @property
    def batch_id(self) -> Any:
        try:
            chosen = json.loads(self.chosen)
        except (ValueError, RecursionError):  # it was cut, or an integer has 5,000 digits
            return None
        return chosen.get("batch_id") if isinstance(chosen, dict) else None


def acts_on_batch(request: HttpRequest, object_id: str) -> dict[str, Any]:
    """Return the latest acts on a batch and on its jobs, for its history."""
    alias, batch_id = databases.chosen(request), row_id_of(object_id)
    batch = None if batch_id is None else JobBatch.objects.using(alias).only("created_at").filter(pk=batch_id).first()
    if batch is None:
        return {}
    read = _read(alias, batch)
    nested = nested_batches(batch.pk, alias)
    first_jobs = {act.first_job for act in read if act.first_job is not None}
    jobs = Job.objects.using(alias).filter(pk__in=first_jobs, batch_id__in=nested)
    own = set(jobs.values_list("pk", flat=True))
    found = [act.act_id for act in read if act.batch_id == batch.pk or act.first_job in own][:SHOWN]
    entries = AuditEntry.objects.using(alias).filter(pk__in=found).order_by("-pk")
    note = _("Only the latest %(count)s acts on jobs and batches were searched.") % {"count": number(READ)}
    return {"acts": act_rows(request, entries), "note": note if len(read) == READ else ""}


def retries_of_workflow(request: HttpRequest, batch: JobBatch) -> list[tuple[str, str, str]]:
    """Return who has retried a workflow from which node and when, latest first, each as a fact with a URL.

    Runs one statement, which reads the latest retries of any jobs.
    """
    past = stats_of_acts.past_acts((RETRY.name,), batch.created_at, seen_at(batch), database=batch._state.db)
    acts = [act for act in reversed(past.acts) if act.chosen.get("batch_id") == batch.pk and "from_job" in act.chosen]
    return [
        (_("Retried"), _retry_text(act), page_url(request, "bulk_act", id=act.act_id)) for act in acts[:RETRIES_SHOWN]
    ]


def _retry_text(act: stats_of_acts.PastAct) -> str:
    text = ngettext(
        "from job #%(job)s at %(at)s%(who)s, %(count)s job",
        "from job #%(job)s at %(at)s%(who)s, %(count)s jobs",
        act.job_count,
    ) % {
        "job": shortened(str(act.chosen["from_job"]), 20),
        "at": full_date(act.began_at),
        "who": by_until(act.done_by, None),
        "count": number(act.job_count),
    }
    return f"{text}: {shortened(act.reason, REASON_SHOWN)}" if act.reason else text


def _read(alias: str, batch: JobBatch) -> list[_ReadAct]:
    """Return the latest acts on any jobs and batches since a batch was created, latest first."""
    first = AuditedJob.objects.using(alias).filter(entry=OuterRef("pk")).order_by("entry", "pk")
    entries = AuditEntry.objects.using(alias).filter(action__in=ACTIONS, began_at__gte=batch.created_at).order_by("-pk")
    text = Left(Cast("filter", TextField()), FILTER_READ)
    columns = entries.annotate(changed=Subquery(first.values("job_id")[:1]), text=text)
    return [_ReadAct(*row) for row in columns.values_list("pk", "changed", "text")[:READ]]
