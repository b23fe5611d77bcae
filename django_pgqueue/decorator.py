"""The `@task` decorator: it creates a `Task` from a function and registers it.

Application modules use it when they are imported. It checks a task and its schedules before it registers them, so that
the registry contains no invalid task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Concatenate, Final, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from .declared.chunks import Chunk
from .durations import Duration
from .exceptions import InvalidTask
from .options.task_options import OPTIONS, DatabaseOf, OnMissing, TaskOptions
from .schedules import declarations
from .schedules.cron_and_every import Times
from .task import Task
from .tasks import registry
from .tasks.context import TaskContext

NAMES: Final = {*OPTIONS, "schedule"}
ELSEWHERE: Final = {
    "retries": "pass max_attempts=4 for three retries: the first attempt counts",
    "max_retries": "pass max_attempts=4 for three retries: the first attempt counts",
    "queue": "did you mean 'queue_name'?",
    "backend": "pass database= for the alias of the jobs' database, or use django_pgqueue.backend.task for a backend",
    "bind": "pass takes_context=True; the first parameter is then named context",
}
"""Options of the decorators of Django's framework and of Celery, and what to write instead."""

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class ChunkDecorator(Protocol):
    """Makes a task of a function that gets a `Chunk`. Returned by `@task(chunk=…)`."""

    @overload
    def __call__(
        self, function: Callable[[Chunk[T]], Coroutine[Any, Any, None]], /
    ) -> Task[[T], Coroutine[Any, Any, None]]: ...
    @overload
    def __call__(
        self, function: Callable[[Chunk[T]], Coroutine[Any, Any, Sequence[R]]], /
    ) -> Task[[T], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[[Chunk[T]], None], /) -> Task[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[Chunk[T]], Sequence[R]], /) -> Task[[T], R]: ...


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    chunk: int,
    chunk_wait: Duration = ...,
    name: str = ...,
    database: str | DatabaseOf | None = ...,
    on_missing: OnMissing = ...,
    schedule: Times | Iterable[Times] = ...,
    **options: Unpack[TaskOptions],
) -> ChunkDecorator: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    name: str = ...,
    database: str | DatabaseOf | None = ...,
    on_missing: OnMissing = ...,
    schedule: Times | Iterable[Times] = ...,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[Concatenate[TaskContext, P], R]], Task[P, R]]: ...
@overload
def task(
    *,
    takes_context: Literal[False] = ...,
    name: str = ...,
    database: str | DatabaseOf | None = ...,
    on_missing: OnMissing = ...,
    schedule: Times | Iterable[Times] = ...,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None, /, *, schedule: Times | Iterable[Times] = (), **options: Any
) -> Any:
    """Make a task from a module-level function. Use it with or without options.

    Args:
        name: Key of the task in job rows. By default the dotted path of the function.
        database: Alias of the database for the jobs, or a function that gets the arguments of a call and returns it. By
            default, and if the function returns None, the routers choose the database.
        takes_context: Whether the function's first argument is a `TaskContext`. It must be named `context`.
        on_missing: Effect of a row that an argument names and that is gone when an attempt begins: "dead" (the
            default), "cancel", or "retry", which fails the attempt with the model's `DoesNotExist`.
        chunk: Maximum number of jobs that one call of the function gets as a `Chunk`, 1 to 1000.
        chunk_wait: How long a due job waits until there are `chunk` jobs: seconds or a timedelta, 0 by default.
        schedule: `cron(…)`, `every(…)` or a list of these. Workers enqueue the task at these times.
        **options: The other options are the keys of `options.task_options.TaskOptions`, which describes them.

    Raises:
        InvalidTask: The function cannot be a task, an option is unknown or invalid, or another task has the name.

    Example::

        @task(queue_name="mail", max_attempts=5, no_retry_for=ValueError)
        def send_receipt(order_id: int) -> None: ...


        send_receipt.enqueue(order.pk)
    """

    def decorate(func: Callable[..., Any]) -> Task[Any, Any]:
        for unknown in set(options) - NAMES:
            raise InvalidTask(f"@task has no option {unknown!r}: {_hint(unknown)}")
        new_task: Task[Any, Any] = Task(func=func, **options)
        # Check the schedule before register(). Otherwise a task with an invalid schedule would stay registered.
        times = declarations.check_schedule(new_task, schedule)
        registry.register(new_task)
        declarations.declare(new_task, times)
        return new_task

    return decorate if function is None else decorate(function)


def _hint(unknown: str) -> str:
    """Return what to write instead of an unknown option."""
    if unknown in ELSEWHERE:
        return ELSEWHERE[unknown]
    close = get_close_matches(unknown, NAMES, n=1)
    return f"did you mean {close[0]!r}?" if close else f"the options are {', '.join(sorted(NAMES))}"
