"""Convert the times of a Celery beat schedule to this package's next_ticks.

Called by `celery_beat`. The module imports nothing of Celery: it reads the documented attributes of Celery's objects,
and the columns of django-celery-beat's rows, which have the same names. Invariant: an expression that it returns comes
due at the times at which beat would send the task, and everything else raises `CannotMove` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django_pgqueue.schedules import next_ticks

DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
PART: Final = re.compile(r"(\*|(?P<first>\w+)(-(?P<last>\w+))?)(/(?P<step>[0-9]+))?")
WEEKS: Final = {frozenset(range(7 * week + 1, 7 * week + 8)): week + 1 for week in range(4)}
"""The days of the month that are the first, second, third and fourth one of their weekday."""


class CannotMove(ValueError):
    """An entry of the beat schedule has no equivalent here. The message is the reason."""


class CrontabField(NamedTuple):
    """A field of a crontab: the name of its attribute, its lowest and highest number, and the names of its numbers."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()


MINUTE: Final = CrontabField("minute", 0, 59)
HOUR: Final = CrontabField("hour", 0, 23)
DAY_OF_MONTH: Final = CrontabField("day_of_month", 1, 31)
MONTH: Final = CrontabField("month_of_year", 1, 12, MONTHS)
DAY_OF_WEEK: Final = CrontabField("day_of_week", 0, 6, DAYS)


class BeatTimes(NamedTuple):
    """An expression of `schedules.next_ticks`, and the time zone of a crontab; None for an interval."""

    expression: str
    time_zone: str | None


def times_of(schedule: Any, time_zone: str | None) -> BeatTimes:
    """Return the times of the value `schedule` of an entry in `beat_schedule`.

    `time_zone` is the zone of Celery's crontabs; None means that it is unknown. Raises `CannotMove`.
    """
    if hasattr(schedule, "run_every"):
        schedule = schedule.run_every
    if isinstance(schedule, int | float | timedelta):
        return interval(schedule)
    if not hasattr(schedule, "day_of_week"):
        raise CannotMove(_unknown(schedule))
    if getattr(schedule, "nowfun", None) is not None:
        raise CannotMove("its crontab has a nowfun=, which cannot be moved: use cron(…, tz=…) in the code of the task")
    return crontab(schedule, time_zone)


def interval(length: float | timedelta) -> BeatTimes:
    """Return the times of an interval. Raises `CannotMove` if it is not whole seconds from 1 second to 366 days."""
    try:
        return BeatTimes(next_ticks.interval(length), None)
    except (TypeError, ValueError) as error:
        raise CannotMove(str(error)) from None


def crontab(source: Any, time_zone: str | None) -> BeatTimes:
    """Return the times of an object with the attributes of Celery's `crontab`, as sets, numbers or text.

    Raises `CannotMove`.
    """
    if time_zone is None:
        raise CannotMove("the time zone of its crontab is unknown: pass --time-zone")
    minute, hour, day, month, weekday = (
        numbers(getattr(source, field.name), field) for field in (MINUTE, HOUR, DAY_OF_MONTH, MONTH, DAY_OF_WEEK)
    )
    days = days_of(day, weekday)
    expression = f"{as_text(minute, MINUTE)} {as_text(hour, HOUR)} {days[0]} {as_text(month, MONTH)} {days[1]}"
    try:
        next_ticks.check(expression, time_zone)
    except ValueError as error:
        raise CannotMove(str(error)) from None
    return BeatTimes(expression, time_zone)


def numbers(value: Any, field: CrontabField) -> frozenset[int]:
    """Return the numbers of a crontab's field, by Celery's grammar. Raises `CannotMove` if the field is invalid.

    Celery differs from cron in two points: a range may wrap around, as in "fri-mon", and Sunday is only 0, not 7.
    """
    if isinstance(value, int):
        value = (value,)
    if isinstance(value, str):
        value = [number for part in value.split(",") for number in _part(part.strip(), field)]
    found = frozenset(value) if isinstance(value, Iterable) else frozenset()
    if not found or not all(isinstance(number, int) and field.low <= number <= field.high for number in found):
        raise CannotMove(f"its {field.name} {value!r} is not from {field.low} to {field.high}")
    return found


def days_of(day: frozenset[int], weekday: frozenset[int]) -> tuple[str, str]:
    """Return the expression's fields for days of the month and weekdays.

    Celery runs the task on days that match both. In an expression, days that match one of them are enough, unless one
    of the fields begins with `*`. "The first Monday" of Celery, day 1-7 and a Monday, becomes `MON#1`.
    """
    as_day, as_weekday = as_text(day, DAY_OF_MONTH), as_text(weekday, DAY_OF_WEEK)
    if as_day.startswith("*") or as_weekday.startswith("*"):
        return as_day, as_weekday
    if day not in WEEKS:
        raise CannotMove(
            f"its day_of_month {as_day} and day_of_week {as_weekday} must both match, which an expression cannot say: "
            "restrict one of them, and return early from the task on the other days"
        )
    return "*", ",".join(f"{number}#{WEEKS[day]}" for number in sorted(weekday))


def as_text(chosen: frozenset[int], field: CrontabField) -> str:
    """Return the numbers of a field as text: `*`, a step such as `*/15`, a range, or a list."""
    everything = range(field.low, field.high + 1)
    for step in range(1, len(everything) // 2 + 1):
        steps = everything[::step]
        if len(steps) > 2 and chosen == frozenset(steps):
            return "*" if step == 1 else f"*/{step}"
    ordered = sorted(chosen)
    if len(ordered) > 2 and ordered[-1] - ordered[0] == len(ordered) - 1:
        return f"{ordered[0]}-{ordered[-1]}"
    return ",".join(map(str, ordered))


def _part(part: str, field: CrontabField) -> list[int]:
    """Return the numbers of one part of a list. Raises `CannotMove` if it is not in Celery's grammar."""
    match = PART.fullmatch(part)
    step = int(match["step"] or 1) if match else 0
    if match is None or step < 1 or (match["step"] and match["first"] and not match["last"]):
        raise CannotMove(f"its {field.name} {part!r} cannot be read")
    everything = list(range(field.low, field.high + 1))
    if match["first"] is None:
        return everything[::step]
    first = _number(match["first"], field)
    last = _number(match["last"], field) if match["last"] else first
    if first > last:
        return [*everything[first - field.low :], *everything[: last - field.low + 1]][::step]
    return everything[first - field.low : last - field.low + 1][::step]


def _number(text: str, field: CrontabField) -> int:
    """Return the number of a word such as "5", "mon" or "Monday". Raises `CannotMove`."""
    if text.isdecimal():
        number = int(text)
    elif text[:3].lower() in field.names:
        number = field.low + field.names.index(text[:3].lower())
    else:
        number = -1
    if not field.low <= number <= field.high:
        raise CannotMove(f"its {field.name} {text!r} is not from {field.low} to {field.high}")
    return number


def _unknown(schedule: Any) -> str:
    if hasattr(schedule, "event"):
        return "a solar schedule has no equivalent: run the task by the clock, and let it compute the sun's position"
    if hasattr(schedule, "clocked_time"):
        return f"it runs only once: enqueue the task with using(run_after=…), for {schedule.clocked_time}"
    return f"its schedule is of an unknown type: {type(schedule).__name__}"
