"""The page *Incidents*: the dead jobs of a time span by task and exception class, and one of these groups in detail.

The detail shows the latest traceback and which arguments differ between the latest jobs. Both need the permission to
view arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from django.db.models import TextField
from django.db.models.functions import Cast, Left, Right
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgqueue import stats
from django_pgqueue.admin import databases, private
from django_pgqueue.admin.formatting import breakable, full_date, moment, shortened, visible
from django_pgqueue.admin.forms.argument_differences import Compared, compare
from django_pgqueue.admin.job.list_pages import as_parameter
from django_pgqueue.admin.job.tracebacks import Piece, pieces
from django_pgqueue.admin.links import page_url
from django_pgqueue.admin.list_filters import SPAN_LABELS, SPANS, moment_of, time_of
from django_pgqueue.job_search import NO_CLASS
from django_pgqueue.models import Execution, Job
from django_pgqueue.stats import Incident, Incidents

from .page import ConsolePage

WIDTH: Final = 120
HEIGHT: Final = 24
BARS: Final = 40
GROUPS_SHOWN: Final = 50
DEFAULT_SPAN: Final = "day"
EVERY: Final = "all"
ARGUMENTS_LIMIT: Final = 10_000
ERROR_LIMIT: Final = 2_000
TRACEBACK_LIMIT: Final = 20_000
"""Characters that are read of each value. PostgreSQL cuts them."""
LOST: Final = _("lost with its process or worker")


class IncidentBar(NamedTuple):
    """A rectangle, as the values of its attributes."""

    x: str
    y: str
    width: str
    height: str


class Sparkline(NamedTuple):
    """The bars, and a sentence for the tooltip and for screen readers."""

    bars: list[IncidentBar]
    first: str
    last: str
    peak: str
    width: int = WIDTH
    height: int = HEIGHT


def sparkline(points: Sequence[tuple[datetime, float]]) -> Sparkline | None:
    """Return the chart of a rate, given in order; None for fewer than two points. Each bar shows the highest rate."""
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    span = (last - first).total_seconds() or 1.0
    highest = [0.0] * BARS
    for at, rate in points:
        place = min(int((at - first).total_seconds() / span * BARS), BARS - 1)
        highest[place] = max(highest[place], rate)
    peak = max(highest) or 1.0
    step = WIDTH / BARS
    bars = [
        IncidentBar(
            f"{place * step:.1f}",
            f"{HEIGHT - rate / peak * HEIGHT:.1f}",
            f"{step - 0.5:.1f}",
            f"{rate / peak * HEIGHT:.1f}",
        )
        for place, rate in enumerate(highest)
        if rate
    ]
    return Sparkline(bars, full_date(first), full_date(last), f"{peak:,.1f}")


class SpanLink(NamedTuple):
    """A link to the page for another time span."""

    label: Any
    url: str
    is_current: bool


class Detail(NamedTuple):
    """One group: the error of its latest job, and the arguments of its latest jobs."""

    group: dict[str, Any]
    job: str
    job_url: str
    error: str
    pieces: list[Piece]
    compared: Compared | None


def _context(request: HttpRequest, alias: str) -> dict[str, Any]:
    chosen = request.GET.get("since") or (DEFAULT_SPAN if not request.GET.get("until") else EVERY)
    until = time_of(request.GET.get("until"))
    found = stats.incidents(_beginning(chosen), until, alias)
    groups = [_row(request, group, chosen) for group in found.groups[:GROUPS_SHOWN]]
    opened = _opened(request, found)
    return {
        "spans": _spans(request, chosen),
        "since_value": _field(time_of(chosen)),
        "until_value": _field(until),
        "zone": timezone.get_current_timezone_name(),
        "groups": groups,
        "hidden_groups": len(found.groups) - len(groups),
        "jobs": f"{found.jobs:,}",
        "scope": full_date(found.complete_since) if found.complete_since else "",
        "detail": None if opened is None else _detail(request, alias, opened, chosen),
        "may_view": private.may_view(request),
        "hidden_note": private.LIST_NOTE,
    }


def _beginning(chosen: str) -> datetime | None:
    span = moment_of(chosen)
    if span is None:
        return None
    return span.at or datetime.now(UTC) - span.ago


def _field(at: datetime | None) -> str:
    return timezone.localtime(at).strftime("%Y-%m-%dT%H:%M:%S") if at else ""


def _spans(request: HttpRequest, chosen: str) -> list[SpanLink]:
    labels = {**SPAN_LABELS, EVERY: _("All")}
    return [
        SpanLink(label, databases.link(request, request.path, since=name), chosen == name)
        for name, label in labels.items()
        if name in SPANS or name == EVERY
    ]


def _row(request: HttpRequest, group: Incident, chosen: str) -> dict[str, Any]:
    """Return a group as the template shows it. Its links name exactly these jobs."""
    error = group.exception_class or NO_CLASS
    bounds = {"since": group.first_at.isoformat(), "until": as_parameter(group.last_at)}
    names = {"task": group.task_name, "error": error}
    return {
        "group": group,
        "task": breakable(group.task_name),
        "error": breakable(shortened(group.exception_class)) if group.exception_class else LOST,
        "jobs": f"{group.jobs:,}",
        "first": moment(group.first_at),
        "last": moment(group.last_at),
        "sparkline": sparkline(group.failures),
        "url": databases.link(request, request.path, since=chosen, until=request.GET.get("until") or None, **names),
        "list_url": page_url(request, "deadjob_changelist", **names, **bounds),
        "retry_url": _retry_url(request, group, bounds),
    }


def _retry_url(request: HttpRequest, group: Incident, bounds: dict[str, str]) -> str:
    """Return the URL of the preview of a bulk retry, or "" if the user may not retry."""
    if not request.user.has_perm("pgqueue.retry_job"):
        return ""
    filters = {"action": "retry", "state": "dead", "task": group.task_name, "error": group.exception_class, **bounds}
    return page_url(request, "bulk_preview", **filters)


def _opened(request: HttpRequest, found: Incidents) -> Incident | None:
    """Return the group that the URL names, otherwise the largest one; None without any."""
    task_name, error = request.GET.get("task"), request.GET.get("error")
    if task_name is None:
        return found.groups[0] if found.groups else None
    wanted = (task_name, "" if error == NO_CLASS else error)
    return next((group for group in found.groups if (group.task_name, group.exception_class) == wanted), None)


def _detail(request: HttpRequest, alias: str, group: Incident, chosen: str) -> Detail:
    latest = group.sample_ids[0]
    may_view = private.may_view(request)
    cut = {"short_error": Left("error", ERROR_LIMIT), "end": Right("traceback", TRACEBACK_LIMIT)}
    executions = Execution.objects.using(alias).filter(job_id=latest).order_by("-job_id", "-id")
    execution = executions.annotate(**cut).values(*cut).first() if may_view else None
    error, traceback = (execution["short_error"], execution["end"]) if execution else ("", "")
    return Detail(
        _row(request, group, chosen),
        f"#{latest}",
        page_url(request, "job_change", latest),
        visible(error),
        pieces(visible(traceback)) if traceback else [],
        _arguments(alias, group) if may_view else None,
    )


def _arguments(alias: str, group: Incident) -> Compared:
    jobs = Job.objects.using(alias).filter(pk__in=group.sample_ids)
    text = Left(Cast("arguments", TextField()), ARGUMENTS_LIMIT)
    return compare(group.task_name, list(jobs.annotate(text=text).order_by("-pk").values_list("text", flat=True)))


INCIDENTS: Final = ConsolePage("incidents", _("Incidents"), _context)
