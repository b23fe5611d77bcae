"""A small chart of a rate over time, as the geometry of bars that a template draws as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from .formatting import full_date

WIDTH: Final = 120
HEIGHT: Final = 24
BARS: Final = 40


class Bar(NamedTuple):
    """A rectangle, as the values of its attributes."""

    x: str
    y: str
    width: str
    height: str


class Sparkline(NamedTuple):
    """The bars, and a sentence for the tooltip and for screen readers."""

    bars: list[Bar]
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
        Bar(
            f"{place * step:.1f}",
            f"{HEIGHT - rate / peak * HEIGHT:.1f}",
            f"{step - 0.5:.1f}",
            f"{rate / peak * HEIGHT:.1f}",
        )
        for place, rate in enumerate(highest)
        if rate
    ]
    return Sparkline(bars, full_date(first), full_date(last), f"{peak:,.1f}")
