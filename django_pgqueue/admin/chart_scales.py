"""The ends and the labels of vertical axes, and where spikes are cut off, so that they do not flatten the rest.

`charts` calls it, and pages write numbers in tables with the same functions. The functions are pure.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django.utils.translation import gettext as _

from django_pgqueue.display import duration, number, percent
from django_pgqueue.ground.histogram import RELATIVE_ERROR

DURATION_STEPS: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 4.0, 10.0, 20.0, 60.0, 120.0, 240.0, 600.0),
    *(1200.0, 3600.0, 7200.0, 14400.0, 28800.0, 86400.0, 172800.0, 345600.0, 864000.0, 1728000.0, 5184000.0),
)
"""The ends of an axis of seconds. Half of each is a round duration too."""
SHARES: Final = (0.01, 0.02, 0.04, 0.1, 0.2, 0.4, 1.0)
"""The ends of an axis of shares."""
FEWEST_VALUES: Final = 8
"""Values above 0 below which nothing is cut off: too few to say what is usual."""
SPIKES: Final = 20
"""One value of so many, and at least one, may be a spike: the axis need not reach it."""
SPIKE_FACTOR: Final = 3.0
"""How many times as high as the highest usual value a spike is at least."""


def highest_shown(values: Iterable[float | None]) -> float:
    """Return the value that the axis has to reach: the highest one, or the highest usual one if others are spikes.

    The highest twentieth of the values, or the highest value alone, can be spikes. They are cut off only if the highest
    is more than `SPIKE_FACTOR` times the highest of the rest: a chart that is cut off without need misleads.
    """
    found = sorted(value for value in values if value)
    if len(found) < FEWEST_VALUES:
        return found[-1] if found else 0.0
    usual = found[-1 - max(1, len(found) // SPIKES)]
    return usual if found[-1] > SPIKE_FACTOR * usual else found[-1]


def top_of_number(highest: float) -> float:
    """Return a round number that is at least `highest`: 1, 2, 4 or 10 times a power of ten, and at least 2."""
    power = 10.0 ** math.floor(math.log10(max(highest, 2.0)))
    return next(step * power for step in (1, 2, 4, 10) if step * power >= max(highest, 2.0))


def top_of_duration(highest: float) -> float:
    """Return a round duration, in seconds, that is at least `highest`."""
    index = bisect_left(DURATION_STEPS, highest)
    return DURATION_STEPS[index] if index < len(DURATION_STEPS) else highest


def top_of_share(highest: float) -> float:
    """Return a round share that is at least `highest`."""
    return next((top for top in SHARES if top >= highest), SHARES[-1])


def number_text(value: float) -> str:
    """Return a rate: with a decimal below 10, and with separators."""
    rounded = round(value, 1)
    return number(value, 1 if rounded < 10 and rounded != int(rounded) else 0)


def rate_text(value: float | None, *, is_estimate: bool = False) -> str:
    """Return a rate, with a sign before an estimate. None, a rate that is not known, is a dash."""
    if value is None:
        return "–"
    return f"≈ {number_text(value)}" if is_estimate else number_text(value)


def percentile_text(*values: float | None) -> str:
    """Return percentiles of durations as text, with a sign that says that they are estimates. None is a dash."""
    texts = ["–" if each is None else duration(timedelta(seconds=each), brief=True) for each in values]
    return " / ".join(texts) if set(values) == {None} else f"≈ {' / '.join(texts)}"


def percentiles_note() -> str:
    """Return how exact the percentiles are: they come from the counts of the buckets of a histogram."""
    text = _("p50 and p95 are estimates: the true values differ by at most %(share)s.")
    return text % {"share": percent(RELATIVE_ERROR)}


def seconds_text(value: float) -> str:
    """Return a duration in seconds as text."""
    return duration(timedelta(seconds=value)) if value else "0"
