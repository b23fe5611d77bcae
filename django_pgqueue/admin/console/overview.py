"""The page *Overview*: what the queue does now, what it did, what failed, and what is wrong.

Its number of statements does not depend on the number of queues, tasks, workers or jobs. `overview.json` is the same
document as that of `manage.py pgqueue status --json`, without limit keys if the user may not see them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db import DatabaseError, connections
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from django_pgqueue import stats
from django_pgqueue.admin import private
from django_pgqueue.admin.buttons import button_context
from django_pgqueue.admin.chart_scales import percentile_text, rate_text, seconds_text
from django_pgqueue.admin.console import activity
from django_pgqueue.admin.formatting import breakable, count_note, moment, shortened
from django_pgqueue.admin.navigation import allowed_url, jobs_url
from django_pgqueue.display import number, percent
from django_pgqueue.doctor import Finding, Level, examine
from django_pgqueue.doctor.catalogue import CHECKS
from django_pgqueue.job_search import NO_CLASS
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats import Count
from django_pgqueue.stats.causes.current import current, document_of
from django_pgqueue.stats.causes.words import Words
from django_pgqueue.stats.unread import Figures, read_each

from .causes import CAUSES_LISTED, CAUSES_SHOWN, cause_rows, found_causes
from .page import Banner, ConsolePage, unread_banners
from .queues import figure_text, held_note, prefetched_note, queue_rows, slots_text

EXAMINED: Final = ("server", "migrations", "installation", "listening", "pinned_rows")
"""The ids of the doctor's checks that the overview runs. They take a few milliseconds: the page may be refreshed every
two seconds."""
DAY: Final = timedelta(days=1)
INCIDENTS_LIMIT: Final = 8
TASKS_LIMIT: Final = 5
QUEUES_LIMIT: Final = 20
IN_ONE_ROW: Final = 6
"""Tiles that are one row. More are two rows."""


def examined(alias: str) -> list[Banner]:
    """Return what the doctor found. A check that cannot look is left out; the doctor's own page shows it."""
    findings = examine(alias, [check for check in CHECKS if check.id in EXAMINED])
    return [Banner(finding.level, finding.what, finding.fix) for finding in findings if _is_worth(finding)]


def _is_worth(finding: Finding) -> bool:
    is_blind = "cannot_see" in finding.data and finding.id != "server"
    return finding.level.is_at_least(Level.WARNING) and not is_blind


def notes() -> list[Banner]:
    """Return what the page lacks because of the settings."""
    if get_settings().STATS:
        return []
    return [Banner(Level.INFO, _('PGQUEUE["STATS"] is off: there are no rates, no charts and no failures.'))]


class Tile(NamedTuple):
    """A figure, and a link to the list of what it counts."""

    label: Promise | str
    value: Count | str
    url: str = ""
    note: str = ""
    is_bad: bool = False

    @property
    def title(self) -> Promise | str:
        """Why the figure is not exact; "" if it is."""
        return count_note(self.value)


def _context(request: HttpRequest, alias: str) -> dict[str, Any]:
    found = examined(alias)
    try:
        figures = read_each(connections[alias], lambda figures: _figures(request, alias, figures))
    except DatabaseError as error:
        figures = {"broken": shortened(str(error), 200)}
        if not found:
            found = [Banner(Level.ERROR, _("The figures could not be read."))]
    return {
        **figures,
        "banners": [*found, *figures.get("banners", ())],
        "doctor_url": allowed_url(request, "doctor"),
    }


def _figures(request: HttpRequest, alias: str, figures: Figures) -> dict[str, Any]:
    facts, span = current(alias, figures), activity.chosen_span(request)
    overview = facts.overview
    causes = found_causes(request, facts)
    past: dict[str, Any] = {}
    failures: Sequence[stats.FailureCount] = ()
    by_task: Sequence[stats.TaskThroughput] = ()
    if get_settings().STATS:
        past = figures.read("activity", lambda: activity.activity_context(request, alias), {})
        now = datetime.now(UTC)
        since = now - max(span.length, DAY)
        failures = figures.read("failures", lambda: stats.failures(since, now, database=alias), ())
        by_task = figures.read(
            "attempts by task", lambda: stats.throughput_by_task(since, now, waits=False, database=alias), ()
        )
    rows = queue_rows(request, overview.queues[:QUEUES_LIMIT])
    return {
        "overview": overview,
        "tiles": tiles(request, overview),
        "rows": rows,
        "more_queues": len(overview.queues) - len(rows),
        "queues_url": allowed_url(request, "queues"),
        "is_new": _is_new(overview, rows),
        "banners": [*unread_banners({**overview.unread, **figures.unread}), *notes()],
        "causes": cause_rows(request, causes[:CAUSES_SHOWN]),
        "more_causes": cause_rows(request, causes[CAUSES_SHOWN:CAUSES_LISTED]),
        "unlisted_causes": len(causes) - CAUSES_LISTED,
        "read_at": moment(facts.read_at),
        **button_context(request),
        "past": _("7 days") if past and span.name == "week" else _("24 hours"),
        "incidents": _incidents(request, failures),
        "has_dead": any(each.dead for each in failures[:INCIDENTS_LIMIT]),
        "incidents_url": allowed_url(request, "incidents"),
        "failing": _failing(request, by_task),
        "slowest": _slowest(request, by_task),
        **past,
    }


class Tiles(NamedTuple):
    """The figures of all queues together: the important ones are larger."""

    main: list[Tile]
    others: list[Tile]

    @property
    def columns(self) -> int:
        """How many of the others are in a row. In rows of a given length, a single one could be left over."""
        count = len(self.others)
        return count if count <= IN_ONE_ROW else math.ceil(count / 2)


def tiles(request: HttpRequest, overview: stats.Overview) -> Tiles:
    """Return the figures of all queues together."""
    return Tiles(list(_main_tiles(request, overview)), list(_other_tiles(request, overview)))


def _main_tiles(request: HttpRequest, overview: stats.Overview) -> Iterator[Tile]:
    """Yield the figures that say whether the queue works."""
    oldest, due = overview.oldest_due_seconds, jobs_url(request, "due")
    yield Tile(pgettext("jobs", "due"), overview.due, due, held_note(overview))
    yield Tile(_("oldest due"), "–" if oldest is None else seconds_text(oldest), due)
    yield Tile(_("running"), overview.running, jobs_url(request, "running"), prefetched_note(overview))
    dead = overview.dead_24h
    yield Tile(_("dead in 24 h"), dead, jobs_url(request, "dead", since="day"), is_bad=dead.value > 0)
    rate = rate_text(overview.enqueued_per_minute, is_estimate=overview.enqueued_is_estimate)
    enqueued = _("%(count)s enqueued") % {"count": rate}
    yield Tile(_("finished per min"), rate_text(overview.finished_per_minute), note=enqueued)
    workers = allowed_url(request, "worker_changelist")
    is_unserved = overview.workers == 0 and (overview.due + overview.held).value > 0
    yield Tile(_("workers"), figure_text(overview.workers), workers, is_bad=is_unserved)


def _other_tiles(request: HttpRequest, overview: stats.Overview) -> Iterator[Tile]:
    """Yield the other figures. Rare ones are left out if they are 0."""
    yield Tile(_("slots busy"), slots_text(overview), allowed_url(request, "worker_changelist"))
    yield Tile(_("scheduled"), overview.scheduled, jobs_url(request, "scheduled"))
    yield Tile(_("retrying"), overview.retrying, jobs_url(request, "retrying"))
    if overview.held.value:
        yield Tile(_("held"), overview.held, allowed_url(request, "limits"), _("their limit admits none of them now"))
    if overview.paused.value:
        yield Tile(_("paused"), overview.paused, jobs_url(request, "paused"))
    if overview.unknown.value:
        note = _("workers release them")
        yield Tile(_("unknown"), overview.unknown, jobs_url(request, "unknown"), note, is_bad=True)
    if overview.suspended.value:
        yield Tile(_("suspended"), overview.suspended, note=_("scheduled or retrying"))
    if overview.waiting.value:
        note = _("for other jobs")
        yield Tile(_("waiting"), overview.waiting, jobs_url(request, "waiting"), note)
    if overview.lost.value:
        yield Tile(_("lost"), overview.lost, jobs_url(request, "lost"), is_bad=True)


def _is_new(overview: stats.Overview, rows: Sequence[dict[str, Any]]) -> bool:
    """Return whether nothing has happened yet: no queue has a job, a pause or a worker."""
    has_jobs = any(cell["jobs"].value or cell["note"] for row in rows for cell in row["cells"])
    return not overview.workers and not overview.unread and not has_jobs and not any(row["pause"] for row in rows)


def _incidents(request: HttpRequest, failures: Sequence[stats.FailureCount]) -> list[dict[str, str]]:
    """Return the failed attempts by task and exception class."""
    return [
        {
            "task": breakable(shortened(each.task_name)),
            "exception": breakable(shortened(each.exception_class))
            if each.exception_class
            else _("lost with its worker"),
            "failed": number(each.retried + each.dead),
            "dead": number(each.dead),
            "url": _incident(request, each),
        }
        for each in failures[:INCIDENTS_LIMIT]
    ]


def _incident(request: HttpRequest, failure: stats.FailureCount) -> str:
    """Return the URL of the incident of these failures, or of the task's jobs if none of them is dead."""
    if not failure.dead:
        return allowed_url(request, "job_changelist", task=failure.task_name)
    since = "week" if activity.chosen_span(request).name == "week" else "day"
    error = failure.exception_class or NO_CLASS
    return allowed_url(request, "incidents", task=failure.task_name, error=error, since=since)


def _failing(request: HttpRequest, tasks: Sequence[stats.TaskThroughput]) -> list[dict[str, str]]:
    """Return the tasks with most failures: each with its figure, and a note about it."""
    failing = sorted((task for task in tasks if task.counts.failed), key=lambda task: -task.counts.failed)
    return [
        {
            "task": breakable(shortened(task.name)),
            "figure": number(task.counts.failed),
            "note": _("%(share)s of the attempts") % {"share": percent(_failed_share(task.counts))},
            "url": allowed_url(request, "deadjob_changelist", task=task.name, since="day"),
        }
        for task in failing[:TASKS_LIMIT]
    ]


def _failed_share(counts: stats.AttemptCounts) -> float:
    return counts.failed / (counts.failed + counts.succeeded)


def _slowest(request: HttpRequest, tasks: Sequence[stats.TaskThroughput]) -> list[dict[str, str]]:
    timed = [(task.run.p95, task) for task in tasks if task.run.p95 is not None]
    return [
        {
            "task": breakable(shortened(task.name)),
            "figure": percentile_text(p95),
            "note": _("%(count)s attempts") % {"count": number(task.run.count)},
            "url": allowed_url(request, "job_changelist", task=task.name),
        }
        for p95, task in sorted(timed, key=lambda each: -each[0])[:TASKS_LIMIT]
    ]


def _document(request: HttpRequest, alias: str) -> dict[str, Any]:
    return document_of(current(alias), Words(with_keys=private.may_view(request)))


OVERVIEW: Final = ConsolePage("overview", gettext_lazy("Overview"), _context, document=_document)
