"""The schedules of this process's tasks, as its code declares them.

`@task` and the `django.tasks` backend register schedules here, the system checks report their problems, and the admin
checks its forms with the same functions. This module writes nothing to the database: the workers store the definitions,
see `worker.maintenance.scheduler`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import router

from django_pgqueue.encoding.serialization import normalise_call, plain_arguments
from django_pgqueue.enqueue.new_job import search_keys_of
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle.schedules import Definition
from django_pgqueue.options.task_options import columns_of, scheduled_options
from django_pgqueue.options.validation import check_call
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.definition import TaskDefinition

from . import next_ticks
from .cron_and_every import Times

logger = logging.getLogger("django_pgqueue.worker")

_declared: dict[str, tuple[TaskDefinition, tuple[Times, ...]]] = {}
_logged_problems: set[str] = set()
"""Names of the schedules whose problem this process has logged."""


def check_schedule(task: TaskDefinition, schedule: Any) -> tuple[Times, ...]:
    """Return a task's schedules as a tuple. Raises `InvalidTask` if one is invalid, or cannot call the task."""
    schedules = tuple(schedule) if isinstance(schedule, Iterable) else (schedule,)
    if schedules and callable(task.database):
        raise InvalidTask(
            f"{task.name}: a schedule is stored in one database, and database= is a function: give the schedule to a "
            "task with a fixed database, which enqueues this task"
        )
    for times in schedules:
        if not isinstance(times, Times):
            raise InvalidTask(f"{task.name}: schedule must be cron(…), every(…) or a list of them, not {schedule!r}")
        try:
            check_jitter(task, times.jitter_seconds)
            as_scheduled(task, times.queue_name, times.priority)
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
            try:
                defined[name] = define(name, task, times)
                _logged_problems.discard(name)
            except Exception as error:  # noqa: BLE001 -- encoding an argument runs the project's code
                _log_once(name, error)
    return defined


def _log_once(name: str, error: Exception) -> None:
    """Log why a schedule is omitted. The workers ask for the definitions again and again."""
    if name not in _logged_problems:
        _logged_problems.add(name)
        logger.error(
            "schedule %s is omitted, because its definition is invalid: %s",
            registry.in_words(name),
            error,
            extra=event("schedule_failed", schedule=name, reason=str(error)),
        )


def define(name: str, task: TaskDefinition, times: Times) -> Definition:
    """Return the definition of a task's schedule, with the current options of the task.

    Raises `TypeError` or `ValueError` if the arguments cannot be stored as JSON or are too large, or if the time zone
    is invalid.
    """
    next_ticks.check(times.expression, times.zone)
    call = task.encoded_call(times.args, times.kwargs)
    search_keys_of(task, *call)  # to raise its errors here, and not at the first tick
    return Definition(
        name=name,
        task_name=task.name,
        arguments=plain_arguments(*call),
        expression=times.expression,
        time_zone=times.zone,
        missed=times.missed,
        if_running=times.if_running,
        jitter_seconds=times.jitter_seconds,
        options=scheduled_options(as_scheduled(task, times.queue_name, times.priority)),
        is_unique=task.unique_key is not None,
        is_limited=task.has_limit_key,
        has_own_queue=times.queue_name is not None,
        has_own_priority=times.priority is not None,
    )


def as_scheduled(task: TaskDefinition, queue_name: str | None, priority: int | None) -> TaskDefinition:
    """Return the task with the queue and the priority of a schedule. None: the task's own.

    Raises `InvalidTask` if one is invalid, or if `PGQUEUE["QUEUES"]` or the task's backend does not list the queue.
    """
    if queue_name is not None and task.adapter is not None:
        task.adapter.check_queue(queue_name)
    own: dict[str, Any] = {"queue_name": queue_name, "priority": priority}
    return replace(task, **{name: value for name, value in own.items() if value is not None})


def check_jitter(task: TaskDefinition, jitter_seconds: float) -> None:
    """Raise `ValueError` if jitter could delay a job of the task until it has expired."""
    limit = columns_of(task)["expires_seconds"]
    if limit is not None and jitter_seconds >= limit:
        raise ValueError(
            f"its jobs expire {limit:g} s after they are enqueued, and jitter can delay them by {jitter_seconds:g} s: "
            "make jitter shorter"
        )


def of_task(task: TaskDefinition) -> list[tuple[str, Times]]:
    """Return the schedules that this process's code declares for a task, each with its name."""
    return [(name, times) for name, scheduled, times in _named() if scheduled is task]


def problems() -> Iterator[str]:
    """Yield one sentence per problem with the declared schedules that `@task` could not detect."""
    for name, count in Counter(name for name, _, _ in _named()).items():
        if count > 1:
            yield f"{count} schedules are named {name!r}, and only the first would run: give each its own name=…."
    for name, task, times in _named():
        try:
            define(name, task, times)
        except Exception as error:  # noqa: BLE001 -- as above
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

    return task.fixed_database or (task.adapter and task.adapter.database) or router.db_for_write(Job)
