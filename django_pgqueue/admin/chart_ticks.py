"""The ticks of a time axis: at round times of the current time zone, such as each quarter of an hour or each midnight.

`charts` calls it. Round times are those of a clock on the wall. In a zone that is half an hour off, ticks of an hour
are therefore not at whole hours of UTC, and on the day of a clock change the distance between two ticks differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone

MINUTE: Final = 60
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
STEPS: Final = (
    *(MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE),
    *(HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR, 12 * HOUR, DAY, 3 * DAY, 7 * DAY, 14 * DAY, 28 * DAY),
)
"""The distances of ticks, in seconds. Each is a divisor of a day or a number of days."""
MOST: Final = 4
MOST_WITH_DATES: Final = 3
"""Distances in a period at most. The labels have to fit beside each other on a phone, and a date is wider."""
FINEST: Final = 15 * MINUTE
"""The offset of each time zone in use is a multiple of a quarter of an hour."""


def ticks(since: datetime, until: datetime) -> list[tuple[datetime, str]]:
    """Return the round times of a period, each with its label."""
    length = (until - since).total_seconds()
    step = next((each for each in STEPS if length / each <= (MOST if each < HOUR else MOST_WITH_DATES)), STEPS[-1])
    return [(at, label_of(at)) for at in _instants(since, until, min(step, FINEST)) if _is_round(at, step)]


def label_of(at: datetime) -> str:
    """Return the time to the minute, or at midnight the date."""
    local = _local(at)
    return f"{local:%H:%M}" if local.hour or local.minute else f"{local:%Y-%m-%d}"


def _instants(since: datetime, until: datetime, seconds: int) -> Iterator[datetime]:
    """Yield the instants of a period that are a multiple of these seconds from the midnight of UTC before it."""
    step = timedelta(seconds=seconds)
    midnight = since.replace(hour=0, minute=0, second=0, microsecond=0)
    at = midnight - ((midnight - since) // step) * step
    while at <= until:
        yield at
        at += step


def _is_round(at: datetime, step: int) -> bool:
    local = _local(at)
    seconds = (local.hour * 60 + local.minute) * MINUTE
    if step < DAY:
        return seconds % step == 0
    return seconds == 0 and local.toordinal() % (step // DAY) == 0


def _local(at: datetime) -> datetime:
    return timezone.localtime(at) if timezone.is_aware(at) else at
