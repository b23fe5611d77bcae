"""Charts as inline SVG: the geometry of bars, lines, grids and marks, as text that a template writes into attributes.

The pages of the console call it, and `templates/pgqueue/admin/chart.html` draws the result. The functions are pure.
Three rules hold for every chart:

* The SVG contains shapes only, and is stretched to the width of the page. All text is HTML beside it, so that it stays
  readable on a phone.
* Series differ without colour: bars that show failures are hatched, and lines have their own dashes.
* Each slot has a tooltip, and the page has the same figures as a table for screen readers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from django_pgqueue.display import duration, full_date

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
LABELS: Final = 3
"""Labels of the time axis: at its ends and in its middle. A full date takes two lines on a phone."""
DURATION_STEPS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 10.0, 20.0, 60.0, 120.0, 240.0, 600.0),
    *(1200.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 172800.0, 345600.0, 864000.0, 1728000.0, 5184000.0),
)
"""The ends of an axis of seconds. Half of each is a round duration too."""
SMALLEST_BAR: Final = 1.5
"""Height of a bar of a value above 0, so that one failure among thousands is visible."""


@dataclass(frozen=True)
class Axis:
    """A vertical axis: the value at its end, and how a value is written."""

    top: float
    text: Callable[[float], str]

    @property
    def labels(self) -> list[str]:
        """The labels from the top to the bottom."""
        return [self.text(self.top), self.text(self.top / 2), self.text(0.0)]

    def y(self, value: float) -> float:
        """Return the vertical position of a value."""
        return HEIGHT * (1 - min(value / self.top, 1.0))


class Period(NamedTuple):
    """The period of the time axis."""

    since: datetime
    until: datetime

    def x(self, at: datetime) -> float:
        """Return the horizontal position of a moment. Moments outside the period are at its ends."""
        share = (at - self.since) / (self.until - self.since)
        return WIDTH * min(max(share, 0.0), 1.0)

    def labels(self) -> list[str]:
        """Return the labels of the time axis."""
        step = (self.until - self.since) / (LABELS - 1)
        return [full_date(self.since + number * step) for number in range(LABELS)]


def top_of_number(highest: float) -> float:
    """Return a round number that is at least `highest`: 1, 2, 4 or 10 times a power of ten, and at least 2."""
    power = 10.0 ** math.floor(math.log10(max(highest, 2.0)))
    return next(step * power for step in (1, 2, 4, 10) if step * power >= max(highest, 2.0))


def top_of_duration(highest: float) -> float:
    """Return a round duration, in seconds, that is at least `highest`."""
    index = bisect_left(DURATION_STEPS, highest)
    return DURATION_STEPS[index] if index < len(DURATION_STEPS) else highest


def number_text(value: float) -> str:
    """Return a rate: with a decimal below 10, and with separators."""
    rounded = round(value, 1)
    return f"{rounded:,.1f}" if rounded < 10 and rounded != int(rounded) else f"{value:,.0f}"


def rate_text(value: float | None, *, is_estimate: bool = False) -> str:
    """Return a rate, with a sign before an estimate. None, a rate that is not known, is a dash."""
    if value is None:
        return "–"
    return f"≈ {number_text(value)}" if is_estimate else number_text(value)


def seconds_text(value: float) -> str:
    """Return a duration in seconds as text."""
    return duration(timedelta(seconds=value)) if value else "0"


# ---------------------------------------------------------------------------- drawing


class Slot(NamedTuple):
    """A part of the period that a value belongs to."""

    starts_at: datetime
    seconds: float


class Series(NamedTuple):
    """The values of one series, one for each slot. None: there is no value."""

    name: str
    """The CSS class of its shapes is `pgqueue-series-<name>`."""
    label: Promise | str
    values: Sequence[float | None]


class Mark(NamedTuple):
    """Something that happened at a moment, such as a deploy."""

    at: datetime
    label: str
    kind: str = "release"
    """The CSS class of its line is `pgqueue-mark-<kind>`, which has its own dashes."""
    url: str = ""


class ChartValues(NamedTuple):
    """The content of a chart: series with a value for each slot, and marks."""

    name: str
    title: Promise | str
    period: Period
    slots: Sequence[Slot]
    series: Sequence[Series]
    marks: Iterable[Mark] = ()


class Bar(NamedTuple):
    """A rectangle, as the values of its attributes."""

    name: str
    x: str
    y: str
    width: str
    height: str


class Line(NamedTuple):
    """A line, as the value of its attribute `d`."""

    name: str
    path: str


class ChartSlot(NamedTuple):
    """A slot: its area, which shows the tooltip, and its bars."""

    text: str
    area: Bar
    bars: Sequence[Bar]


@dataclass(frozen=True)
class Chart:
    """The shapes and texts that the template draws.

    All positions are texts, because a template would write numbers in the user's format.
    """

    name: str
    title: Promise | str
    summary: str
    """Read by screen readers instead of the shapes."""
    legend: Sequence[Series]
    groups: Sequence[ChartSlot]
    lines: Sequence[Line]
    marks: Sequence[tuple[str, str, str]]
    """The horizontal position, the text and the kind of each mark."""
    y_labels: Sequence[str]
    x_labels: Sequence[str]
    is_empty: bool

    @property
    def view_box(self) -> str:
        return f"0 0 {WIDTH:g} {HEIGHT:g}"


def bars(given: ChartValues) -> Chart:
    """Return a chart of stacked bars, the first series at the bottom. The values are numbers per minute."""
    sums = [
        sum(value or 0.0 for value in values) for values in zip(*(each.values for each in given.series), strict=True)
    ]
    axis = Axis(top_of_number(max(sums, default=0.0)), number_text)
    return _chart(given, axis, stacks=[_stack(given, axis, index) for index in range(len(given.slots))])


def lines(given: ChartValues) -> Chart:
    """Return a chart of lines. The values are seconds. A line has a gap where a slot is missing or has no value."""
    highest = max((value for each in given.series for value in each.values if value is not None), default=0.0)
    axis = Axis(top_of_duration(highest), seconds_text)
    drawn = [Line(each.name, _path(given.period, axis, given.slots, each.values)) for each in given.series]
    return _chart(given, axis, drawn=drawn)


def _chart(
    given: ChartValues, axis: Axis, *, stacks: Sequence[Sequence[Bar]] | None = None, drawn: Sequence[Line] = ()
) -> Chart:
    period = given.period
    groups = [
        ChartSlot(_tooltip(given, axis, index), _area(period, slot), stacks[index] if stacks else ())
        for index, slot in enumerate(given.slots)
    ]
    inside = [mark for mark in given.marks if period.since <= mark.at]  # the latest are at the right end
    return Chart(
        name=given.name,
        title=given.title,
        summary=_summary(given, axis),
        legend=given.series,
        groups=groups,
        lines=[line for line in drawn if line.path],
        marks=[(_position(period.x(mark.at)), f"{full_date(mark.at)} {mark.label}", mark.kind) for mark in inside],
        y_labels=axis.labels,
        x_labels=period.labels(),
        is_empty=not any(value for each in given.series for value in each.values),
    )


def _stack(given: ChartValues, axis: Axis, index: int) -> list[Bar]:
    area, y, found = _area(given.period, given.slots[index]), HEIGHT, []
    for each in given.series:
        if value := each.values[index]:
            height = min(max(HEIGHT - axis.y(value), SMALLEST_BAR), y)
            y -= height
            found.append(Bar(each.name, area.x, _position(y), area.width, _position(height)))
    return found


def _area(period: Period, slot: Slot) -> Bar:
    """Return the whole height of a slot, with a gap of a tenth between two slots."""
    start = period.x(slot.starts_at)
    width = period.x(slot.starts_at + timedelta(seconds=slot.seconds)) - start
    return Bar("area", _position(start + width / 20), "0", _position(width * 0.9), _position(HEIGHT))


def _path(period: Period, axis: Axis, slots: Sequence[Slot], values: Sequence[float | None]) -> str:
    points = [(slot, _position(axis.y(value))) for slot, value in zip(slots, values, strict=True) if value is not None]
    runs: list[list[tuple[Slot, str]]] = []
    for slot, y in points:
        if runs and _is_next(runs[-1][-1][0], slot):
            runs[-1].append((slot, y))
        else:
            runs.append([(slot, y)])
    return "".join(_run(period, run) for run in runs)


def _is_next(before: Slot, slot: Slot) -> bool:
    """Return whether a slot begins where the one before it ends, or at least before another one would fit between."""
    return (slot.starts_at - before.starts_at).total_seconds() < 2 * before.seconds


def _run(period: Period, run: Sequence[tuple[Slot, str]]) -> str:
    """Return the line through the middles of adjacent slots. A slot without a neighbour has a line of its width."""
    if len(run) > 1:
        return "M" + "L".join(f"{_middle(period, slot)} {y}" for slot, y in run)
    [(slot, y)] = run
    end = period.x(slot.starts_at + timedelta(seconds=slot.seconds))
    return f"M{_position(period.x(slot.starts_at))} {y}H{_position(end)}"


def _middle(period: Period, slot: Slot) -> str:
    return _position(period.x(slot.starts_at + timedelta(seconds=slot.seconds / 2)))


def _position(value: float) -> str:
    return f"{value:.2f}"


def _tooltip(given: ChartValues, axis: Axis, index: int) -> str:
    values = [(each.label, each.values[index]) for each in given.series]
    texts = [f"{label} {axis.text(value)}" for label, value in values if value is not None]
    return f"{full_date(given.slots[index].starts_at)}: {', '.join(texts) or '–'}"


def _summary(given: ChartValues, axis: Axis) -> str:
    """Return the title, the period, and the highest value of each series with its time."""
    found = [f"{given.title}, {full_date(given.period.since)} – {full_date(given.period.until)}"]
    for each in given.series:
        values = [(value, slot) for slot, value in zip(given.slots, each.values, strict=True) if value is not None]
        if values:
            value, slot = max(values)
            words = {"label": each.label, "value": axis.text(value), "at": full_date(slot.starts_at)}
            found.append(_("%(label)s at most %(value)s, at %(at)s") % words)
    return ". ".join(found) + "."
