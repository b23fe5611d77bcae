"""Declare schedules in code: `cron()` and `every()` for `@task(schedule=…)`, and the schedules of this process's tasks.

`@task` and the `django.tasks` backend register schedules here, the system checks report their problems, and the admin
checks its forms with the same functions. This module writes nothing to the database: the workers store the definitions,
see `worker.maintenance.scheduler`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings
from django.db import router

from django_pgqueue import registry
from django_pgqueue.definition import TaskDefinition
from django_pgqueue.exceptions import Duration, InvalidTask
from django_pgqueue.exceptions import seconds as in_seconds
from django_pgqueue.lifecycle import Definition
from django_pgqueue.options import expiry, scheduled_options
from django_pgqueue.serialization import normalise_call, plain_arguments
from django_pgqueue.validation import check_call

from . import expressions

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

    def __post_init__(self) -> None:
        if self.missed not in MISSED:
            raise ValueError(f"missed must be one of {', '.join(MISSED)}, not {self.missed!r}")
        if self.if_running not in IF_RUNNING:
            raise ValueError(f"if_running must be one of {', '.join(IF_RUNNING)}, not {self.if_running!r}")
        if self.jitter_seconds > MAX_JITTER_SECONDS:
            raise ValueError(f"jitter must be at most a day, not {self.jitter_seconds:g} s")
        if self.name is not None and not is_name(self.name):
            raise ValueError(f"name {self.name!r} must be 1 to {MAX_NAME_LENGTH} printable characters")
        expressions.check(self.expression, self.time_zone or "UTC")

    @property
    def zone(self) -> str:
        """The name of the given time zone, or of the project's."""
        return self.time_zone or str(django_settings.TIME_ZONE)


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

    Returns:
        The schedule. Workers store it in the database when they start.

    Raises:
        TypeError: `jitter` is neither a number nor a timedelta.
        ValueError: The expression, the time zone or another value is invalid, or the expression never comes due.

    Example:
        >>> @task(schedule=cron("0 9 * * 1-5", tz="Europe/Paris"))
        ... def send_report(): ...
    """
    zone = tz.key if isinstance(tz, ZoneInfo) else tz
    return Times(
        expression=" ".join(expression.split()),
        time_zone=zone,
        args=args,
        kwargs=kwargs or {},
        name=name,
        missed=missed,
        if_running=if_running,
        jitter_seconds=in_seconds(jitter),
    )


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

    Returns:
        The schedule. Workers store it in the database when they start.

    Raises:
        TypeError: A part of the interval is not a number, or `jitter` is neither a number nor a timedelta.
        ValueError: The interval or another value is invalid.

    Example:
        >>> @task(schedule=every(minutes=5))
        ... def refresh_prices(): ...
    """
    length = timedelta(weeks=weeks, days=days, hours=hours, minutes=minutes, seconds=seconds)
    return Times(
        expression=expressions.interval(length),
        time_zone="UTC",
        args=args,
        kwargs=kwargs or {},
        name=name,
        missed=missed,
        if_running=if_running,
        jitter_seconds=in_seconds(jitter),
    )


_declared: dict[str, tuple[TaskDefinition, tuple[Times, ...]]] = {}


def is_name(name: Any) -> bool:
    """Return whether this is a valid name for a schedule."""
    return isinstance(name, str) and name.isprintable() and 1 <= len(name.strip()) == len(name) <= MAX_NAME_LENGTH


def check_schedule(task: TaskDefinition, schedule: Any) -> tuple[Times, ...]:
    """Return a task's schedules as a tuple. Raises `InvalidTask` if one is invalid, or cannot call the task."""
    several = (schedule,) if isinstance(schedule, Times) else schedule
    schedules = tuple(several) if isinstance(several, Iterable) else (several,)
    for times in schedules:
        if not isinstance(times, Times):
            raise InvalidTask(f"{task.name}: schedule must be cron(…), every(…) or a list of them, not {schedule!r}")
        try:
            check_jitter(task, times.jitter_seconds)
        except ValueError as error:
            raise InvalidTask(f"{task.name}: schedule {times.expression!r}: {error}") from None
        try:
            _check_call(task, times.args, times.kwargs)
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"{task.name}: schedule {times.expression!r} cannot call the task: {error}") from None
    return schedules


def declare(task: TaskDefinition, schedule: Times | Iterable[Times]) -> None:
    """Register a task's schedules in place of its earlier ones. Raises as `check_schedule()`."""
    _declared[task.name] = task, check_schedule(task, schedule)


def _check_call(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `TypeError` or `ValueError` if a call does not fit the task, as far as is known during the import."""
    check_call(task.func, len(args) + task.takes_context, tuple(kwargs))
    if task.adapter is not None:
        normalise_call(args, kwargs)
    elif (args or kwargs) and (plan := task.early_plan()) is not None:
        normalise_call(*plan.encode(args, kwargs))


def check_arguments(task: TaskDefinition, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `TypeError` or `ValueError` if JSON values do not fit the task as its arguments."""
    check_call(task.func, len(args) + task.takes_context, tuple(kwargs))
    normalise_call(args, kwargs)
    task.decoded_call(args, kwargs)


def definitions(alias: str) -> dict[str, Definition]:
    """Return the schedules that this process's code defines for a database, by name.

    Of several schedules with one name it returns the first. It omits the invalid ones that `problems()` reports, so
    that one bad schedule does not stop the others.
    """
    defined: dict[str, Definition] = {}
    for name, task, times in _named():
        if name not in defined and _alias(task) == alias:
            with suppress(TypeError, ValueError):
                defined[name] = define(name, task, times)
    return defined


def define(name: str, task: TaskDefinition, times: Times) -> Definition:
    """Return the definition of a task's schedule, with the current options of the task.

    Raises `TypeError` or `ValueError` if the arguments cannot be stored as JSON or are too large, or if the time zone
    is invalid.
    """
    expressions.check(times.expression, times.zone)
    return Definition(
        name=name,
        task_name=task.name,
        arguments=plain_arguments(*task.encoded_call(times.args, times.kwargs)),
        expression=times.expression,
        time_zone=times.zone,
        missed=times.missed,
        if_running=times.if_running,
        jitter_seconds=times.jitter_seconds,
        options=scheduled_options(task),
        is_unique=task.unique_key is not None,
    )


def check_jitter(task: TaskDefinition, jitter_seconds: float) -> None:
    """Raise `ValueError` if jitter could delay a job of the task until it has expired."""
    limit = expiry(task.expires)["expires_seconds"]
    if limit is not None and jitter_seconds >= limit:
        raise ValueError(
            f"its jobs expire {limit:g} s after they are enqueued, and jitter can delay them by {jitter_seconds:g} s: "
            "make jitter shorter"
        )


def problems() -> Iterator[str]:
    """Yield one sentence per problem with the declared schedules that `@task` could not detect."""
    for name, count in Counter(name for name, _, _ in _named()).items():
        if count > 1:
            yield f"{count} schedules are named {name!r}, and only the first would run: give each its own name=…."
    for name, task, times in _named():
        try:
            define(name, task, times)
        except (TypeError, ValueError) as error:
            yield f"schedule {name!r} of {task.name} cannot run: {error}"


def _named() -> Iterator[tuple[str, TaskDefinition, Times]]:
    """Yield (name, task, times) of each schedule whose task is still registered."""
    for task, schedule in _declared.values():
        if registry.get(task.name) is not task:
            continue
        for place, times in enumerate(schedule, 1):
            yield times.name or (task.name if place == 1 else f"{task.name}:{place}"), task, times


def _alias(task: TaskDefinition) -> str:
    """Return the alias of the database that a task's jobs are stored in."""
    from django_pgqueue.models import Job  # task modules are imported before models can be

    own = task.database or (task.adapter and task.adapter.database)
    return own or router.db_for_write(Job)
