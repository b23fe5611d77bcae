"""The axes of charts: the positions of moments and values, round ends of an axis, and the texts of values."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from django.utils import formats, timezone

from django_pgqueue.display import duration

WIDTH: Final = 1000.0
HEIGHT: Final = 100.0
LABELS: Final = 5
"""Labels of the time axis. They divide the period into equal parts."""
DAY: Final = timedelta(hours=25)
"""Longer periods have days as labels. The running hour is a part of a day's chart."""
DURATION_STEPS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 10.0, 20.0, 60.0, 120.0, 240.0, 600.0),
    *(1200.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 172800.0, 345600.0, 864000.0, 1728000.0, 5184000.0),
)
"""The ends of an axis of seconds. Half of each is a round duration too."""


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
        """Return the labels of the time axis, in the current time zone."""
        step = (self.until - self.since) / (LABELS - 1)
        return [self._text(self.since + number * step, "m-d") for number in range(LABELS)]

    def text(self, at: datetime) -> str:
        """Return a moment: with the day if the period is longer than a day."""
        return self._text(at, "m-d H:i")

    def _text(self, at: datetime, long: str) -> str:
        local = timezone.localtime(at) if timezone.is_aware(at) else at
        return formats.date_format(local, "H:i" if self.until - self.since <= DAY else long)


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


def seconds_text(value: float) -> str:
    """Return a duration in seconds as text."""
    return duration(timedelta(seconds=value)) if value else "0"
