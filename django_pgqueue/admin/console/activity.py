"""Show the attempts of a period as charts and as a table: how many ended and failed, and how long they waited and ran.

The overview and the page of a queue show it, for all tasks or for one. The day before is drawn in grey, hour by hour,
because the counts of its minutes are merged. The figures come from the counts that workers write, so the last seconds
are missing, and everything is missing if `PGQUEUE["STATS"]` is off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext

from django_pgqueue import stats
from django_pgqueue.admin import charts, databases
from django_pgqueue.admin.chart_scales import number_text, percentile_text, percentiles_note, seconds_text
from django_pgqueue.admin.charts import ChartValues, Period
from django_pgqueue.admin.formatting import moment, visible
from django_pgqueue.admin.past_acts import chart_marks
from django_pgqueue.display import percent
from django_pgqueue.tasks import registry

SPAN: Final = "span"
FIGURES: Final = "figures"
TASK: Final = "task"
"""The parameters of the URL: the period, whether to show the table, and the task."""
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """A period to choose, which ends now, and the length of the slots into which charts divide it."""

    name: str
    label: Promise | str
    length: timedelta
    slot: timedelta


SPANS: Final = (
    Span("hour", gettext_lazy("1 hour"), HOUR, MINUTE),
    Span("day", gettext_lazy("24 hours"), DAY, HOUR),
    Span("week", gettext_lazy("7 days"), timedelta(days=7), HOUR),
)


def chosen_span(request: HttpRequest) -> Span:
    """Return the period that the URL names. Without a valid name, it is the first one."""
    return next((span for span in SPANS if span.name == request.GET.get(SPAN)), SPANS[0])


def chosen_task(request: HttpRequest) -> str | None:
    """Return the task that the URL names; None for all tasks."""
    name = request.GET.get(TASK, "").strip()
    return name if name and "\0" not in name else None


def activity_context(request: HttpRequest, alias: str, *, queue: str | None = None) -> dict[str, Any]:
    """Return the variables of the template `pgqueue/admin/console/activity.html`.

    Runs five statements, and up to two more for a queue.
    """
    span, task, has_figures = chosen_span(request), chosen_task(request), FIGURES in request.GET
    read = partial(stats.throughput, queue=queue, task=task, with_failures=False, database=alias)
    since = _floor(datetime.now(UTC) - span.length, span.slot)
    found = read(_floor(since, HOUR) - DAY, hourly=span.slot == HOUR)  # the day before comes with the period
    period = Period(since, found.until - MINUTE)  # the running minute is not over
    points = [_until(period.until, point) for point in found.points if since <= point.starts_at < period.until]
    earlier = [point for point in found.points if point.starts_at < found.until - DAY]
    marks = chart_marks(request, alias, since, found.until, queue=queue, task=task)
    return {
        "activity": {
            "drawn": _charts(period, span, points, earlier, marks.marks),
            "rows": [_row(point, earlier) for point in reversed(points)] if has_figures else [],
        },
        "has_figures": has_figures,
        "percentiles_note": percentiles_note(),
        "marks": [{**mark._asdict(), "moment": moment(mark.at)} for mark in marks.marks],
        "marks_are_cut": marks.is_cut,
        **_choices(request, span, task),
    }


def _choices(request: HttpRequest, span: Span, task: str | None) -> dict[str, Any]:
    """Return the links to other periods and to the table, and what the form for a task shows and sends."""
    others = {name: value for name, value in request.GET.items() if name not in (SPAN, FIGURES, databases.PARAMETER)}
    figures = request.GET.get(FIGURES)
    page = partial(databases.link, request, request.path, **others)
    return {
        "spans": [(each.label, page(span=each.name, figures=figures), each is span) for each in SPANS],
        "figures_url": page(span=span.name, figures=None if FIGURES in request.GET else "1"),
        "task": "" if task is None else visible(task),
        "task_names": [each.name for each in registry.all_tasks()],
        "hidden": [(name, value) for name, value in request.GET.items() if name != TASK],
        "all_tasks_url": page(span=span.name, figures=figures, task=None),
    }


def _charts(
    period: Period,
    span: Span,
    points: Sequence[stats.Point],
    earlier: Sequence[stats.Point],
    marks: Sequence[charts.Mark],
) -> list[charts.Chart]:
    slots = list(_slots(period, span.slot))
    rates = [
        charts.Series("failed", pgettext("attempts", "failed"), _rates(slots, points, "failed")),
        charts.Series("succeeded", _("completed"), _rates(slots, points, "succeeded")),
    ]
    read = [charts.Slot(point.starts_at, point.seconds) for point in points]
    wait, run = _percentiles([point.wait for point in points]), _percentiles([point.run for point in points])
    failing = [charts.Series("share", pgettext("attempts", "failed"), [failure_rate(point.counts) for point in points])]
    of_day = _("the day before, each hour")
    p95 = _("p95 the day before, each hour")
    before = partial(_before, earlier)
    return [
        charts.bars(
            ChartValues(
                "attempts", _("Attempts per minute"), period, slots, rates, marks, before(of_day, _ended_per_minute)
            )
        ),
        charts.shares(
            ChartValues(
                "failures",
                _("Failure rate"),
                period,
                read,
                failing,
                marks,
                before(of_day, lambda point: failure_rate(point.counts)),
            )
        ),
        charts.lines(
            ChartValues(
                "wait", _("Wait before the start"), period, read, wait, marks, before(p95, lambda point: point.wait.p95)
            )
        ),
        charts.lines(
            ChartValues("run", _("Run time"), period, read, run, marks, before(p95, lambda point: point.run.p95))
        ),
    ]


def _before(
    earlier: Sequence[stats.Point], label: str, value: Callable[[stats.Point], float | None]
) -> charts.Before | None:
    """Return the values of the day before at the times of this day; None if nothing was counted then."""
    if not earlier:
        return None
    slots = [charts.Slot(point.starts_at + DAY, point.seconds) for point in earlier]
    return charts.Before(label, slots, [value(point) for point in earlier])


def _ended_per_minute(point: stats.Point) -> float:
    return point.per_minute(point.counts.succeeded + point.counts.failed)


def failure_rate(counts: stats.AttemptCounts) -> float | None:
    """Return which part of the attempts that completed or failed has failed; None without such attempts."""
    ended = counts.succeeded + counts.failed
    return counts.failed / ended if ended else None


def _percentiles(durations: Sequence[stats.Durations]) -> list[charts.Series]:
    """Return the two lines of a chart of durations."""
    return [
        charts.Series("p50", "p50", [each.p50 for each in durations]),
        charts.Series("p95", "p95", [each.p95 for each in durations]),
    ]


def _slots(period: Period, length: timedelta) -> Iterator[charts.Slot]:
    """Yield the slots of a period. The last one ends with the period."""
    starts_at = period.since
    while starts_at < period.until:
        yield charts.Slot(starts_at, min(length, period.until - starts_at).total_seconds())
        starts_at += length


def _rates(slots: Sequence[charts.Slot], points: Iterable[stats.Point], name: str) -> list[float | None]:
    """Return the attempts per minute of each slot, from points that are minutes or hours."""
    counts: Counter[datetime] = Counter()
    length = timedelta(seconds=slots[0].seconds) if slots else HOUR
    for point in points:
        counts[_floor(point.starts_at, length)] += getattr(point.counts, name)
    return [counts[slot.starts_at] * 60 / slot.seconds for slot in slots]


def _floor(at: datetime, length: timedelta) -> datetime:
    return EPOCH + (at - EPOCH) // length * length


def _until(at: datetime, point: stats.Point) -> stats.Point:
    """Return a point with the length that it has until now: the running hour is not over."""
    return replace(point, seconds=min(point.seconds, int((at - point.starts_at).total_seconds())))


def _row(point: stats.Point, earlier: Sequence[stats.Point]) -> dict[str, str]:
    """Return a line of the table."""
    share = failure_rate(point.counts)
    before = next((each for each in earlier if timedelta() <= point.starts_at - DAY - each.starts_at < HOUR), None)
    wait, run = point.wait, point.run
    durations = {"wait_p50": wait.p50, "wait_p95": wait.p95, "run_p50": run.p50, "run_p95": run.p95}
    return {
        "at": moment(point.starts_at),
        "length": seconds_text(point.seconds),
        "succeeded": number_text(point.per_minute(point.counts.succeeded)),
        "failed": number_text(point.per_minute(point.counts.failed)),
        "share": "–" if share is None else percent(share),
        "before": "–" if before is None else number_text(_ended_per_minute(before)),
        **{name: percentile_text(seconds) for name, seconds in durations.items()},
    }
