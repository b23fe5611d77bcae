"""Determine the options of a schedule's next job, so that it is enqueued like any other call of its task.

The scheduler and the admin's "Run now" call `options_of()`. A schedule's row has the options that every worker must
know. The unique key, the limit, the search keys and the headers come from the task and the middleware. Only a process
whose code has the task can determine them. An error of the project's code in one schedule must not stop the others: it
becomes `CannotFire`.
"""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from django_pgqueue import lifecycle, middleware, registry, signals
from django_pgqueue.db.statements import Connection
from django_pgqueue.enqueue import unique
from django_pgqueue.enqueue.call_limits import columns_of_call
from django_pgqueue.enqueue.search_keys import search_keys_of
from django_pgqueue.exceptions import InvalidTask, seconds
from django_pgqueue.headers import encode_headers
from django_pgqueue.lifecycle import Scheduled
from django_pgqueue.options import JobOptions, scheduled_options
from django_pgqueue.serialization import decode_arguments
from django_pgqueue.signals import TaskSignal

if TYPE_CHECKING:
    from django_pgqueue.definition import TaskDefinition
    from django_pgqueue.models import Schedule

T = TypeVar("T")
OWN: Final = {"queue_name": "has_own_queue", "priority": "has_own_priority"}
"""Options that a schedule of the admin can set, and the columns that say whether it does. Its task sets the others."""


class Application(Protocol):
    """How the scheduler calls the application's code."""

    def ask(self, function: Callable[[], T]) -> T:
        """Call a function and return its result. Its errors pass through."""

    def publish(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Send a signal."""

    def call(self, function: Callable[[], None]) -> None:
        """Call a function and ignore its result."""


class InThisThread:
    """Calls the application's code at once, in the caller's thread."""

    def ask(self, function: Callable[[], T]) -> T:
        """Call the function and return its result."""
        return function()

    def publish(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Send the signal. Errors of receivers are logged by Django."""
        signal.send_robust(sender=task_name, **about)

    def call(self, function: Callable[[], None]) -> None:
        """Call the function."""
        function()


IN_THIS_THREAD: Final = InThisThread()


class CannotFire(ValueError):
    """The next job of a schedule cannot be created. `__cause__` is the error of the project's code, if there is one."""


class LeftToOthers(CannotFire):
    """Only a process whose code has the unique key or the limit of the schedule's task can create its next job."""


def options_of(connection: Connection, schedule: Scheduled, application: Application = IN_THIS_THREAD) -> JobOptions:
    """Return the options of a schedule's next job. Calls the middleware, like every enqueue.

    A schedule declared in code has the options in its row, because this process may have older or newer code. If the
    row says that the jobs are unique or limited, only code with a unique key or a limit may fire it. A schedule of the
    admin has its own queue and priority if an operator has set them. The other options are the current ones of its task
    if this process knows the task, otherwise those in the row.

    Raises `LeftToOthers` if this process's code lacks the unique key or the limit, or `CannotFire` if one of them or a
    middleware fails. It writes nothing.
    """
    task = registry.get(schedule.task_name)
    _check_code(schedule, task)
    if task is None:
        return schedule.options
    own = {name: getattr(schedule.options, name) for name, flag in OWN.items() if getattr(schedule, flag)}
    options = schedule.options if schedule.is_of_code else scheduled_options(task)._replace(**own)
    if (options.queue_name, options.priority) != (task.queue_name, task.priority):
        with suppress(InvalidTask):  # newer code has stored a queue that this process does not accept
            task = replace(task, queue_name=options.queue_name, priority=options.priority)
    headers = _call_application(
        connection,
        "the middleware",
        lambda: encode_headers(middleware.headers_of(task, connection.alias, schedule)),
        application,
    )
    options = options._replace(headers=headers)
    if task.search:
        keys = _search_keys_of(connection, schedule, task, application)
        options = options._replace(search_keys=json.dumps(keys) if keys else None)
    if task.has_limit_key:
        options = options._replace(**_limit_columns(connection, schedule, task, application))
    key = None if task.unique_key is None else _key_of(connection, schedule, task, application)
    return options if key is None else _with_key(options, task, key)


def _check_code(schedule: Scheduled, task: TaskDefinition | None) -> None:
    """Raise `LeftToOthers` if only code with a unique key or a limit may fire a schedule, and `task` has none."""
    name = schedule.task_name
    if schedule.is_unique and (task is None or (schedule.is_of_code and task.unique_key is None)):
        raise LeftToOthers(f"its jobs are unique, but this process's code has no unique key for {name}")
    if schedule.is_limited and (task is None or (schedule.is_of_code and not task.has_limit_key)):
        raise LeftToOthers(f"its jobs have a limit, but this process's code has no limit for {name}")


def _with_key(options: JobOptions, task: TaskDefinition, key: str) -> JobOptions:
    """Return the options of a job with a unique key."""
    options = options._replace(unique_key=key, task_name=task.name)
    if not isinstance(task.unique_while, str):
        return options._replace(period_seconds=seconds(task.unique_while))
    return options._replace(unique_ready_only=task.unique_while == "ready" or None)


def current(schedule: Schedule, option: str) -> Any:
    """Return the queue or the priority of a schedule's next job, as `options_of()` chooses it."""
    task = registry.get(schedule.task_name)
    is_of_row = task is None or schedule.origin == "code" or getattr(schedule, OWN[option])
    return getattr(schedule if is_of_row else task, option)


def _key_of(connection: Connection, schedule: Scheduled, task: TaskDefinition, application: Application) -> str | None:
    """Return the unique key of a schedule's next job, or None if the job is not unique."""
    if not callable(task.unique_key):
        return task.unique_key
    arguments = lifecycle.arguments_of(connection, schedule)
    if arguments is None:  # the definition has changed since it was read, so this tick will not be fired
        return None
    return _call_application(
        connection,
        "the unique key",
        lambda: unique.key_of(task, *task.decoded_call(*decode_arguments(arguments))),
        application,
    )


def _search_keys_of(
    connection: Connection, schedule: Scheduled, task: TaskDefinition, application: Application
) -> Mapping[str, str]:
    """Return the search keys of a schedule's next job, or none if its definition has changed since it was read."""
    arguments = lifecycle.arguments_of(connection, schedule)
    if arguments is None:
        return {}
    find = partial(search_keys_of, task)
    return _call_application(connection, "the search key", lambda: find(*decode_arguments(arguments)), application)


def _limit_columns(
    connection: Connection, schedule: Scheduled, task: TaskDefinition, application: Application
) -> Mapping[str, Any]:
    """Return the columns of the limit of a schedule's next job, or none if its definition has changed."""
    arguments = lifecycle.arguments_of(connection, schedule)
    if arguments is None:
        return {}
    stored = partial(decode_arguments, arguments)
    find = partial(columns_of_call, task)
    return _call_application(connection, "the limit", lambda: find(*task.decoded_call(*stored())), application)


def _call_application(connection: Connection, source: str, function: Callable[[], T], application: Application) -> T:
    """Call the project's code and return its result. Turn its errors into `CannotFire`.

    A savepoint keeps an open transaction (of an operator's request, or of a test) usable if a query of that code fails.
    """
    try:
        with lifecycle.savepoint(connection):
            return application.ask(function)
    except (Exception, SystemExit, GeneratorExit, CancelledError) as error:
        raise CannotFire(f"{source} raised {type(error).__name__}{_message(error)}") from error


def _message(error: BaseException) -> str:
    """Return `": "` and the message of an error, or an empty string if the error has no message."""
    try:
        return f": {error}" if str(error) else ""
    except BaseException:  # noqa: BLE001 -- __str__ is the project's code too
        return ""


def send_enqueued(
    connection: Connection,
    schedule: Scheduled,
    options: JobOptions,
    job_id: int,
    application: Application = IN_THIS_THREAD,
) -> None:
    """Send the signals of a created job, like an enqueue."""
    task_name = options.task_name or schedule.task_name
    arguments: dict[str, Any] = {"job_id": job_id, "database": connection.alias, "queue_name": options.queue_name}
    task = registry.get(task_name)
    if task is not None and task.adapter is not None:
        application.call(partial(task.adapter.enqueued, **arguments))
    application.publish(signals.job_enqueued, task_name, arguments)


def holder_of(connection: Connection, options: JobOptions) -> str:
    """Return a description of the job that has the unique key, when a tick created no job because of that key."""
    key, task_name = options.unique_key or "", options.task_name or ""
    find = lifecycle.holders if options.period_seconds is None else lifecycle.open_windows
    job_ids = find(connection, task_name, [key])
    return f"job {job_ids[key]}" if key in job_ids else "a job that has just ended"
