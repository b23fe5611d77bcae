"""Charts as inline SVG: the geometry of bars, lines, grids and marks, as text that a template writes into attributes.

The pages of the console call it, and `templates/pgqueue/admin/chart.html` draws the result. The functions are pure.
Three rules hold for every chart:

* The SVG contains shapes only, and is stretched to the width of the page. All text is HTML beside it, so that it stays
  readable on a phone.
* Series differ without colour: bars that show failures are hatched, and lines have their own dashes.
* Each slot has a tooltip, and the page has the same figures as a table for screen readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from .axes import HEIGHT, WIDTH, Axis, Period, number_text, seconds_text, top_of_duration, top_of_number

SMALLEST_BAR: Final = 1.5
"""Height of a bar of a value above 0, so that one failure among thousands is visible."""


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
    marks: Sequence[tuple[str, str]]
    """The horizontal position and the text of each mark."""
    y_labels: Sequence[str]
    x_labels: Sequence[str]
    is_empty: bool

    @property
    def view_box(self) -> str:
        return f"0 0 {WIDTH:g} {HEIGHT:g}"


def bars(
    name: str,
    title: Promise | str,
    period: Period,
    slots: Sequence[Slot],
    series: Sequence[Series],
    marks: Iterable[Mark] = (),
) -> Chart:
    """Return a chart of stacked bars, the first series at the bottom. The values are numbers per minute."""
    sums = [sum(value or 0.0 for value in values) for values in zip(*(each.values for each in series), strict=True)]
    axis = Axis(top_of_number(max(sums, default=0.0)), number_text)
    stacks = [_stack(period, slot, axis, series, index) for index, slot in enumerate(slots)]
    return _chart(name, title, (period, axis), slots, series, marks, stacks=stacks)


def lines(
    name: str,
    title: Promise | str,
    period: Period,
    slots: Sequence[Slot],
    series: Sequence[Series],
    marks: Iterable[Mark] = (),
) -> Chart:
    """Return a chart of lines. The values are seconds. A line has a gap where a slot is missing or has no value."""
    highest = max((value for each in series for value in each.values if value is not None), default=0.0)
    axis = Axis(top_of_duration(highest), seconds_text)
    drawn = [Line(each.name, _path(period, axis, slots, each.values)) for each in series]
    return _chart(name, title, (period, axis), slots, series, marks, drawn=drawn)


def _chart(
    name: str,
    title: Promise | str,
    axes: tuple[Period, Axis],
    slots: Sequence[Slot],
    series: Sequence[Series],
    marks: Iterable[Mark],
    *,
    stacks: Sequence[Sequence[Bar]] | None = None,
    drawn: Sequence[Line] = (),
) -> Chart:
    period, axis = axes
    groups = [
        ChartSlot(_tooltip(period, axis, slot, series, index), _area(period, slot), stacks[index] if stacks else ())
        for index, slot in enumerate(slots)
    ]
    inside = [mark for mark in marks if period.since <= mark.at <= period.until]
    return Chart(
        name=name,
        title=title,
        summary=_summary(title, period, axis, slots, series),
        legend=series,
        groups=groups,
        lines=[line for line in drawn if line.path],
        marks=[(_position(period.x(mark.at)), f"{period.text(mark.at)} {mark.label}") for mark in inside],
        y_labels=axis.labels,
        x_labels=period.labels(),
        is_empty=not any(value for each in series for value in each.values),
    )


def _stack(period: Period, slot: Slot, axis: Axis, series: Sequence[Series], index: int) -> list[Bar]:
    area, y, found = _area(period, slot), HEIGHT, []
    for each in series:
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


def _tooltip(period: Period, axis: Axis, slot: Slot, series: Sequence[Series], index: int) -> str:
    values = [(each.label, each.values[index]) for each in series]
    texts = [f"{label} {axis.text(value)}" for label, value in values if value is not None]
    return f"{period.text(slot.starts_at)}: {', '.join(texts) or '–'}"


def _summary(title: Promise | str, period: Period, axis: Axis, slots: Sequence[Slot], series: Sequence[Series]) -> str:
    """Return the title, the period, and the highest value of each series with its time."""
    found = [f"{title}, {period.text(period.since)} – {period.text(period.until)}"]
    for each in series:
        values = [(value, slot) for slot, value in zip(slots, each.values, strict=True) if value is not None]
        if values:
            value, slot = max(values)
            words = {"label": each.label, "value": axis.text(value), "at": period.text(slot.starts_at)}
            found.append(_("%(label)s at most %(value)s, at %(at)s") % words)
    return ". ".join(found) + "."
