"""Say in words what people and deploys did: the marks of the charts, and entries for the timeline of a job.

The charts and the page of a job call it. The value of a limit key, and the reason of an act on it, are shown only to
users who may see arguments. All text of people passes through `shortened()`.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.acts import CANCEL, PAUSE, RESUME, RETRY, STOP_WORKER
from django_pgqueue.db.fields import FIRST_INSTANT, LAST_INSTANT
from django_pgqueue.display import number
from django_pgqueue.stats.past_acts import QUEUES, TASKS, FirstStart, PastAct, past_acts
from django_pgqueue.tasks import registry

from . import private
from .charts import Mark
from .formatting import REASON_SHOWN, by_until, shortened
from .navigation import allowed_url, page_url

ON_CHARTS: Final = (PAUSE.name, RESUME.name, RETRY.name, CANCEL.name, STOP_WORKER.name)
OF_MANY: Final = (RETRY.name, CANCEL.name)
"""Acts that a chart shows only if they changed several jobs."""
KINDS: Final = {PAUSE.name: "pause", RESUME.name: "resume"}
"""The kind of the mark of an act. Other acts are of the kind "act"."""
MARKS_SHOWN: Final = 30
"""Latest marks of a chart. More lines in a chart hide its bars."""


class ChartMarks(NamedTuple):
    """The marks of a chart, oldest first, and whether earlier ones are left out."""

    marks: list[Mark]
    is_cut: bool


def chart_marks(
    request: HttpRequest,
    alias: str,
    since: datetime,
    until: datetime,
    *,
    queue: str | None = None,
    task: str | None = None,
) -> ChartMarks:
    """Return what happened in the period of a chart. Runs one statement.

    Acts that name other queues, or other tasks, than the chart shows are left out.
    """
    past = past_acts(ON_CHARTS, since, until, of_many=OF_MANY, database=alias)
    found = [_mark_of_start(request, start) for start in past.starts]
    for act in past.acts:
        concerns_queue = queue is None or act.can_concern(QUEUES, {queue})
        if concerns_queue and (task is None or act.can_concern(TASKS, registry.names_of(task))):
            url = page_url(request, "bulk_act", id=act.act_id)
            found.append(Mark(act.began_at, act_text(request, act), KINDS.get(act.action, "act"), url))
    found.sort(key=lambda mark: mark.at)
    return ChartMarks(found[-MARKS_SHOWN:], len(found) > MARKS_SHOWN)


def _mark_of_start(request: HttpRequest, start: FirstStart) -> Mark:
    return Mark(start.started_at, deploy_text(start), "release", allowed_url(request, "worker_changelist"))


def deploy_text(start: FirstStart) -> str:
    """Return the name of a release. Without one, return the version of this package."""
    if start.release:
        return _("release %(name)s") % {"name": shortened(start.release)}
    return _("version %(version)s") % {"version": shortened(start.version)}


def act_text(request: HttpRequest, act: PastAct) -> str:
    """Return what was done, by whom, until when and why, as a line without HTML."""
    words = {"what": target_text(request, act), "count": number(act.job_count), "who": by_until(act.done_by, None)}
    if act.action == PAUSE.name:
        text = _("%(what)s paused%(who)s") % {**words, "who": by_until(act.done_by, _until(act))}
    elif act.action == RESUME.name:
        text = _("%(what)s resumed%(who)s") % words
    elif act.action == STOP_WORKER.name:
        text = _("stop of the worker %(what)s requested%(who)s") % {**words, "what": shortened(act.text("worker"))}
    else:
        text = _of_jobs(act) % {**words, "what": f" ({words['what']})" if words["what"] else ""}
    is_visible = private.may_view_reason(request, act.text("limit_key"), act.text("message"))
    return f"{text}: {shortened(act.reason, REASON_SHOWN)}" if act.reason and is_visible else text


def _of_jobs(act: PastAct) -> str:
    if act.action == RETRY.name:
        return ngettext("%(count)s job%(what)s retried%(who)s", "%(count)s jobs%(what)s retried%(who)s", act.job_count)
    return ngettext("%(count)s job%(what)s cancelled%(who)s", "%(count)s jobs%(what)s cancelled%(who)s", act.job_count)


def target_text(request: HttpRequest, act: PastAct) -> str:
    """Return the queue, the task and the limit that an act names; "" if it names none."""
    limit_key = act.text("limit_key")
    pairs = (
        (_("queue %(name)s"), act.text("queue_name")),
        (_("task %(name)s"), act.text("task_name")),
        (_("limit %(name)s"), limit_key and private.shown_key(request, limit_key)),
    )
    return ", ".join(text % {"name": shortened(name)} for text, name in pairs if name)


def _until(act: PastAct) -> datetime | None:
    """Return when a pause ends by itself. Somebody can have stored any text there."""
    with suppress(ValueError, OverflowError):
        at = datetime.fromisoformat(act.text("until"))
        return at if at.tzinfo is not None and FIRST_INSTANT <= at < LAST_INSTANT else None
    return None
