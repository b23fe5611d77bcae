"""Show what happened around a job while it lived: pauses, releases, stops of its workers, and who cancelled it.

The timeline on the page of a job shows it. Retries by operators are not here: `attempts` says what follows each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_pgqueue.acts import CANCEL, PAUSE, RESUME, STOP_WORKER
from django_pgqueue.admin.formatting import by_until, seen_at, shortened
from django_pgqueue.admin.past_acts import act_text, deploy_text
from django_pgqueue.declared.limits import name_of
from django_pgqueue.models import AuditedJob, Job
from django_pgqueue.states import State
from django_pgqueue.stats.past_acts import PastAct, first_starts, past_acts
from django_pgqueue.tasks import registry

SHOWN: Final = 20
"""Latest entries of the timeline that are not about an attempt."""
CANCELS_SHOWN: Final = 5
Event = tuple[datetime, str, str]
"""A moment, its words, and the state that gives its colour."""


def acts_around(
    request: HttpRequest, job: Job, attempts: Sequence[dict[str, Any]], *, was_retried: bool
) -> list[Event]:
    """Return what happened between the enqueueing of a job and its end, oldest first: at most `SHOWN` and one more.

    Runs two statements, and a third one if the job is or was cancelled.
    """
    alias, until = str(job._state.db), job.finished_at or seen_at(job)
    worker_ids = {attempt["execution"].worker_id for attempt in attempts}
    acts = past_acts((PAUSE.name, RESUME.name, STOP_WORKER.name), job.enqueued_at, until, database=alias)
    found = [
        (act.began_at, act_text(request, act), "paused" if act.action == PAUSE.name else "")
        for act in acts
        if _concerns(act, job, worker_ids)
    ]
    starts = first_starts(job.enqueued_at, until, database=alias)
    found += [(each.started_at, _("first worker of %(what)s") % {"what": deploy_text(each)}, "") for each in starts]
    if was_retried or job.state == State.CANCELLED or job.cancel_requested_at is not None:
        found += _cancels(alias, job.pk)
    return sorted(found)[-SHOWN - 1 :]


def _concerns(act: PastAct, job: Job, worker_ids: Collection[int]) -> bool:
    """Return whether an act paused or resumed what the job belongs to, or stopped a worker that ran it."""
    if act.action == STOP_WORKER.name:
        return act.chosen.get("worker_id") in worker_ids
    limit_key = act.text("limit_key")
    return (
        act.text("queue_name") == job.queue_name
        or act.text("task_name") in registry.names_of(job.task_name)
        or (job.limit_key is not None and limit_key in (job.limit_key, name_of(job.limit_key)))
    )


def _cancels(alias: str, job_id: int) -> Iterator[Event]:
    """Yield the latest acts that cancelled the job, or requested it to be cancelled. Runs one query."""
    found = AuditedJob.objects.using(alias).filter(job_id=job_id, entry__action=CANCEL.name).order_by("-entry_id")
    columns = ("entry__began_at", "entry__done_by", "entry__reason")
    for began_at, done_by, reason in found.values_list(*columns)[:CANCELS_SHOWN]:
        text = _("cancelled%(who)s") % {"who": by_until(done_by, None)}
        yield began_at, f"{text}: {shortened(reason)}" if reason else text, "cancelling"
