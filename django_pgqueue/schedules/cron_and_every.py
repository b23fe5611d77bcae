"""`cron()` and `every()` for `@task(schedule=…)`: when to run a task, with which arguments and options.

Application modules call them when they are imported. They check everything that does not depend on the task;
`declarations` checks the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings

from django_pgqueue.durations import Duration, from_text
from django_pgqueue.durations import seconds as in_seconds
from django_pgqueue.ground.advice import advised
from django_pgqueue.ground.lazy_strings import lazy_problems

from . import next_ticks

MISSED: Final = ("skip", "latest", "all")
IF_RUNNING: Final = ("overlap", "skip", "queue")
MAX_NAME_LENGTH: Final = 200
MAX_JITTER_SECONDS: Final = 24 * 3600

MissedRuns = Literal["skip", "latest", "all"]
IfRunning = Literal["overlap", "skip", "queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When to run a task, and with which arguments. `cron()` and `every()` return it."""

    expression: str
    time_zone: str | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    name: str | None
    missed: MissedRuns
    if_running: IfRunning
    jitter_seconds: float
    queue_name: str | None = None
    priority: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.args, str | bytes) or not isinstance(self.args, Sequence):
            raise TypeError(f"args must be a list of positional arguments, not {self.args!r}: write args=[…]")
        if not isinstance(self.kwargs, Mapping):
            raise TypeError(f"kwargs must be a dict of named arguments, not {self.kwargs!r}: write kwargs={{…}}")
        if self.missed not in MISSED:
            raise ValueError(f"missed must be one of {', '.join(MISSED)}, not {self.missed!r}")
        if self.if_running not in IF_RUNNING:
            raise ValueError(f"if_running must be one of {', '.join(IF_RUNNING)}, not {self.if_running!r}")
        if self.jitter_seconds > MAX_JITTER_SECONDS:
            raise ValueError(f"jitter must be at most a day, not {self.jitter_seconds:g} s")
        for problem in lazy_problems("name", self.name):
            raise ValueError(problem)
        if self.name is not None and not is_name(self.name):
            raise ValueError(f"name {self.name!r} must be 1 to {MAX_NAME_LENGTH} printable characters")
        next_ticks.check(self.expression, self.time_zone or "UTC")

    @property
    def zone(self) -> str:
        """The name of the given time zone, or of the project's."""
        return self.time_zone or str(django_settings.TIME_ZONE)


def _as_cron(args: tuple[Any, ...], given: Mapping[str, Any]) -> str:
    fields = " ".join(str(given.get(name, "*")) for name in ("minute", "hour", "day_of_month", "month", "day_of_week"))
    return f'write the fields as one text, such as cron("{fields}"): minute, hour, day, month and weekday'


def _as_every(args: tuple[Any, ...], given: Mapping[str, Any]) -> str:
    value = args[0] if args else 300
    if parts := from_text(value):
        return f"write {parts.replace('timedelta', 'every')}"
    length = value.total_seconds() if isinstance(value, timedelta) else value
    return (
        f"write every(seconds={length:g}), or pass weeks, days, hours or minutes"
        if _is_number(length)
        else ("pass weeks, days, hours, minutes or seconds by name, such as every(minutes=5)")
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@advised(_as_cron)
def cron(
    expression: str,
    *,
    tz: str | ZoneInfo | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    missed: MissedRuns = "latest",
    if_running: IfRunning = "overlap",
    jitter: Duration = 0,
    queue_name: str | None = None,
    priority: int | None = None,
) -> Times:
    """Return a schedule that follows a cron expression, for `@task(schedule=…)`.

    Args:
        expression: Minute, hour, day, month and weekday, as in "0 9 * * 1-5", or one of @hourly, @daily, @weekly,
            @monthly, @yearly.
        tz: The time zone of the expression: a name or a `ZoneInfo`. By default the project's TIME_ZONE.
        args: Positional arguments of the task.
        kwargs: Keyword arguments of the task.
        name: The name that identifies the schedule from one release to the next. By default the task's name.
        missed: What to do with ticks that passed while no worker was running. "latest" enqueues one job for all of
            them, "all" one job for each (the last 100 at most), "skip" none.
        if_running: What to do with a tick that comes while an earlier job of this schedule is not finished. "overlap"
            enqueues its job anyway, "skip" drops the tick, "queue" delays the tick until the earlier job is finished.
        jitter: Maximum random delay of each job, in seconds or as a timedelta. At most a day.
        queue_name: Queue of the jobs. By default the task's.
        priority: Priority of the jobs, -100 to 100. By default the task's.

    Returns:
        The schedule. Workers store it in the database when they start.

    Raises:
        TypeError: `jitter` is neither a number nor a timedelta, `args` is no list, or `kwargs` is no dict.
        ValueError: The expression, the time zone or another value is invalid, or the expression never comes due.

    Example:
        >>> @task(schedule=cron("0 9 * * 1-5", tz="Europe/Paris"))
        ... def send_report(): ...
    """
    return Times(
        expression=" ".join(expression.split()),
        time_zone=None if tz is None else str(tz),
        args=args,
        kwargs=kwargs or {},
        name=name,
        missed=missed,
        if_running=if_running,
        jitter_seconds=in_seconds(jitter),
        queue_name=queue_name,
        priority=priority,
    )


@advised(_as_every)
def every(
    *,
    weeks: float = 0,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    missed: MissedRuns = "latest",
    if_running: IfRunning = "overlap",
    jitter: Duration = 0,
    queue_name: str | None = None,
    priority: int | None = None,
) -> Times:
    """Return a schedule with a fixed interval, for `@task(schedule=…)`.

    The ticks are the multiples of the interval since 1970-01-01 00:00 UTC. `every(minutes=5)` fires at 9:00, 9:05 and
    so on, whenever the workers were started.

    Args:
        weeks: Weeks of the interval. The sum of all parts must be whole seconds, from 1 second to 366 days.
        days: Days of the interval.
        hours: Hours of the interval.
        minutes: Minutes of the interval.
        seconds: Seconds of the interval.
        args: Positional arguments of the task.
        kwargs: Keyword arguments of the task.
        name: The name that identifies the schedule from one release to the next. By default the task's name.
        missed: What to do with ticks that passed while no worker was running, as in `cron()`.
        if_running: What to do with a tick that comes while an earlier job is not finished, as in `cron()`.
        jitter: Maximum random delay of each job, in seconds or as a timedelta. At most a day.
        queue_name: Queue of the jobs. By default the task's.
        priority: Priority of the jobs, -100 to 100. By default the task's.

    Returns:
        The schedule. Workers store it in the database when they start.

    Raises:
        TypeError: A part of the interval is not a number, or another argument has a wrong type, as in `cron()`.
        ValueError: The interval or another value is invalid.

    Example:
        >>> @task(schedule=every(minutes=5))
        ... def refresh_prices(): ...
    """
    length = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    return Times(
        expression=next_ticks.interval(length),
        time_zone="UTC",
        args=args,
        kwargs=kwargs or {},
        name=name,
        missed=missed,
        if_running=if_running,
        jitter_seconds=in_seconds(jitter),
        queue_name=queue_name,
        priority=priority,
    )


def is_name(name: Any) -> bool:
    """Return whether this is a valid name for a schedule."""
    return isinstance(name, str) and name.isprintable() and 1 <= len(name.strip()) == len(name) <= MAX_NAME_LENGTH
