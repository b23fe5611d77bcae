"""Find the instants at which the local time of a zone matches a cron expression.

`expressions` calls it for expressions with a `*` in the minutes or the hours. The cron library evaluates the expression
for times without a zone. This module evaluates it for one period of constant offset after another, so that a change of
the clock by any length, such as 30 minutes or a whole day, loses no match and repeats each match of a repeated time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

SECOND: Final = timedelta(seconds=1)
PROBE: Final = timedelta(hours=12)
"""No zone changes its offset and changes it back within this time."""


def matching_instants(
    matches_after: Callable[[datetime], Iterator[datetime]], zone: ZoneInfo, instant: datetime
) -> Iterator[datetime]:
    """Yield the instants after `instant` whose local time matches, in UTC and in order.

    `matches_after` returns the matching times after a time. Both have no zone.
    """
    start = instant.replace(microsecond=0)
    last, offset = start, _offset(zone, start)
    while True:
        change = None
        for local in matches_after((start + offset).replace(tzinfo=None)):
            tick = local.replace(tzinfo=UTC) - offset
            change = _next_change(zone, offset, last, tick)
            if change is not None:
                break
            yield tick
            last = tick
        if change is None:
            return
        start, last, offset = change - SECOND, change, _offset(zone, change)  # the instant of the change may match


def _next_change(zone: ZoneInfo, offset: timedelta, after: datetime, until: datetime) -> datetime | None:
    """Return the first instant after `after`, and not later than `until`, with another offset. None without one."""
    low = after
    while low < until:
        high = min(low + PROBE, until)
        if _offset(zone, high) != offset:
            while high - low > SECOND:
                middle = low + (high - low) // SECOND // 2 * SECOND
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            return high
        low = high
    return None


def _offset(zone: ZoneInfo, instant: datetime) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta()
