"""The page *Incidents*: the dead jobs of a time span by task and exception class, and one of these groups in detail.

The detail shows the group by error message, the latest traceback, and which arguments differ between the latest jobs.
All three need the permission to view arguments.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db.models import TextField
from django.db.models.functions import Cast, Left, Right
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_pgqueue import acts, stats
from django_pgqueue.admin import databases, private
from django_pgqueue.admin.chart_scales import highest_shown
from django_pgqueue.admin.charts import SMALLEST_BAR
from django_pgqueue.admin.formatting import breakable, full_date, moment, shortened, visible
from django_pgqueue.admin.job.list_pages import as_parameter
from django_pgqueue.admin.job.named_call import names_of_positions
from django_pgqueue.admin.job.tracebacks import pieces
from django_pgqueue.admin.list_filters import SPAN_LABELS, as_input, instant_of, time_of
from django_pgqueue.admin.navigation import page_url
from django_pgqueue.display import number, shown_arguments
from django_pgqueue.ground.error_messages import WHOLE_MESSAGE
from django_pgqueue.job_search import NO_CLASS
from django_pgqueue.models import Execution, Job
from django_pgqueue.stats import Count, Incident, Incidents, MessageGroup
from django_pgqueue.stats.incident_groups import ReleaseGroup, incident_edits, incident_releases

from .page import ConsolePage

WIDTH: Final = 120
HEIGHT: Final = 24
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
BARS: Final = 40
GAP_FROM, GAP_TO = 3.0, 6.0
"""The gap in the bar of a spike, which would flatten the others."""
GROUPS_SHOWN: Final = 50
MESSAGES_SHOWN: Final = 20
DEFAULT_SPAN: Final = "day"
EVERY: Final = "all"
ARGUMENTS_LIMIT: Final = 10_000
ERROR_LIMIT: Final = 2_000
TRACEBACK_LIMIT: Final = 20_000
"""Characters that are read of each value. PostgreSQL cuts them."""
EXAMPLES: Final = 5
"""Different values shown of an argument."""
MISSING: Final = "–"
"""Shown for a call that does not pass the argument."""
LOST: Final = _("lost with its process or worker")


def sparkline(points: Sequence[tuple[datetime, float]]) -> dict[str, Any] | None:
    """Return the chart of a rate, given in order; None for fewer than two points. Each bar shows the highest rate.

    A point is a minute, or an hour whose minutes were merged, which has a bar as long as an hour. The times and the
    peak are for a sentence, which is the tooltip and which screen readers read.
    """
    if len(points) < 2:
        return None
    first, last = points[0][0], points[-1][0]
    span = (last - first + _length(last, last)).total_seconds()
    highest = [0.0] * BARS
    for at, rate in points:
        start = (at - first).total_seconds() / span * BARS
        end = start + _length(at, last).total_seconds() / span * BARS
        for place in range(int(start), min(max(int(start) + 1, round(end)), BARS)):
            highest[place] = max(highest[place], rate)
    peak, top = max(highest), highest_shown(highest) or 1.0
    bars = [bar for place, rate in enumerate(highest) if rate for bar in _bars(place, rate / top)]
    ends = {"first": full_date(first), "last": full_date(last)}
    values = {"peak": number(peak, 1), "top": number(top, 1), "is_cut": peak > top}
    return {"bars": bars, **ends, **values, "width": WIDTH, "height": HEIGHT}


def _bars(place: int, share: float) -> Iterator[dict[str, str]]:
    """Yield the bar of a rate, as a share of the highest one that is shown. The bar of a spike has a gap near its top.

    The bar of a single failure is visible beside thousands.
    """
    step = WIDTH / BARS
    parts = [(0.0, GAP_FROM), (GAP_TO, HEIGHT)] if share > 1 else [(HEIGHT - max(share * HEIGHT, SMALLEST_BAR), HEIGHT)]
    for y, end in parts:
        sizes = {"x": place * step, "y": y, "width": step - 0.5, "height": end - y}
        yield {name: f"{size:.1f}" for name, size in sizes.items()}


def _length(at: datetime, last: datetime) -> timedelta:
    """Return how long a point is: the minutes of the last two hours are not merged."""
    is_hour = (at.minute, at.second) == (0, 0) and last - at > 2 * HOUR
    return HOUR if is_hour else MINUTE


def _context(request: HttpRequest, alias: str) -> dict[str, Any]:
    chosen = request.GET.get("since") or (DEFAULT_SPAN if not request.GET.get("until") else EVERY)
    until = time_of(request.GET.get("until"))
    found = stats.incidents(instant_of(chosen, datetime.now(UTC)), until, alias)
    is_complete = found.complete_since is None
    groups = [_row(request, group, chosen, is_complete=is_complete) for group in found.groups[:GROUPS_SHOWN]]
    opened = _opened(request, found)
    return {
        "spans": _spans(request, chosen),
        "since_value": as_input(time_of(chosen)),
        "until_value": as_input(until),
        "zone": timezone.get_current_timezone_name(),
        "groups": groups,
        "hidden_groups": len(found.groups) - len(groups),
        "jobs": str(Count(found.jobs, is_complete)),
        "scope": full_date(found.complete_since) if found.complete_since else "",
        "detail": None if opened is None else _detail(request, alias, opened, found, chosen),
        "may_view": private.may_view(request),
        "hidden_note": private.LIST_NOTE,
    }


def _spans(request: HttpRequest, chosen: str) -> list[dict[str, Any]]:
    """Return links to the page for other time spans."""
    return [
        {"label": label, "url": databases.link(request, request.path, since=name), "is_current": chosen == name}
        for name, label in (*SPAN_LABELS.items(), (EVERY, _("All")))
    ]


def _row(request: HttpRequest, group: Incident, chosen: str, *, is_complete: bool) -> dict[str, Any]:
    """Return a group as the template shows it. Its links name exactly these jobs."""
    names = {"task": group.task_name, "error": group.exception_class or NO_CLASS}
    return {
        "group": group,
        "task": breakable(group.task_name),
        "error": breakable(shortened(group.exception_class)) if group.exception_class else LOST,
        "jobs": str(Count(group.jobs, is_complete)),
        "first": moment(group.first_at),
        "last": moment(group.last_at),
        "sparkline": sparkline(group.failures),
        "url": databases.link(request, request.path, since=chosen, until=request.GET.get("until") or None, **names),
        **_links(request, group, group),
    }


def _links(request: HttpRequest, group: Incident, part: Incident | MessageGroup) -> dict[str, str]:
    """Return the URLs of the list of a part of a group, and of the previews of its acts, or "" without permission."""
    bounds = {"since": part.first_at.isoformat(), "until": as_parameter(part.last_at), "task": group.task_name}
    message = {"message": WHOLE_MESSAGE + part.shape} if isinstance(part, MessageGroup) else {}
    listed = {"error": group.exception_class or NO_CLASS, **bounds, **message}
    chosen = {"state": "dead", "error": group.exception_class, **bounds, **message}
    return {
        "list_url": page_url(request, "deadjob_changelist", **listed),
        "retry_url": _act_url(request, acts.RETRY, chosen),
        "acknowledge_url": _act_url(request, acts.ACKNOWLEDGE, chosen),
    }


def _act_url(request: HttpRequest, act: acts.JobAct, chosen: Mapping[str, str]) -> str:
    """Return the URL of the preview of a bulk act, or "" if the user may not request it."""
    return page_url(request, "bulk_preview", action=act.name, **chosen) if act.is_allowed(request.user) else ""


def _opened(request: HttpRequest, found: Incidents) -> Incident | None:
    """Return the group that the URL names, otherwise the largest one; None without any."""
    task_name, error = request.GET.get("task"), request.GET.get("error")
    if task_name is None:
        return found.groups[0] if found.groups else None
    wanted = (task_name, "" if error == NO_CLASS else error)
    return next((group for group in found.groups if (group.task_name, group.exception_class) == wanted), None)


def _detail(request: HttpRequest, alias: str, group: Incident, found: Incidents, chosen: str) -> dict[str, Any]:
    """Return one group: its messages, the error of its latest job, and the arguments of its latest jobs."""
    latest = group.sample_ids[0]
    may_view = private.may_view(request)
    cut = {"short_error": Left("error", ERROR_LIMIT), "end": Right("traceback", TRACEBACK_LIMIT)}
    executions = Execution.objects.using(alias).filter(job_id=latest).order_by("-job_id", "-id")
    execution = executions.annotate(**cut).values(*cut).first() if may_view else None
    error, traceback = (execution["short_error"], execution["end"]) if execution else ("", "")
    parts = stats.incident_messages(group, found, alias) if may_view and group.exception_class else ()
    is_complete = found.complete_since is None
    return {
        "group": _row(request, group, chosen, is_complete=is_complete),
        "messages": [_message(request, group, part, is_complete=is_complete) for part in parts[:MESSAGES_SHOWN]],
        "hidden_messages": len(parts[MESSAGES_SHOWN:]),
        "releases": _releases(alias, group, found),
        "edited": incident_edits(group, found, alias),
        "job": f"#{latest}",
        "job_url": page_url(request, "job_change", latest),
        "error": visible(error),
        "pieces": pieces(visible(traceback)) if traceback else [],
        "compared": _arguments(alias, group) if may_view else None,
    }


def _message(request: HttpRequest, group: Incident, part: MessageGroup, *, is_complete: bool) -> dict[str, Any]:
    """Return the jobs of a group with one message, as the template shows them."""
    return {
        "jobs": str(Count(part.jobs, is_complete)),
        "text": visible(part.shape) or _("(empty)"),
        "first": moment(part.first_at),
        "last": moment(part.last_at),
        **_links(request, group, part),
    }


def _releases(alias: str, group: Incident, found: Incidents) -> list[dict[str, str]]:
    """Return the releases in which the jobs of a group died. Return none if no worker of them is recorded any more."""
    parts = incident_releases(group, found, alias)
    is_complete = found.complete_since is None
    return [
        {
            "name": _release_text(part),
            "jobs": str(Count(part.jobs, is_complete)),
            "first": moment(part.first_at),
            "last": moment(part.last_at),
        }
        for part in parts
        if any(each.release is not None for each in parts)
    ]


def _release_text(part: ReleaseGroup) -> str:
    if part.release is None:
        return str(_("not known: the record of the worker is removed"))
    return shortened(part.release) or str(_("version %(version)s") % {"version": shortened(part.version or "")})


def _arguments(alias: str, group: Incident) -> Compared:
    jobs = Job.objects.using(alias).filter(pk__in=group.sample_ids)
    text = Left(Cast("arguments", TextField()), ARGUMENTS_LIMIT)
    return compare(group.task_name, list(jobs.annotate(text=text).order_by("-pk").values_list("text", flat=True)))


# ---------------------------------------------------------------------------- arguments


class Argument(NamedTuple):
    """An argument of the calls: its values, the most frequent first, with the number of calls that pass each."""

    name: str
    values: tuple[tuple[str, int], ...]
    more: int
    """How many further different values there are."""

    @property
    def differs(self) -> bool:
        """Whether the calls pass different values."""
        return len(self.values) > 1


class Compared(NamedTuple):
    """The arguments of the calls, those that differ first; how many calls could be read, and why others could not."""

    arguments: list[Argument]
    calls: int
    note: str


def compare(task_name: str, texts: Sequence[str]) -> Compared:
    """Return the arguments of calls, given as stored text. Sensitive values are hidden before they are compared."""
    calls: list[dict[str, str]] = []
    note = ""
    for text in texts:
        shown = shown_arguments(task_name, text)
        note = note or shown.note
        if shown.text and (call := _call(task_name, shown.text)) is not None:
            calls.append(call)
    names = list(dict.fromkeys(name for call in calls for name in call))
    found = [_argument(name, calls) for name in names]
    return Compared(sorted(found, key=lambda each: not each.differs), len(calls), note)


def _call(task_name: str, text: str) -> dict[str, str] | None:
    """Return the values of a call by the names of its arguments; None if the text was cut or written by hand."""
    with suppress(ValueError, RecursionError, TypeError, AttributeError, KeyError):
        call = json.loads(text)
        names = names_of_positions(task_name)
        args = {next(names): _text(value) for value in call["args"]}
        return args | {str(name): _text(value) for name, value in call["kwargs"].items()}
    return None


def _text(value: Any) -> str:
    return shortened(json.dumps(value, ensure_ascii=False))


def _argument(name: str, calls: Sequence[Mapping[str, str]]) -> Argument:
    values = Counter(call.get(name, MISSING) for call in calls).most_common()
    return Argument(shortened(name), tuple(values[:EXAMPLES]), max(len(values) - EXAMPLES, 0))


INCIDENTS: Final = ConsolePage("incidents", _("Incidents"), _context)
