"""Say in words what people and deploys did: the marks of the charts, and entries for the timeline of a job.

The charts and the page of a job call it. The value of a limit key, and the reason of an act on it, are shown only to
users who may see arguments. All text of people passes through `shortened()`.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Final, NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_pgqueue.acts import CANCEL, PAUSE, RESUME, RETRY, STOP_WORKER
from django_pgqueue.db.fields import FIRST_INSTANT, LAST_INSTANT
from django_pgqueue.declared.limits import name_of
from django_pgqueue.display import number
from django_pgqueue.stats import throughput_by_task
from django_pgqueue.stats.past_acts import (
    QUEUES,
    TASKS,
    FirstStart,
    OpenedBreaker,
    PastAct,
    opened_breakers,
    past_acts,
)
from django_pgqueue.tasks import registry

from . import private
from .charts import Mark
from .formatting import REASON_SHOWN, by_until, shortened
from .navigation import allowed_url, limit_url, page_url

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
    """Return what happened in the period of a chart. Runs two statements, and up to two more for a queue.

    Acts that concern other queues, or other tasks, than the chart shows are left out.
    """
    past = past_acts(ON_CHARTS, since, until, of_many=OF_MANY, database=alias)
    found = [_mark_of_start(request, start) for start in past.starts]
    scope = ChartScope(queue, task, alias, since, until)
    for act in past.acts:
        if scope.has(act):
            url = page_url(request, "bulk_act", id=act.act_id)
            found.append(Mark(act.began_at, act_text(request, act), KINDS.get(act.action, "act"), url))
    found += [
        _mark_of_breaker(request, breaker)
        for breaker in opened_breakers(since, until, alias)
        if scope.has_any(_tasks_of_limit(breaker.limit_key))
    ]
    found.sort(key=lambda mark: mark.at)
    return ChartMarks(found[-MARKS_SHOWN:], len(found) > MARKS_SHOWN)


class ChartScope:
    """The queue and the task that a chart shows. None: all of them."""

    def __init__(self, queue: str | None, task: str | None, alias: str, since: datetime, until: datetime) -> None:
        self._queue, self._names = queue, None if task is None else registry.names_of(task)
        self._alias, self._since, self._until = alias, since, until

    def has(self, act: PastAct) -> bool:
        """Return whether an act can concern jobs of the chart: by its queues, its tasks, or those of its limit.

        An act that names none can concern all jobs. An act on chosen jobs is on the charts of all jobs only.
        """
        if self._queue is None and self._names is None:
            return True
        queues, tasks = act.named(QUEUES), act.named(TASKS) or _tasks_of_limit(act.text("limit_key"))
        if self._queue is not None and queues:
            return act.can_concern(QUEUES, {self._queue})
        if queues and not tasks:
            return self._is_of(queues)
        return self.has_any(tasks) if tasks else not act.is_on_chosen_jobs

    def has_any(self, task_names: Collection[str]) -> bool:
        """Return whether the chart can show jobs of one of these tasks. No names mean that the tasks are not known."""
        if not task_names:
            return True
        is_shown = self._names is None or not set(self._names).isdisjoint(task_names)
        return is_shown and (self._queue is None or any(map(self._runs_here, task_names)))

    def _is_of(self, queues: Collection[str]) -> bool:
        """Return whether the task of the chart is of one of these queues. Calls can choose other queues."""
        known = {task.queue_name for task in map(registry.get, self._names or ()) if task is not None}
        return not known or not known.isdisjoint(queues)

    def _runs_here(self, task_name: str) -> bool:
        """Return whether a task is of the queue, or is not known, or has run there in the period."""
        task = registry.get(task_name)
        return task is None or task.queue_name == self._queue or task_name in self._have_run

    @cached_property
    def _have_run(self) -> frozenset[str]:
        """The tasks of which attempts ended in the queue. Calls can choose another queue than that of the task."""
        found = throughput_by_task(self._since, self._until, queue=self._queue, waits=False, database=self._alias)
        return frozenset(each.name for each in found)


def _tasks_of_limit(limit_key: str) -> frozenset[str]:
    """Return the names of the tasks that declare the limit of a key; none for ""."""
    name = name_of(limit_key)
    tasks = (task for task in registry.all_tasks() if task.limit is not None and task.limit.name == name)
    return frozenset(name for task in tasks for name in registry.names_of(task.name))


def _mark_of_breaker(request: HttpRequest, breaker: OpenedBreaker) -> Mark:
    text = _("The circuit breaker of the limit %(name)s opened.")
    text %= {"name": shortened(private.shown_key(request, breaker.limit_key))}
    reason = f" {shortened(breaker.reason, REASON_SHOWN)}" if breaker.reason else ""
    return Mark(breaker.opened_at, f"{text}{reason}", KINDS[PAUSE.name], limit_url(request, breaker.limit_key))


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
    is_visible = private.may_view_reason(request, act.text("limit_key"), act.text("message"), act.text("search"))
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
