"""Make a schedule's next job, so that it is enqueued like any other call of its task.

The scheduler and the admin's "Run now" call `next_job()`. A schedule's row has the options that every worker must
know. The unique key, the limit, the search keys and the headers come from the task and the middleware. Only a process
whose code has the task can determine them. An error of the project's code in one schedule must not stop the others: it
becomes `CannotFire`.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from django_pgqueue import middleware, signals
from django_pgqueue.db.statements import Connection
from django_pgqueue.declared.key_templates import reads_arguments
from django_pgqueue.encoding.serialization import decode_arguments
from django_pgqueue.enqueue.new_job import new_job, row_of
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.lifecycle import execute, schedules, unique
from django_pgqueue.lifecycle.enqueueing import NewJob
from django_pgqueue.lifecycle.schedules import Scheduled
from django_pgqueue.options.task_options import UNSET, JobOptions, scheduled_options
from django_pgqueue.signals import TaskSignal
from django_pgqueue.tasks import registry

if TYPE_CHECKING:
    from django_pgqueue.models import Schedule
    from django_pgqueue.tasks.definition import TaskDefinition

T = TypeVar("T")
OWN: Final = {"queue_name": "has_own_queue", "priority": "has_own_priority"}
"""Options that a schedule of the admin can set, and the columns that say whether it does. Its task sets the others."""


class Application(Protocol):
    """How the scheduler calls the application's code."""

    def ask(self, function: Callable[[], T], owner: str, occasion: Hashable, describe: Callable[[], str]) -> T:
        """Call a function and return its result. Its errors pass through.

        Args:
            function: The project's code.
            owner: Identifies the calls that may not hang too often.
            occasion: If this raises `NotReturned`, a later call for the same owner and occasion returns the result.
            describe: Return the name of the function that is called, for messages.
        """

    def publish(self, signal: TaskSignal, task_name: str | None, about: dict[str, Any]) -> None:
        """Send a signal."""

    def call(self, function: Callable[[], None]) -> None:
        """Call a function and ignore its result."""


class InThisThread:
    """Calls the application's code at once, in the caller's thread."""

    def ask(self, function: Callable[[], T], owner: str, occasion: Hashable, describe: Callable[[], str]) -> T:
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


class NotReturned(Exception):
    """The project's code has not returned yet. Ask for the options again after `retry_seconds`."""

    def __init__(self, retry_seconds: float) -> None:
        super().__init__(f"the call has not returned, ask again after {retry_seconds:g} s")
        self.retry_seconds = retry_seconds


def next_job(connection: Connection, schedule: Scheduled, application: Application = IN_THIS_THREAD) -> NewJob:
    """Return a schedule's next job, for `lifecycle.ticks.fire()`. Calls the middleware, like every enqueue.

    A schedule declared in code has the options in its row, because this process may have older or newer code. If the
    row says that the jobs are unique or limited, only code with a unique key or a limit may fire it. A schedule of the
    admin has its own queue and priority if an operator has set them. The other options are the current ones of its task
    if this process knows the task, otherwise those in the row.

    Raises `LeftToOthers` if this process's code lacks the unique key or the limit, or `CannotFire` if one of them or a
    middleware fails. Raises `NotReturned` if the application has not returned yet. It writes nothing.
    """
    task = registry.get(schedule.task_name)
    _check_code(schedule, task)
    if task is None:
        row = {**UNSET, **schedule.options._asdict(), "delay_seconds": 0.0}
        return NewJob({"task_name": schedule.task_name, **row}, "")
    own = {name: getattr(schedule.options, name) for name, flag in OWN.items() if getattr(schedule, flag)}
    options = schedule.options if schedule.is_of_code else scheduled_options(task)._replace(**own)
    if (options.queue_name, options.priority) != (task.queue_name, task.priority):
        with suppress(InvalidTask):  # newer code has stored a queue that this process does not accept
            task = replace(task, queue_name=options.queue_name, priority=options.priority)
    needs_arguments = task.search or task.has_limit_key or reads_arguments(task.unique_key)
    arguments = schedules.arguments_of(connection, schedule) if needs_arguments else ""
    code = _ProjectCode(task, schedule, connection.alias, options, arguments)
    if needs_arguments or middleware.is_used():
        return _call_application(connection, code, application)
    return code()  # no code of the project is called


class _ProjectCode:
    """The project's code that determines a schedule's next job. It is called as one function.

    `arguments` is None if the definition has changed since the schedule was read. Then this tick will not be fired, and
    only the middleware is called. It is empty if no code needs the arguments.
    """

    def __init__(
        self, task: TaskDefinition, schedule: Scheduled, alias: str, options: JobOptions, arguments: str | None
    ) -> None:
        self.schedule = schedule
        self._task, self._alias, self._options, self._arguments = task, alias, options, arguments
        self.source = "the middleware"
        """The name of the code that is being called."""

    def __call__(self) -> NewJob:
        """Return the next job."""
        task, arguments = self._task, self._arguments
        row = {**self._named("the middleware", row_of, task, self._alias, self.schedule), **self._options._asdict()}
        if task.unique_key is None:
            row["task_name"] = self.schedule.task_name  # workers with older code may not know the current name
        if arguments is None:
            return NewJob(row, "")
        call = decode_arguments(arguments) if arguments else ((), {})
        return new_job(task, call, row, arguments=arguments, call_project=self._named)

    def _named(self, source: str, function: Callable[..., T], /, *args: Any) -> T:
        """Call a function of the project. Turn its errors into `CannotFire`, whose message begins with `source`."""
        self.source = source
        try:
            return function(*args)
        except (Exception, SystemExit, GeneratorExit, CancelledError) as error:
            raise CannotFire(f"{source} raised {type(error).__name__}{_message(error)}") from error


def _check_code(schedule: Scheduled, task: TaskDefinition | None) -> None:
    """Raise `LeftToOthers` if only code with a unique key or a limit may fire a schedule, and `task` has none."""
    name = schedule.task_name
    if schedule.is_unique and (task is None or (schedule.is_of_code and task.unique_key is None)):
        raise LeftToOthers(
            f"its jobs are unique, but the code of the worker that tried to fire it has no unique key for {name}"
        )
    if schedule.is_limited and (task is None or (schedule.is_of_code and not task.has_limit_key)):
        raise LeftToOthers(
            f"its jobs have a limit, but the code of the worker that tried to fire it has no limit for {name}"
        )


def current(schedule: Schedule, option: str) -> Any:
    """Return the queue or the priority of a schedule's next job, as `next_job()` chooses it."""
    task = registry.get(schedule.task_name)
    is_of_row = task is None or schedule.origin == "code" or getattr(schedule, OWN[option])
    return getattr(schedule if is_of_row else task, option)


def _call_application(connection: Connection, code: _ProjectCode, application: Application) -> NewJob:
    """Call the project's code and return its result. Turn its errors into `CannotFire`.

    A savepoint keeps an open transaction (of an operator's request, or of a test) usable if a query of that code fails.
    """
    schedule = code.schedule
    owner, occasion = f"schedule {schedule.schedule_id}", (schedule.revision, schedule.next_run_at)
    try:
        with execute.savepoint(connection):
            return application.ask(code, owner, occasion, lambda: code.source)
    except (NotReturned, CannotFire):
        raise
    except Exception as error:
        raise CannotFire(str(error)) from error


def _message(error: BaseException) -> str:
    """Return `": "` and the message of an error, or an empty string if the error has no message."""
    try:
        return f": {error}" if str(error) else ""
    except BaseException:  # noqa: BLE001 -- __str__ is the project's code too
        return ""


def send_enqueued(
    connection: Connection,
    job: NewJob,
    job_id: int,
    application: Application = IN_THIS_THREAD,
) -> None:
    """Send the signals of a created job, like an enqueue."""
    arguments: dict[str, Any] = {"job_id": job_id, "database": connection.alias, "queue_name": job.queue_name}
    task = registry.get(job.task_name)
    if task is not None and task.adapter is not None:
        application.call(partial(task.adapter.enqueued, **arguments))
    application.publish(signals.job_enqueued, job.task_name, arguments)


def holder_of(connection: Connection, job: NewJob) -> str:
    """Return a description of the job that has the unique key, when a tick created no job because of that key."""
    key, is_for_period = job.key or "", job.uniqueness is not None and job.uniqueness.period_seconds is not None
    find = unique.open_windows if is_for_period else unique.holders
    job_ids = find(connection, job.task_name, [key])
    return f"job {job_ids[key]}" if key in job_ids else "a job that has just ended"
