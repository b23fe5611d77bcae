"""Schedules in the code: `cron()` and `every()` for `@task(schedule=…)`, and what this process's code says of them.

Nothing is written here: workers write it down, see `worker.scheduler`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from django.conf import settings as django_settings
from django.db import router

from . import expressions, registry
from .arguments import encode_arguments, normalise_call
from .conf import get_settings
from .exceptions import Duration, InvalidTask
from .exceptions import seconds as in_seconds
from .lifecycle import Definition
from .task import Task
from .validation import check_call

MISSED: Final = ("skip", "latest", "all")
IF_RUNNING: Final = ("overlap", "skip", "queue")
MAX_NAME_LENGTH: Final = 200
MAX_JITTER_SECONDS: Final = 24 * 3600

MissedRuns = Literal["skip", "latest", "all"]
IfRunning = Literal["overlap", "skip", "queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """When a task is to run, and with what: made by `cron()` and `every()`."""

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
            raise ValueError(f"jitter must be a day at most, not {self.jitter_seconds:g} s")
        if self.name is not None and not is_name(self.name):
            raise ValueError(f"name {self.name!r} must be 1 to {MAX_NAME_LENGTH} printable characters")
        expressions.check(self.expression, self.time_zone or "UTC")

    @property
    def zone(self) -> str:
        """The time zone that was given, or the project's."""
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
    """Return the times of a cron expression, for `@task(schedule=…)`.

    * `expression`: minute, hour, day, month and weekday, as in "0 9 * * 1-5"; or @hourly, @daily, @weekly, @monthly,
      @yearly. `tz`: the time zone it is read in, by default the project's TIME_ZONE.
    * `args`, `kwargs`: what the task is called with.
    * `name`: by which the schedule is known from one release to the next; by default the task's.
    * `missed`: of ticks that no worker was there for, run one for all ("latest"), each ("all", 100 at most), or none.
    * `if_running`: while an earlier job of this schedule is not finished, "overlap", "skip" the tick, or "queue" it.
    * `jitter`: seconds or a timedelta, up to which the start of each job is put off at random.

    Raises `TypeError` or `ValueError` for a value that is none of these.
    """
    zone = None if tz is None else tz if isinstance(tz, str) else tz.key
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
    """Return the times of an interval of whole seconds, 366 days at most: its multiples since 1970-01-01 00:00 UTC.

    So `every(minutes=5)` is at 9:00, 9:05 and so on, whenever a worker was started. The other arguments, and what is
    raised, as with `cron()`.
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


_declared: dict[str, tuple[Task[Any, Any], tuple[Times, ...]]] = {}


def is_name(name: Any) -> bool:
    """Say whether a schedule can be named so."""
    return isinstance(name, str) and name.isprintable() and 1 <= len(name.strip()) == len(name) <= MAX_NAME_LENGTH


def check_schedule(task: Task[Any, Any], schedule: Any) -> tuple[Times, ...]:
    """Return a task's schedules as a tuple; raises `InvalidTask` for one that is none, or cannot call the task."""
    given = (schedule,) if isinstance(schedule, Times) else schedule
    times = tuple(given) if isinstance(given, Iterable) else (given,)
    for one in times:
        if not isinstance(one, Times):
            raise InvalidTask(f"{task.name}: schedule must be cron(…), every(…) or a list of them, not {schedule!r}")
        try:
            check_jitter(task, one.jitter_seconds)
        except ValueError as error:
            raise InvalidTask(f"{task.name}: schedule {one.expression!r}: {error}") from None
        try:
            check_arguments(task, one.args, one.kwargs)
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"{task.name}: schedule {one.expression!r} cannot call it: {error}") from None
    return times


def declare(task: Task[Any, Any], schedule: Times | Iterable[Times]) -> None:
    """Make a task's schedules known, in place of those it had; raises as `check_schedule`."""
    _declared[task.name] = task, check_schedule(task, schedule)


def check_arguments(task: Task[Any, Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise `TypeError` or `ValueError` if a task cannot be called with these arguments, or they have no JSON."""
    check_call(task.func, len(args) + task.takes_context, tuple(kwargs))
    normalise_call(args, kwargs)


def definitions(alias: str) -> dict[str, Definition]:
    """Return what this process's code defines for a database, by name; of two with one name the first.

    What `problems` tells of is left out: one bad schedule stops no other.
    """
    found: dict[str, Definition] = {}
    for name, task, times in _named():
        if name not in found and _alias(task) == alias:
            with suppress(TypeError, ValueError):
                found[name] = define(name, task, times)
    return found


def define(name: str, task: Task[Any, Any], times: Times) -> Definition:
    """Return the definition of a schedule of a task, with the options that its jobs have as of now.

    Raises `TypeError` or `ValueError` for arguments without a form in JSON, or too large, and for a bad time zone.
    """
    expressions.check(times.expression, times.zone)
    return Definition(
        name=name,
        task_name=task.name,
        arguments=encode_arguments(times.args, times.kwargs),
        expression=times.expression,
        time_zone=times.zone,
        missed=times.missed,
        if_running=times.if_running,
        jitter_seconds=times.jitter_seconds,
        **task_options(task),
    )


def task_options(task: Task[Any, Any]) -> dict[str, Any]:
    """Return what a definition says of the jobs of its task, as of now."""
    return {
        "queue_name": task.queue_name,
        "priority": task.priority,
        "max_attempts": task.max_attempts or get_settings().MAX_ATTEMPTS,
        "expires_seconds": expires_seconds(task),
        "is_unique": task.unique_key is not None,
    }


def expires_seconds(task: Task[Any, Any]) -> float | None:
    """Return by when a schedule's job of a task has to start, in seconds from its enqueue; None: whenever."""
    return None if task.expires is None or isinstance(task.expires, datetime) else in_seconds(task.expires)


def check_jitter(task: Task[Any, Any], jitter_seconds: float) -> None:
    """Raise `ValueError` if jitter could put a job of the task off until it has expired."""
    limit = expires_seconds(task)
    if limit is not None and jitter_seconds >= limit:
        raise ValueError(
            f"its jobs expire {limit:g} s after their enqueue, and jitter may put them off by {jitter_seconds:g} s: "
            "make jitter shorter"
        )


def problems() -> Iterator[str]:
    """Yield what is wrong with the code's schedules beyond what decorating a task has shown, a sentence each."""
    for name, count in Counter(name for name, _, _ in _named()).items():
        if count > 1:
            yield f"{count} schedules are named {name!r}, of which only the first would run: give them other names."
    for name, task, times in _named():
        try:
            define(name, task, times)
        except (TypeError, ValueError) as error:
            yield f"the schedule {name!r} of {task.name} cannot run: {error}"


def _named() -> Iterator[tuple[str, Task[Any, Any], Times]]:
    """Yield (name, task, times) of each schedule whose task is known still."""
    for task, schedule in _declared.values():
        if registry.get(task.name) is not task:
            continue
        for place, times in enumerate(schedule, 1):
            yield times.name or (task.name if place == 1 else f"{task.name}:{place}"), task, times


def _alias(task: Task[Any, Any]) -> str:
    from .models import Job  # tasks load before the apps are ready

    own = task.database or (task.adapter and task.adapter.database)
    return own or router.db_for_write(Job)
