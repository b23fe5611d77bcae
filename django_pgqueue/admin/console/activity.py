"""Show the attempts of a period as charts and as a table: how many ended, how long they waited, how long they ran.

The overview and the page of a queue show it. The figures come from the counts that workers write, so the last seconds
are missing, and everything is missing if `PGQUEUE["STATS"]` is off.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.admin import charts, databases
from django_pgqueue.admin.charts import ChartValues, Period, number_text, seconds_text
from django_pgqueue.admin.formatting import moment
from django_pgqueue.admin.past_acts import chart_marks

SPAN: Final = "span"
FIGURES: Final = "figures"
"""The parameters of the URL: the period, and whether to show the table."""
MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Span(NamedTuple):
    """A period to choose, which ends now, and the length of the slots into which charts divide it."""

    name: str
    label: Promise | str
    length: timedelta
    slot: timedelta


SPANS: Final = (
    Span("hour", gettext_lazy("1 hour"), HOUR, MINUTE),
    Span("day", gettext_lazy("24 hours"), timedelta(days=1), HOUR),
    Span("week", gettext_lazy("7 days"), timedelta(days=7), HOUR),
)


def chosen_span(request: HttpRequest) -> Span:
    """Return the period that the URL names. Without a valid name, it is the first one."""
    return next((span for span in SPANS if span.name == request.GET.get(SPAN)), SPANS[0])


def activity_context(request: HttpRequest, alias: str, *, queue: str | None = None) -> dict[str, Any]:
    """Return the variables of the template `pgqueue/admin/console/activity.html`. Runs at most six statements."""
    span, figures = chosen_span(request), request.GET.get(FIGURES)
    since = _floor(datetime.now(UTC) - span.length, span.slot)
    is_hourly = span.slot == HOUR
    found = stats.throughput(since, queue=queue, hourly=is_hourly, with_failures=False, database=alias)
    period = Period(found.since, found.until - MINUTE)  # the running minute is not over
    marks = chart_marks(request, alias, found.since, found.until, queue=queue)
    points = [point for point in found.points if point.starts_at < period.until]
    drawn = _charts(period, span, points, marks.marks)
    others = {name: value for name, value in request.GET.items() if name not in (SPAN, FIGURES, databases.PARAMETER)}
    page = partial(databases.link, request, request.path, **others)
    rows = [_row(point) for point in reversed(points)] if FIGURES in request.GET else []
    return {
        "activity": {"drawn": drawn, "rows": rows},
        "spans": [(each.label, page(span=each.name, figures=figures), each is span) for each in SPANS],
        "figures_url": page(span=span.name, figures=None if figures else "1"),
        "has_figures": bool(figures),
        "marks": [{**mark._asdict(), "moment": moment(mark.at)} for mark in marks.marks],
        "marks_are_cut": marks.is_cut,
    }


def _charts(
    period: Period, span: Span, points: Sequence[stats.Point], marks: Sequence[charts.Mark]
) -> list[charts.Chart]:
    slots = list(_slots(period, span.slot))
    rates = [
        charts.Series("failed", _("failed"), _rates(slots, points, "failed")),
        charts.Series("succeeded", _("completed"), _rates(slots, points, "succeeded")),
    ]
    read = [charts.Slot(point.starts_at, point.seconds) for point in points]
    wait, run = _percentiles([point.wait for point in points]), _percentiles([point.run for point in points])
    return [
        charts.bars(ChartValues("attempts", _("Attempts per minute"), period, slots, rates, marks)),
        charts.lines(ChartValues("wait", _("Wait before the start"), period, read, wait, marks)),
        charts.lines(ChartValues("run", _("Run time"), period, read, run, marks)),
    ]


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


def _row(point: stats.Point) -> dict[str, str]:
    """Return a line of the table."""
    wait, run = point.wait, point.run
    durations = {"wait_p50": wait.p50, "wait_p95": wait.p95, "run_p50": run.p50, "run_p95": run.p95}
    return {
        "at": moment(point.starts_at),
        "length": seconds_text(point.seconds),
        "succeeded": number_text(point.per_minute(point.counts.succeeded)),
        "failed": number_text(point.per_minute(point.counts.failed)),
        **{name: "–" if seconds is None else seconds_text(seconds) for name, seconds in durations.items()},
    }
