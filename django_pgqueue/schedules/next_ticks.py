"""Calculate when a schedule comes due, from a cron expression or an interval.

The declarations, the admin and the scheduler call these functions. They are pure: they use neither a clock nor a
database. They return instants ("ticks") in UTC.

A cron expression is evaluated in its time zone by the rules of Debian's cron. A tick in the hour that is skipped in
spring comes right after the gap. A tick in the hour that is repeated in autumn comes once, in the first of the two.
With a `*` in the minutes or the hours, ticks follow elapsed time instead: each instant whose local time matches is a
tick (see `matching_instants()`).

The ticks of an interval are its multiples since 1970-01-01 00:00 UTC, so that every process calculates the same
instants, before and after a deploy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import takewhile
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from django_pgqueue.durations import Duration, seconds

SECOND: Final = timedelta(seconds=1)
PROBE: Final = timedelta(hours=12)
"""No zone changes its offset and changes it back within this time."""
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


def matching_instants(
    matches_after: Callable[[datetime], Iterator[datetime]], zone: ZoneInfo, instant: datetime
) -> Iterator[datetime]:
    """Yield the instants after `instant` whose local time matches, in UTC and in order.

    `next_tick()` calls it for expressions with a `*` in the minutes or the hours. The cron library evaluates the
    expression for times without a zone. This module evaluates it for one period of constant offset after another, so
    that a change of the clock by any length, such as 30 minutes or a whole day, loses no match and repeats each match
    of a repeated time.

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


def interval(duration: Duration) -> str:
    """Return the expression of an interval, such as "every 5 minutes", in the largest unit that fits.

    Raises `TypeError` for an invalid duration, `ValueError` if it is not whole seconds, from 1 second to 366 days.
    """
    length = seconds(duration)
    if not length.is_integer() or not 1 <= length <= LONGEST_INTERVAL_SECONDS:
        raise ValueError(f"invalid interval {duration!r}: it must be whole seconds, from 1 second to 366 days")
    unit, size = next((unit, size) for unit, size in UNITS.items() if length % size == 0)
    count = int(length) // size
    return f"every {count} {unit}{'s' if count > 1 else ''}"


def check(expression: str, time_zone: str) -> None:
    """Raise `ValueError` if the expression or the time zone is invalid, or if the expression never comes due."""
    if next(ticks_after(expression, time_zone, EPOCH), None) is None:
        raise ValueError(f"invalid expression {expression!r}: it never comes due, because there is no such day")


def next_after(expression: str, time_zone: str, instant: datetime) -> datetime:
    """Return the first tick after an instant. Raises as `check()`."""
    tick = next(ticks_after(expression, time_zone, instant), None)
    if tick is None:
        raise ValueError(f"{expression!r} never comes due again")
    return tick


def last_between(expression: str, time_zone: str, after: datetime, until: datetime, most: int) -> list[datetime]:
    """Return the last `most` ticks that are later than `after` and not later than `until`. Raises as `check()`.

    It searches backwards from the end and doubles the span each time, because after a month a schedule with an interval
    of a second has 2.6 million ticks.
    """
    span = FIRST_SPAN
    while True:
        start = max(after, until - span)
        ticks = list(takewhile(lambda tick: tick <= until, ticks_after(expression, time_zone, start)))
        if len(ticks) >= most or start == after:
            return ticks[-most:]
        span *= 2


def ticks_after(expression: str, time_zone: str, instant: datetime) -> Iterator[datetime]:
    """Yield the ticks after an instant, in order and each once. Raises as `check()`."""
    if match := EVERY.fullmatch(expression):
        yield from _multiples(int(match[1]) * UNITS[match[2]], expression, instant)
        return
    zone = _zone(time_zone)
    if _follows_elapsed_time(expression):
        yield from matching_instants(partial(_cron, expression), zone, instant)
        return
    last = instant
    for local in _cron(expression, instant.astimezone(zone)):
        tick = local.astimezone(UTC)
        if tick > last:  # if it starts within a repeated hour, CronSim first returns ticks before the start
            last = tick
            yield tick


def _follows_elapsed_time(expression: str) -> bool:
    """Return whether the minutes or the hours of a cron expression begin with a `*`."""
    return any(field.startswith("*") for field in NAMED.get(expression, expression).split()[:2])


def in_words(expression: str) -> str:
    """Return an expression in English, or unchanged if that is not possible."""
    if EVERY.fullmatch(expression):
        return expression.capitalize()
    try:
        return str(_cron(expression, EPOCH).explain())
    except Exception:  # noqa: BLE001 -- a row may contain any text, and this one is only displayed
        return expression


def _multiples(length: int, expression: str, instant: datetime) -> Iterator[datetime]:
    """Yield the multiples of an interval of `length` seconds after an instant, without an end."""
    if not 1 <= length <= LONGEST_INTERVAL_SECONDS:
        raise ValueError(f"invalid interval {expression!r}: it must be from 1 second to 366 days")
    step = timedelta(seconds=length)
    tick = EPOCH + ((instant - EPOCH) // step + 1) * step
    while True:
        yield tick
        tick += step


FIELDS: Final = {"minute": 60, "hour": 24, "day": 31, "month": 12, "weekday": 7}
"""The fields of a cron expression, each with the number of its values."""


def _check_steps(expression: str, fields: str) -> None:
    """Raise `ValueError` for a step such as `*/61`, with which only the first value would match."""
    for text, (name, count) in zip(fields.split(), FIELDS.items(), strict=True):
        for step in re.findall(r"/(\d+)", text):
            if int(step) > count:
                raise ValueError(
                    f"invalid cron expression {expression!r}: the step /{step} is longer than the {count} values of "
                    f"the {name}, so only one of them would match: use a step of at most {count}, or every()"
                )


def _cron(expression: str, start: datetime) -> CronSim:
    fields = NAMED.get(expression, expression)
    if len(fields) > MAX_LENGTH or len(fields.split()) != 5:
        raise ValueError(
            f"invalid expression {expression[:MAX_LENGTH]!r}: it must have five fields (minute hour day month "
            f'weekday), as in "30 9 * * 1-5", or be one of {", ".join(NAMED)}, or an interval such as "every 5 minutes"'
        )
    _check_steps(expression, fields)
    try:
        return CronSim(fields, start)
    except (CronSimError, ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"invalid cron expression {expression!r}: {str(error) or 'it cannot be parsed'}") from None


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (OSError, LookupError, ValueError):
        raise ValueError(
            f"invalid time zone {name!r}: use one that this system has, such as Europe/Paris or UTC"
        ) from None
