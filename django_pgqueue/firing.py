"""What a schedule's next job is enqueued with: what any other call of its task is, as far as the code here knows it.

The row of a schedule says what every worker has to know; a unique key and the headers come of the task and of the
middleware, which only a process with the task has.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from . import lifecycle, middleware, registry, signals, timetable, uniqueness
from .arguments import decode_arguments, encode_headers
from .db import Connection
from .exceptions import seconds
from .lifecycle import JobOptions, Scheduled
from .signals import TaskSignal

if TYPE_CHECKING:
    from .task import Task

T = TypeVar("T")


class Application(Protocol):
    """How the scheduler calls code of the application."""

    def ask(self, function: Callable[[], T]) -> T:
        """Return what a function answers, or raise what it raises."""

    def publish(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Send a signal."""

    def call(self, function: Callable[[], None]) -> None:
        """Call a function and ignore what it returns."""


class InThisThread:
    """Calls it at once, in the caller's thread."""

    def ask(self, function: Callable[[], T]) -> T:
        """Call it."""
        return function()

    def publish(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Send it."""
        signal.send_robust(sender=task_name, **about)

    def call(self, function: Callable[[], None]) -> None:
        """Call it."""
        function()


IN_THIS_THREAD: Final = InThisThread()


class CannotFire(ValueError):
    """The next job of a schedule cannot be made; what the project's own code raised is the cause."""


class LeftToOthers(CannotFire):
    """Only a process whose code has a unique key for the schedule's task can make its next job."""


def options_of(connection: Connection, one: Scheduled, application: Application = IN_THIS_THREAD) -> JobOptions:
    """Return what the next job of a schedule is enqueued with; runs the middleware, as each enqueue does.

    For a schedule of the code the row says it, and this may be older or newer code: where it says that there is a key,
    only code with one may fire it. One of the admin follows its task where that is known.
    Raises `LeftToOthers`, or `CannotFire` if the task's key or a middleware does not do; nothing is written then.
    """
    task = registry.get(one.task_name)
    if one.is_unique and (task is None or (one.is_of_code and task.unique_key is None)):
        raise LeftToOthers(f"its jobs are unique, and the code here has no unique key for {one.task_name}")
    if task is None:
        return _stored(one)
    options = _stored(one) if one.is_of_code else _taken_over(task)
    headers = _asked(
        connection,
        "the middleware",
        lambda: encode_headers(middleware.headers_of(task, connection.alias)),
        application,
    )
    options = options._replace(headers=headers)
    if task.unique_key is None:
        return options
    key = _key_of(connection, one, task, application)
    if key is None:
        return options
    options = options._replace(unique_key=key, task_name=task.name)
    if not isinstance(task.unique_while, str):
        return options._replace(period_seconds=seconds(task.unique_while))
    return options._replace(unique_ready_only=task.unique_while == "ready" or None)


def _stored(one: Scheduled) -> JobOptions:
    return JobOptions(one.queue_name, one.priority, one.max_attempts, one.expires_seconds)


def _taken_over(task: Task[Any, Any]) -> JobOptions:
    given = timetable.task_options(task)
    return JobOptions(given["queue_name"], given["priority"], given["max_attempts"], given["expires_seconds"])


def _key_of(connection: Connection, one: Scheduled, task: Task[Any, Any], application: Application) -> str | None:
    if not callable(task.unique_key):
        return task.unique_key
    arguments = lifecycle.arguments_of(connection, one)
    if arguments is None:  # it has another definition by now, and will not be fired by this one
        return None
    return _asked(
        connection, "the unique key", lambda: uniqueness.key_of(task, *decode_arguments(arguments)), application
    )


def _asked(connection: Connection, what: str, ask: Callable[[], T], application: Application) -> T:
    """Return what the project's own code answers; whatever it raises is said in one sentence.

    A query of its that fails leaves a transaction usable that is open here: an operator's request, a test.
    """
    try:
        with lifecycle.savepoint(connection):
            return application.ask(ask)
    except (Exception, SystemExit, GeneratorExit, CancelledError) as error:
        raise CannotFire(f"{what} raised {type(error).__name__}{_said(error)}") from error


def _said(error: BaseException) -> str:
    try:
        return f": {error}" if str(error) else ""
    except BaseException:  # noqa: BLE001 -- __str__ is the project's own code too
        return ""


def tell(
    connection: Connection,
    one: Scheduled,
    options: JobOptions,
    job_id: int,
    application: Application = IN_THIS_THREAD,
) -> None:
    """Send the signals of a job that was made, as for an enqueue."""
    task_name = options.task_name or one.task_name
    about: dict[str, Any] = {"job_id": job_id, "database": connection.alias, "queue_name": options.queue_name}
    task = registry.get(task_name)
    if task is not None and task.adapter is not None:
        application.call(partial(task.adapter.enqueued, **about))
    application.publish(signals.job_enqueued, task_name, about)


def holder_of(connection: Connection, options: JobOptions) -> str:
    """Return in words which job has the unique key of one that was not made."""
    key, task_name = options.unique_key or "", options.task_name or ""
    look = lifecycle.holders if options.period_seconds is None else lifecycle.holds
    found = look(connection, task_name, [key])
    return f"job {found[key]}" if key in found else "a job that has just ended"
