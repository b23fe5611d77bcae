"""Show what happened around a job while it lived, and what operators did to it: who cancelled, moved or edited it.

The timeline on the page of a job shows it, with pauses, releases and stops of its workers. Retries by operators are not
here: `attempts` says what follows each.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _

from django_pgqueue.acts import CANCEL, EDIT_AND_RETRY, ERASE, MOVE, PAUSE, RESUME, RUN_NOW, STOP_WORKER
from django_pgqueue.admin import private
from django_pgqueue.admin.bulk_acts import word_of_value
from django_pgqueue.admin.formatting import by_until, seen_at, shortened
from django_pgqueue.admin.past_acts import act_text, deploy_text
from django_pgqueue.declared.limits import name_of
from django_pgqueue.models import Job
from django_pgqueue.stats.past_acts import PastAct, past_acts
from django_pgqueue.tasks import registry

ON_JOB: Final = (CANCEL.name, MOVE.name, RUN_NOW.name, ERASE.name, EDIT_AND_RETRY.name)
SHOWN: Final = 20
"""Latest entries of the timeline that are not about an attempt."""


class TimelineEvent(NamedTuple):
    """An entry of the timeline. `state` gives its colour, and `is_own` says whether it happened to the job itself."""

    at: datetime
    label: str
    state: str
    is_own: bool = True


def acts_around(request: HttpRequest, job: Job, attempts: Sequence[dict[str, Any]]) -> list[TimelineEvent]:
    """Return what happened between the enqueueing of a job and its end, oldest first: at most `SHOWN` and one more.

    Runs one statement.
    """
    alias, until = str(job._state.db), job.finished_at or seen_at(job)
    worker_ids = {attempt["execution"].worker_id for attempt in attempts}
    actions = (PAUSE.name, RESUME.name, STOP_WORKER.name)
    past = past_acts(actions, job.enqueued_at, until, job_id=job.pk, on_job=ON_JOB, database=alias)
    found = [
        TimelineEvent(act.began_at, act_text(request, act), "paused" if act.action == PAUSE.name else "", is_own=False)
        for act in past.acts
        if _concerns(act, job, worker_ids)
    ]
    found += [
        TimelineEvent(each.started_at, _("first worker of %(what)s") % {"what": deploy_text(each)}, "", is_own=False)
        for each in past.starts
    ]
    found += [
        TimelineEvent(
            act.began_at, _text_on_job(request, act, job, attempts), "cancelling" if act.action == CANCEL.name else ""
        )
        for act in past.on_job
    ]
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


def _text_on_job(request: HttpRequest, act: PastAct, job: Job, attempts: Sequence[dict[str, Any]]) -> str:
    """Return what an operator has done to a job, with the name and the reason."""
    form, words = _words_on_job(act, job, attempts)
    text = form % {**words, "who": by_until(act.done_by, None)}
    is_visible = private.may_view_reason(request, act.text("limit_key"), act.text("message"), act.text("search"))
    return f"{text}: {shortened(act.reason)}" if act.reason and is_visible else text


def _words_on_job(act: PastAct, job: Job, attempts: Sequence[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    if act.action == MOVE.name:
        return _("moved%(where)s%(who)s"), {"where": _where(act)}
    if act.action == RUN_NOW.name:
        return _("made due%(who)s"), {}
    if act.action == ERASE.name:
        erased = act.chosen.get("erased")
        kinds = ", ".join(word_of_value(each) for each in erased[:9]) if isinstance(erased, list) else ""
        return (_("values erased (%(what)s)%(who)s") if kinds else _("values erased%(who)s")), {"what": kinds}
    if act.action == EDIT_AND_RETRY.name:
        is_new = act.began_at <= job.enqueued_at  # the act has made this job
        return (_("made from another job%(who)s") if is_new else _("edited and retried as a new job%(who)s")), {}
    return (_("asked to stop%(who)s") if _ran_at(act.began_at, attempts) else _("cancelled%(who)s")), {}


def _where(act: PastAct) -> str:
    """Return where a job was moved, as a part of a sentence. An older entry does not say it."""
    queue, priority = act.text("to_queue"), act.chosen.get("to_priority")
    parts = [_(" to the queue %(name)s") % {"name": shortened(queue)} if queue else ""]
    if isinstance(priority, int):
        parts.append(_(" to the priority %(number)s") % {"number": priority})
    return "".join(parts)


def _ran_at(at: datetime, attempts: Sequence[dict[str, Any]]) -> bool:
    """Return whether the job ran at this time. A job that is cancelled then is only asked to stop."""
    spans = [(each["execution"].claimed_at, each["execution"].finished_at) for each in attempts]
    return any(claimed_at <= at and (end is None or end > at) for claimed_at, end in spans)
