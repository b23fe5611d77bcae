"""Show what happened around a job while it lived: pauses, releases, stops of its workers, and who cancelled it.

The timeline on the page of a job shows it. Retries by operators are not here: `attempts` says what follows each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_pgqueue.acts import PAUSE, RESUME, STOP_WORKER
from django_pgqueue.admin import private
from django_pgqueue.admin.formatting import by_until, seen_at, shortened
from django_pgqueue.admin.past_acts import act_text, deploy_text
from django_pgqueue.declared.limits import name_of
from django_pgqueue.models import Job
from django_pgqueue.stats.past_acts import PastAct, past_acts
from django_pgqueue.tasks import registry

SHOWN: Final = 20
"""Latest entries of the timeline that are not about an attempt."""
Event = tuple[datetime, str, str]
"""A moment, its words, and the state that gives its colour."""


def acts_around(request: HttpRequest, job: Job, attempts: Sequence[dict[str, Any]]) -> list[Event]:
    """Return what happened between the enqueueing of a job and its end, oldest first: at most `SHOWN` and one more.

    Runs one statement.
    """
    alias, until = str(job._state.db), job.finished_at or seen_at(job)
    worker_ids = {attempt["execution"].worker_id for attempt in attempts}
    actions = (PAUSE.name, RESUME.name, STOP_WORKER.name)
    past = past_acts(actions, job.enqueued_at, until, job_id=job.pk, database=alias)
    found = [
        (act.began_at, act_text(request, act), "paused" if act.action == PAUSE.name else "")
        for act in past.acts
        if _concerns(act, job, worker_ids)
    ]
    found += [
        (each.started_at, _("first worker of %(what)s") % {"what": deploy_text(each)}, "") for each in past.starts
    ]
    found += [(act.began_at, _cancel_text(request, act, attempts), "cancelling") for act in past.cancels]
    return sorted(found)[-SHOWN - 1 :]


def _concerns(act: PastAct, job: Job, worker_ids: Collection[int]) -> bool:
    """Return whether an act paused or resumed what the job belongs to, or stopped a worker that ran it."""
    if act.action == STOP_WORKER.name:
        worker_id = act.chosen.get("worker_id")  # somebody can have stored any value there
        return isinstance(worker_id, int) and worker_id in worker_ids
    limit_key = act.text("limit_key")
    return (
        act.text("queue_name") == job.queue_name
        or act.text("task_name") in registry.names_of(job.task_name)
        or (job.limit_key is not None and limit_key in (job.limit_key, name_of(job.limit_key)))
    )


def _cancel_text(request: HttpRequest, act: PastAct, attempts: Sequence[dict[str, Any]]) -> str:
    """Return who has cancelled a job. A job that ran then was only asked to stop."""
    spans = [(each["execution"].claimed_at, each["execution"].finished_at) for each in attempts]
    has_run = any(claimed_at <= act.began_at and (end is None or end > act.began_at) for claimed_at, end in spans)
    form = _("asked to stop%(who)s") if has_run else _("cancelled%(who)s")
    text = form % {"who": by_until(act.done_by, None)}
    is_visible = private.may_view_reason(request, act.text("limit_key"), act.text("message"))
    return f"{text}: {shortened(act.reason)}" if act.reason and is_visible else text
