"""The page *Tasks*: the tasks of this process, and names in the rows for which it has no code.

The jobs by state come from `stats.tasks()`, and the figures of 24 hours from the counts of the workers. Both are
bounded, however many jobs there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext

from django_pgqueue import acts, stats
from django_pgqueue.admin import shown
from django_pgqueue.admin.chart_scales import percentile_text, percentiles_note
from django_pgqueue.admin.formatting import breakable, count_note, pause_text, visible
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.admin.schedules.expression_text import expression_text
from django_pgqueue.display import number, percent
from django_pgqueue.schedules import declarations
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.task_descriptions import depth_of, own_options, signature_of_call, summary_of
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition

from .page import ConsolePage

DAY: Final = timedelta(days=1)


def _context(request: HttpRequest, alias: str) -> dict[str, Any]:
    jobs = {each.name: each for each in stats.tasks(alias)}
    now = datetime.now(UTC)
    days = {each.name: each for each in stats.throughput_by_task(now - DAY, now, database=alias)}
    known = registry.all_tasks()
    names = {name for task in known for name in registry.names_of(task.name)}
    unknown = sorted({name for name in (*jobs, *days) if name not in names})
    may_enqueue = acts.ENQUEUE.is_allowed(request.user)
    rows = [_known_row(request, task, jobs, days, may_enqueue=may_enqueue) for task in known]
    without_code = [_row(request, [name], jobs.get(name, stats.Depth()), jobs, days) for name in unknown]
    known_days = [row["day"] for row in (*rows, *without_code) if row["day"]]
    return {
        "rows": rows,
        "unknown": without_code,
        "has_attempts": bool(known_days),
        "has_failures": any(day["failed"] != "0" for day in known_days),
        "may_pause": acts.PAUSE.is_allowed(request.user),
        "has_figures": get_settings().STATS,
        "percentiles_note": percentiles_note(),
    }


def _known_row(
    request: HttpRequest,
    task: TaskDefinition,
    jobs: Mapping[str, stats.TaskStats],
    days: Mapping[str, stats.TaskThroughput],
    *,
    may_enqueue: bool,
) -> dict[str, Any]:
    """Return the row of a task: that of its names, with what the code says."""
    return {
        **_row(request, registry.names_of(task.name), depth_of(task, jobs), jobs, days),
        "summary": visible(summary_of(task)),
        "signature": visible(signature_of_call(task)),
        "queue": visible(task.queue_name),
        "priority": task.priority,
        "options": [breakable(f"{name}={value}") for name, value in own_options(task).items() if name != "priority"],
        "schedules": [_in_words(times) for _name, times in declarations.of_task(task)],
        "enqueue_url": page_url(request, "enqueue", task.name) if may_enqueue else "",
    }


def _row(
    request: HttpRequest,
    names: Sequence[str],
    depth: stats.Depth,
    jobs: Mapping[str, stats.TaskStats],
    days: Mapping[str, stats.TaskThroughput],
) -> dict[str, Any]:
    """Return what the database says about the names of a task, the present one first."""
    pause = next((jobs[name].pause for name in names if name in jobs and jobs[name].pause), None)
    return {
        "name": names[0],
        "label": breakable(names[0]),
        "depths": _depths(request, names[0], depth),
        "day": _day([days[name] for name in names if name in days]),
        "charts_url": page_url(request, "overview", task=names[0], span="day"),
        "pause": _pause_text(pause),
        "pause_shown": str(shown.number(pause.paused_at if pause else None)),
    }


def _in_words(times: Any) -> str:
    zone = "" if times.expression.startswith("every ") else f" ({times.zone})"
    return visible(f"{expression_text(times.expression)}{zone}")


def _depths(request: HttpRequest, name: str, depth: stats.Depth) -> list[dict[str, Any]]:
    """Return the numbers of jobs that are not 0, or not known, each with a link to the list of these jobs."""
    of_states = (
        (pgettext("jobs", "due"), depth.due, "job", "due"),
        (_("paused"), depth.paused, "job", "paused"),
        (_("held by their limit (the list has all due jobs)"), depth.held, "job", "due"),
        (_("scheduled"), depth.scheduled, "job", "scheduled"),
        (_("retrying"), depth.retrying, "job", "retrying"),
        (_("unknown to workers"), depth.unknown, "job", "unknown"),
        (_("running"), depth.running + depth.lost, "job", "running"),
        (_("claimed, waiting for a slot"), depth.prefetched, "job", "running"),
        (_("dead"), depth.dead, "deadjob", None),
    )
    return [
        {
            "label": label,
            "number": str(count),
            "url": page_url(request, f"{model}_changelist", state=state, task=name),
            "title": count_note(count),
        }
        for label, count, model, state in of_states
        if count != stats.Count()
    ]


def _day(found: Iterable[stats.TaskThroughput]) -> dict[str, str] | None:
    """Return the figures of 24 hours; None without attempts. Under former names only the largest part has durations."""
    parts = sorted(found, key=lambda each: -_attempts(each.counts))
    attempts, failed = sum(_attempts(each.counts) for each in parts), sum(each.counts.failed for each in parts)
    if not attempts:
        return None
    run, wait = parts[0].run, parts[0].wait
    return {
        "attempts": number(attempts),
        "failed": number(failed),
        "failed_share": percent(failed / attempts),
        "run": percentile_text(run.p50, run.p95),
        "wait": percentile_text(wait.p95),
    }


def _attempts(counts: stats.AttemptCounts) -> int:
    """Return how many attempts succeeded, failed or were cancelled. Released and snoozed ones do not count."""
    return counts.succeeded + counts.failed + counts.cancelled


def _pause_text(pause: stats.PauseStats | None) -> str:
    return "" if pause is None else pause_text(pause.paused_at, pause.by, pause.until, pause.reason)


TASKS: Final = ConsolePage("tasks", _("Tasks"), _context)
