"""When a schedule comes due: cron expressions and intervals. Pure functions of instants: no clock, no database.

Instants come out in UTC. A cron expression is read in its time zone by the rules of Debian's cron: what would fall
into the gap of a spring day comes right after it, what falls into the hour that autumn repeats comes once, in the
first. With a `*` in the minutes or the hours it goes by elapsed time instead. Intervals are whole multiples since
1970-01-01 00:00 UTC, so that every process, before and after a deploy, means the same instants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from .exceptions import Duration, seconds

MAX_LENGTH: Final = 200
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
UNITS: Final = {"week": 604_800, "day": 86_400, "hour": 3600, "minute": 60, "second": 1}
EVERY: Final = re.compile(r"every ([0-9]{1,9}) (week|day|hour|minute|second)s?")
LONGEST_INTERVAL_SECONDS: Final = 366 * 86_400
NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
FIRST_SPAN: Final = timedelta(minutes=1)


def interval(duration: Duration) -> str:
    """Return the expression of an interval, "every 5 minutes"; raises `TypeError` or `ValueError` as `check`."""
    length = seconds(duration)
    if not length.is_integer() or not 1 <= length <= LONGEST_INTERVAL_SECONDS:
        raise ValueError(f"an interval must be whole seconds, from 1 second to 366 days, not {duration!r}")
    unit, size = next((unit, size) for unit, size in UNITS.items() if length % size == 0)
    count = int(length) // size
    return f"every {count} {unit}{'s' if count > 1 else ''}"


def check(expression: str, time_zone: str) -> None:
    """Raise `ValueError`, with what to write instead, for an expression or a zone that is none, or never comes due."""
    if next(ticks_after(expression, time_zone, EPOCH), None) is None:
        raise ValueError(f"{expression!r} never comes due: there is no such day")


def next_after(expression: str, time_zone: str, instant: datetime) -> datetime:
    """Return the first tick after an instant; raises as `check`."""
    tick = next(ticks_after(expression, time_zone, instant), None)
    if tick is None:
        raise ValueError(f"{expression!r} never comes due again")
    return tick


def last_between(expression: str, time_zone: str, after: datetime, until: datetime, most: int) -> list[datetime]:
    """Return the last `most` ticks after one instant and not after another; raises as `check`.

    Looks back from the end, twice as far each time: after a month a schedule of each second has 2.6 million ticks.
    """
    span = FIRST_SPAN
    while True:
        start = max(after, until - span)
        ticks = list(takewhile(lambda tick: tick <= until, ticks_after(expression, time_zone, start)))
        if len(ticks) >= most or start == after:
            return ticks[-most:]
        span *= 2


def ticks_after(expression: str, time_zone: str, instant: datetime) -> Iterator[datetime]:
    """Yield the ticks after an instant, in order and each once; raises as `check`."""
    if found := EVERY.fullmatch(expression):
        yield from _multiples(int(found[1]) * UNITS[found[2]], expression, instant)
        return
    last = instant
    for local in _cron(expression, instant.astimezone(_zone(time_zone))):
        tick = local.astimezone(UTC)
        if tick > last:  # begun within a repeated hour, it looks back into the first
            last = tick
            yield tick


def in_words(expression: str) -> str:
    """Return an expression in English, as far as it can be said."""
    if EVERY.fullmatch(expression):
        return expression.capitalize()
    try:
        return str(_cron(expression, EPOCH).explain())
    except Exception:  # noqa: BLE001 -- a row may hold anything, and its words are for show
        return expression


def _multiples(length: int, expression: str, instant: datetime) -> Iterator[datetime]:
    if not 1 <= length <= LONGEST_INTERVAL_SECONDS:
        raise ValueError(f"{expression!r} must be from 1 second to 366 days")
    step = timedelta(seconds=length)
    tick = EPOCH + ((instant - EPOCH) // step + 1) * step
    while True:
        yield tick
        tick += step


def _cron(expression: str, start: datetime) -> CronSim:
    fields = NAMED.get(expression, expression)
    if len(fields) > MAX_LENGTH or len(fields.split()) != 5:
        raise ValueError(
            f'{expression[:MAX_LENGTH]!r} must have five fields, minute hour day month weekday, as in "30 9 * * 1-5", '
            f'or be one of {", ".join(NAMED)}, or an interval such as "every 5 minutes"'
        )
    try:
        return CronSim(fields, start)
    except (CronSimError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{expression!r} is no cron expression: {str(error) or 'it cannot be read'}") from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, LookupError, ValueError):
        raise ValueError(f"{name!r} is no time zone of this system's: name one as in Europe/Paris, or UTC") from None
