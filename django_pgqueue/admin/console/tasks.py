"""The page *Tasks*: the tasks of this process, and names in the rows for which it has no code.

The jobs by state come from `stats.tasks()`, and the figures of 24 hours from the counts of the workers. Both are
bounded, however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue import acts, stats
from django_pgqueue.admin import shown
from django_pgqueue.admin.formatting import breakable, by_until, duration, visible
from django_pgqueue.admin.links import page_url
from django_pgqueue.schedules import declarations, next_ticks
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.task_descriptions import depth_of, own_options, signature_of_call, summary_of
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition

from .page import ConsolePage

DAY: Final = timedelta(days=1)


class LinkedCount(NamedTuple):
    """A number of jobs with a link to the list that it counts."""

    label: Any
    number: str
    url: str


class Day(NamedTuple):
    """The attempts of a task that ended in 24 hours."""

    attempts: str
    failed: str
    failed_share: str
    run: str
    wait: str


class TaskRow(NamedTuple):
    """A task as the page shows it. For a name without code, the values of the code are empty."""

    name: str
    label: SafeString
    is_known: bool
    summary: str
    signature: str
    queue: str
    priority: int | None
    options: list[str]
    schedules: list[str]
    depths: list[LinkedCount]
    day: Day | None
    pause: str
    """How the task is paused; "" if it is not."""
    pause_shown: Any
    """When the pause began, as the form posts it; "" if the task is not paused."""
    enqueue_url: str


def _context(request: HttpRequest, alias: str) -> dict[str, Any]:
    jobs = {each.name: each for each in stats.tasks(alias)}
    now = datetime.now(UTC)
    days = {each.name: each for each in stats.throughput_by_task(now - DAY, now, database=alias)}
    known = registry.all_tasks()
    names = {name for task in known for name in registry.names_of(task.name)}
    unknown = sorted({name for name in (*jobs, *days) if name not in names})
    may_enqueue = acts.ENQUEUE.is_allowed(request.user)
    rows = [_row(request, task, jobs, days, may_enqueue=may_enqueue) for task in known]
    return {
        "rows": rows,
        "unknown": [_unknown_row(request, name, jobs, days) for name in unknown],
        "may_pause": acts.PAUSE.is_allowed(request.user),
        "has_figures": get_settings().STATS,
    }


def _row(
    request: HttpRequest,
    task: TaskDefinition,
    jobs: Mapping[str, stats.TaskStats],
    days: Mapping[str, stats.TaskThroughput],
    *,
    may_enqueue: bool,
) -> TaskRow:
    names = registry.names_of(task.name)
    pause = next((jobs[name].pause for name in names if name in jobs and jobs[name].pause), None)
    return TaskRow(
        name=task.name,
        label=breakable(task.name),
        is_known=True,
        summary=visible(summary_of(task)),
        signature=visible(signature_of_call(task)),
        queue=visible(task.queue_name),
        priority=task.priority,
        options=[f"{name}={visible(value)}" for name, value in own_options(task).items() if name != "priority"],
        schedules=[_in_words(times) for _name, times in declarations.of_task(task)],
        depths=_depths(request, task.name, depth_of(task, jobs)),
        day=_day([days[name] for name in names if name in days]),
        pause=_pause_text(pause),
        pause_shown=_pause_shown(pause),
        enqueue_url=page_url(request, "enqueue", task.name) if may_enqueue else "",
    )


def _unknown_row(
    request: HttpRequest, name: str, jobs: Mapping[str, stats.TaskStats], days: Mapping[str, stats.TaskThroughput]
) -> TaskRow:
    depth = jobs.get(name, stats.Depth())
    pause = jobs[name].pause if name in jobs else None
    return TaskRow(
        name=name,
        label=breakable(name),
        is_known=False,
        summary="",
        signature="",
        queue="",
        priority=None,
        options=[],
        schedules=[],
        depths=_depths(request, name, depth),
        day=_day([days[name]] if name in days else []),
        pause=_pause_text(pause),
        pause_shown=_pause_shown(pause),
        enqueue_url="",
    )


def _in_words(times: Any) -> str:
    zone = "" if times.expression.startswith("every ") else f" ({times.zone})"
    return visible(f"{next_ticks.in_words(times.expression)}{zone}")


def _depths(request: HttpRequest, name: str, depth: stats.Depth) -> list[LinkedCount]:
    """Return the numbers of jobs that are not 0, each with a link to the list of these jobs."""
    scheduled = depth.scheduled + depth.retrying
    of_states = (
        (_("due"), depth.due + depth.paused, "job", "due"),
        (_("scheduled"), scheduled, "job", "scheduled"),
        (_("running"), depth.running + depth.lost, "job", "running"),
        (_("dead"), depth.dead, "deadjob", None),
    )
    return [
        LinkedCount(label, str(count), page_url(request, f"{model}_changelist", state=state, task=name))
        for label, count, model, state in of_states
        if count.value
    ]


def _day(found: Iterable[stats.TaskThroughput]) -> Day | None:
    """Return the figures of 24 hours; None without attempts. Under former names only the largest part has durations."""
    parts = sorted(found, key=lambda each: -_attempts(each.counts))
    attempts, failed = sum(_attempts(each.counts) for each in parts), sum(each.counts.failed for each in parts)
    if not attempts:
        return None
    run, wait = parts[0].run, parts[0].wait
    return Day(f"{attempts:,}", f"{failed:,}", f"{failed / attempts:.1%}", _spans(run.p50, run.p95), _spans(wait.p95))


def _attempts(counts: stats.AttemptCounts) -> int:
    """Return how many attempts succeeded, failed or were cancelled. Released and snoozed ones do not count."""
    return counts.succeeded + counts.failed + counts.cancelled


def _spans(*seconds: float | None) -> str:
    return " / ".join("–" if each is None else duration(timedelta(seconds=each), brief=True) for each in seconds)


def _pause_text(pause: stats.PauseStats | None) -> str:
    if pause is None:
        return ""
    return f"{_('paused')}{by_until(pause.by, pause.until)}{': ' if pause.reason else ''}{visible(pause.reason)}"


def _pause_shown(pause: stats.PauseStats | None) -> Any:
    return shown.number(pause.paused_at if pause else None)


TASKS: Final = ConsolePage("tasks", _("Tasks"), _context)
