"""Charts as inline SVG: the geometry of bars, lines, grids and marks, as text that a template writes into attributes.

The pages of the console call it, and `templates/pgqueue/admin/chart.html` draws the result. The functions are pure.
Four rules hold for every chart:

* The SVG with the shapes is stretched to the width of the page. All text is beside it, so that it stays readable on a
  phone: the labels of the time axis are in an SVG that is not stretched, because they stand at round times.
* Series differ without colour: bars that show failures are hatched, lines have their own dashes, and the day before is
  drawn as steps.
* Each slot has a tooltip, and the page has the same figures as a table for screen readers.
* A spike is cut off at the end of the axis, so that it does not flatten the rest. Its value is written above it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from django_pgqueue.admin.chart_ticks import ticks
from django_pgqueue.display import full_date, percent

from .chart_scales import (
    highest_shown,
    top_of_duration,
    top_of_number,
    top_of_share,
)
from .chart_scales import number_text as number_text
from .chart_scales import rate_text as rate_text
from .chart_scales import seconds_text as seconds_text

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
EDGE: Final = 10.0
"""Half of the width of a date, in percent of the narrowest chart."""
ROOM_FOR_VALUE: Final = 0.15
"""Part of the width that the value of a spike takes on a phone. A spike nearer to the last one has a sign only."""
ROOM_FOR_SIGN: Final = 0.02
SPIKES_LISTED: Final = 3
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

    def ticks(self) -> list[tuple[str, str, str]]:
        """Return the horizontal position in percent, the label and its anchor for each round time of the period."""
        places = [(self.x(at) / WIDTH * 100, label) for at, label in ticks(self.since, self.until)]
        return [(_position(x), label, _anchor(x)) for x, label in places]


# ---------------------------------------------------------------------------- drawing


class Slot(NamedTuple):
    """A part of the period that a value belongs to."""

    starts_at: datetime
    seconds: float

    @property
    def span(self) -> timedelta:
        return timedelta(seconds=self.seconds)


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


class Before(NamedTuple):
    """The values of one day before, moved to the times of the chart. None: there is no value."""

    label: Promise | str
    slots: Sequence[Slot]
    values: Sequence[float | None]

    def at(self, moment: datetime) -> float | None:
        """Return the value of the slot that contains a moment."""
        pairs = zip(self.slots, self.values, strict=True)
        return next((value for slot, value in pairs if timedelta() <= moment - slot.starts_at < slot.span), None)


class ChartValues(NamedTuple):
    """The content of a chart: series with a value for each slot, and marks."""

    name: str
    title: Promise | str
    period: Period
    slots: Sequence[Slot]
    series: Sequence[Series]
    marks: Iterable[Mark] = ()
    before: Before | None = None


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


class Cut(NamedTuple):
    """The sign of a value that is cut off: its horizontal position, how its text is aligned there, and its text."""

    x: str
    anchor: str
    text: str


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
    x_ticks: Sequence[tuple[str, str, str]]
    """The horizontal position in percent, the label and the anchor of each tick."""
    is_empty: bool
    before: str
    """The path of the day before; "" without values."""
    before_label: Promise | str
    cuts: Sequence[Cut]
    cut_note: str
    """Which values are cut off; "" if none is."""

    @property
    def view_box(self) -> str:
        return f"0 0 {WIDTH:g} {HEIGHT:g}"


def bars(given: ChartValues) -> Chart:
    """Return a chart of stacked bars, the first series at the bottom. The values are numbers per minute."""
    sums = [sum(value or 0.0 for value in values) for values in _by_slot(given)]
    axis = Axis(top_of_number(_highest_shown(given, sums)), number_text)
    return _chart(given, axis, sums, stacks=[_stack(given, axis, index) for index in range(len(given.slots))])


def lines(given: ChartValues) -> Chart:
    """Return a chart of lines. The values are seconds. A line has a gap where a slot is missing or has no value."""
    return _lines(given, top_of_duration, seconds_text)


def shares(given: ChartValues) -> Chart:
    """Return a chart of lines as `lines()` does. The values are shares from 0 to 1."""
    return _lines(given, top_of_share, percent)


def _lines(given: ChartValues, top_of: Callable[[float], float], text: Callable[[float], str]) -> Chart:
    peaks = [max((value for value in values if value is not None), default=None) for values in _by_slot(given)]
    axis = Axis(top_of(_highest_shown(given, peaks)), text)
    drawn = [Line(each.name, _path(given.period, axis, given.slots, each.values)) for each in given.series]
    return _chart(given, axis, peaks, drawn=drawn)


def _by_slot(given: ChartValues) -> Iterable[tuple[float | None, ...]]:
    """Return the values of all series, slot by slot."""
    return zip(*(each.values for each in given.series), strict=True)


def _highest_shown(given: ChartValues, peaks: Sequence[float | None]) -> float:
    """Return the value that the axis has to reach. A day before with more attempts is no spike of this day."""
    return max(highest_shown(peaks), highest_shown(given.before.values if given.before else ()))


def _chart(
    given: ChartValues,
    axis: Axis,
    peaks: Sequence[float | None],
    *,
    stacks: Sequence[Sequence[Bar]] | None = None,
    drawn: Sequence[Line] = (),
) -> Chart:
    period = given.period
    groups = [
        ChartSlot(_tooltip(given, axis, index), _area(period, slot), stacks[index] if stacks else ())
        for index, slot in enumerate(given.slots)
    ]
    inside = [mark for mark in given.marks if period.since <= mark.at]  # the latest are at the right end
    over = [(slot, peak) for slot, peak in zip(given.slots, peaks, strict=True) if peak and peak > axis.top]
    has_values = any(peaks) if stacks is not None else any(peak is not None for peak in peaks)
    before = _steps(period, axis, given.before)
    return Chart(
        name=given.name,
        title=given.title,
        summary=_summary(given, axis),
        legend=given.series,
        groups=groups,
        lines=[line for line in drawn if line.path],
        marks=[(_position(period.x(mark.at)), f"{full_date(mark.at)} {mark.label}", mark.kind) for mark in inside],
        y_labels=axis.labels,
        x_ticks=period.ticks(),
        is_empty=not (has_values or before),
        before=before,
        before_label=given.before.label if given.before else "",
        cuts=list(_cuts(period, axis, over)),
        cut_note=_cut_note(axis, over),
    )


def _cuts(period: Period, axis: Axis, over: Iterable[tuple[Slot, float]]) -> Iterator[Cut]:
    """Yield a sign for each value that is cut off, with the value where there is room for it."""
    last_sign = last_value = -1.0
    for slot, peak in over:
        share = period.x(slot.starts_at + slot.span / 2) / WIDTH
        if share - last_sign < ROOM_FOR_SIGN:
            continue
        has_room, last_sign = share - last_value >= ROOM_FOR_VALUE, share
        if has_room:
            last_value = share
        anchor = "start" if share < ROOM_FOR_VALUE / 2 else "end" if share > 1 - ROOM_FOR_VALUE / 2 else "middle"
        yield Cut(f"{100 * share:.2f}%", anchor, f"▲ {axis.text(peak)}" if has_room else "▲")


def _cut_note(axis: Axis, over: Sequence[tuple[Slot, float]]) -> str:
    """Return the highest values that are cut off, each with its time."""
    if not over:
        return ""
    highest = sorted(over, key=lambda each: -each[1])[:SPIKES_LISTED]
    pairs = [(axis.text(peak), full_date(slot.starts_at)) for slot, peak in highest]
    some = [_("%(value)s at %(at)s") % {"value": value, "at": at} for value, at in pairs]
    if len(over) > SPIKES_LISTED:
        some.append(_("%(count)s more") % {"count": len(over) - SPIKES_LISTED})
    return _("Cut off at %(top)s: %(values)s.") % {"top": axis.text(axis.top), "values": ", ".join(some)}


def _steps(period: Period, axis: Axis, before: Before | None) -> str:
    """Return the path of the day before: one step for each slot, as far as it is inside the period."""
    path = end = ""
    for slot, value in zip(before.slots, before.values, strict=True) if before else ():
        start, stop = _position(period.x(slot.starts_at)), _position(period.x(slot.starts_at + slot.span))
        if value is None or start == stop:
            continue
        y = _position(axis.y(value))
        path += f"{f'V{y}' if start == end else f'M{start} {y}'}H{stop}"
        end = stop
    return path


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
    width = period.x(slot.starts_at + slot.span) - start
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
    end = period.x(slot.starts_at + slot.span)
    return f"M{_position(period.x(slot.starts_at))} {y}H{_position(end)}"


def _middle(period: Period, slot: Slot) -> str:
    return _position(period.x(slot.starts_at + slot.span / 2))


def _anchor(x: float) -> str:
    """Return which part of a label is at its tick: near an end of the axis, the label stays inside the chart."""
    return "start" if x < EDGE else "end" if x > 100 - EDGE else "middle"


def _position(value: float) -> str:
    return f"{value:.2f}"


def _tooltip(given: ChartValues, axis: Axis, index: int) -> str:
    values = [(each.label, each.values[index]) for each in given.series]
    texts = [f"{label} {axis.text(value)}" for label, value in values if value is not None]
    starts_at = given.slots[index].starts_at
    before = given.before.at(starts_at) if given.before else None
    if given.before and before is not None:
        texts.append(f"{given.before.label} {axis.text(before)}")
    return f"{full_date(starts_at)}: {', '.join(texts) or '–'}"


def _summary(given: ChartValues, axis: Axis) -> str:
    """Return the title, the period, and the highest value of each series with its time."""
    found = [f"{given.title}, {full_date(given.period.since)} – {full_date(given.period.until)}"]
    shown = [(each.label, given.slots, each.values) for each in given.series]
    for label, slots, all_values in [*shown, *([given.before] if given.before else [])]:
        values = [(value, slot) for slot, value in zip(slots, all_values, strict=True) if value is not None]
        if values:
            value, slot = max(values)
            words = {"label": label, "value": axis.text(value), "at": full_date(slot.starts_at)}
            found.append(_("%(label)s at most %(value)s, at %(at)s") % words)
    return ". ".join(found) + "."
