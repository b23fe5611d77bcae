"""The `@task` decorator: it creates a `Task` from a function and registers it.

Application modules use it when they are imported. It checks a task and its schedules before it registers them, so that
the registry contains no invalid task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, Unpack, overload

from . import registry
from .context import TaskContext
from .exceptions import InvalidTask
from .options import TaskOptions
from .schedules import declarations
from .schedules.declarations import Times
from .task import Task

NO_OPTIONS: Final = {"func", "adapter", "headers"}
"""Fields of `Task` that are not options of `@task`."""
OPTIONS: Final = frozenset(field.name for field in fields(Task) if field.init) - NO_OPTIONS | {"schedule"}

P = ParamSpec("P")
R = TypeVar("R")


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    name: str = ...,
    database: str | None = ...,
    schedule: Times | Iterable[Times] = ...,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[Concatenate[TaskContext, P], R]], Task[P, R]]: ...
@overload
def task(
    *,
    takes_context: Literal[False] = ...,
    name: str = ...,
    database: str | None = ...,
    schedule: Times | Iterable[Times] = ...,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None, /, *, schedule: Times | Iterable[Times] = (), **options: Any
) -> Any:
    """Make a task from a module-level function. Use it with or without options.

    Args:
        name: Key of the task in job rows. By default the dotted path of the function.
        aliases: Earlier names of the task. Workers still accept jobs with these names.
        queue_name: Queue of the jobs, by default "default".
        priority: -100 to 100, higher first. By default 0.
        database: Alias of the database for the jobs. By default the database that the routers choose.
        takes_context: Whether the function's first argument is a `TaskContext`. It must be named `context`.
        max_attempts: Maximum attempts of a job, 1 to 1000. None uses `PGQUEUE["MAX_ATTEMPTS"]`.
        backoff: Delay before the next attempt: seconds, a timedelta, or a function of (attempt, exception) that returns
            one of these, or None for no further attempt. See `exponential()`, which is the default, and `fixed()`.
        retry_for: Exceptions after which the job is attempted again. By default all.
        no_retry_for: Exceptions after which the job is dead at once. They take precedence over `retry_for`.
        atomic: Whether the function and the job's completion share one transaction on the job's database. The effects
            of the function on that database then happen exactly once.
        retention: How long finished jobs are kept: seconds, a timedelta, "forever", or a dict of these by state. With 0
            for "succeeded", the completion deletes the job. None uses `PGQUEUE["RETENTION"]`.
        store_result: Whether the return value is stored. If JSON cannot represent it, the job is dead.
        timeout: Seconds or a timedelta that one attempt may run. Then a thread gets `TaskTimeout`, a coroutine is
            cancelled, and an isolated process is killed. None sets no limit.
        isolation: "process" runs each job in an isolated process, so that a crash affects no other job.
        expires: Seconds or a timedelta from the enqueue within which each attempt must start. Later, the job is
            cancelled instead.
        unique_key: Key that at most one job has at a time: a string, or a function of the call's arguments that returns
            a string, or None for a job without a key.
        unique_while: How long a job keeps its key: "ready+running" (the default), "ready", or a period from its enqueue
            in seconds or as a timedelta.
        on_conflict: Effect of a call whose key another job has: "skip" (the default) adds no job, "replace" replaces
            that job while it waits, "raise" raises `DuplicateJob`.
        schedule: `cron(…)`, `every(…)` or a list of these. Workers enqueue the task at these times.

    Raises:
        InvalidTask: The function cannot be a task, an option is unknown or invalid, or another task has the name.

    Example::

        @task(queue_name="mail", max_attempts=5, no_retry_for=ValueError)
        def send_receipt(order_id: int) -> None: ...


        send_receipt.enqueue(order.pk)
    """

    def decorate(func: Callable[..., Any]) -> Task[Any, Any]:
        for unknown in set(options) - OPTIONS:
            close = get_close_matches(unknown, OPTIONS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(sorted(OPTIONS))}"
            raise InvalidTask(f"@task has no option {unknown!r}: {hint}")
        new_task: Task[Any, Any] = Task(func=func, **options)
        # Check the schedule before register(). Otherwise a task with an invalid schedule would stay registered.
        times = declarations.check_schedule(new_task, schedule)
        registry.register(new_task)
        declarations.declare(new_task, times)
        return new_task

    return decorate if function is None else decorate(function)
