"""The task class and the `@task` decorator for Django's framework, with this package's options.

Creating a `PgQueueTask` registers it with the engine (`adopt()`), so that a worker finds it by its module path. A copy
made by `using()` is not registered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from asgiref.sync import sync_to_async

from django_pgqueue import exceptions, queues
from django_pgqueue.declared.limits import Limit
from django_pgqueue.enqueue.mistaken_calls import missing_attribute
from django_pgqueue.options.task_options import (
    BACKEND_DEFAULTS,
    SharedFields,
    TaskOptions,
    UsingOptions,
    changed_options,
    normalise,
)
from django_pgqueue.options.validation import limit_problems
from django_pgqueue.schedules import declarations
from django_pgqueue.schedules.cron_and_every import Times
from django_pgqueue.task import Task as EngineTask
from django_pgqueue.tasks import registry
from django_pgqueue.tasks.patching import Patchable, patchable
from django_pgqueue.tasks.redaction import hiding_class

from . import framework_signals
from .adapter import Adapter
from .compat import InvalidTask, Task, task_backends

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:
    from .result_translation import JobResult

    class TypedTask(Task[P, R]):
        """Django's task, generic over the function's types, as its stubs and the backport declare it."""

else:

    class TypedTask(Task):
        """Django's task, which is not generic at run time."""

        __slots__ = ()

        def __class_getitem__(cls, types):
            return cls


SHARED = frozenset({"queue_name", "priority", "takes_context"})
"""Fields of Django's task that have the same meaning in the engine."""


@patchable
@dataclass(frozen=True, slots=True, kw_only=True)
class PgQueueTask(Patchable, TypedTask[P, R], SharedFields):
    """A task of Django's framework whose jobs this package runs.

    The additional fields are the options of this package's own `@task`, with one difference: without `max_attempts`,
    here or in the backend's OPTIONS, a job is not retried, because code that was written for Django's framework does
    not expect retries.

    Attributes:
        headers: Headers for the middleware. Set it with `using()`; it is not an option of `@task`.
        run_after_delay: Delay from the time of the enqueue. Set it with `using(run_after=timedelta(...))`; it is not an
            option.
    """

    schedule: Times | Iterable[Times] = field(default=(), repr=False, compare=False)
    run_after_delay: timedelta | None = None

    if not TYPE_CHECKING:  # type checkers would take its arguments for those of `PgQueueTask()`

        def __new__(cls, **fields):
            return object.__new__(hiding_class(cls) if fields.get("sensitive") else cls)

    def __post_init__(self) -> None:
        """Validate and register the task. Raise Django's `InvalidTask` for options that a backend does not accept."""
        Task.__post_init__(self)  # super() without arguments fails in a class with slots before Python 3.14
        try:
            normalise(self)
        except exceptions.InvalidTask as error:
            raise InvalidTask(str(error)) from error
        adopt(self)

    def using(
        self,
        /,
        *,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        **options: Unpack[UsingOptions],
    ) -> PgQueueTask[P, R]:
        """Return a copy of the task with other options.

        None resets `max_attempts`, `unique_key` (with `unique_while` and `on_conflict`), `limit`, `expires`,
        `batch` and `headers`. For Django's own options None changes nothing, as in Django's own `using()`.

        Args:
            run_after: Earliest time to run the job: an aware datetime, or a timedelta from the enqueue.
            backend: Alias in TASKS.
            **options: As for `Task.using()` of this package's own tasks.

        Raises:
            InvalidTask: An option is invalid.

        Warns:
            UnknownQueueWarning: As for `Task.using()`. A backend that lists its QUEUES refuses other names instead.
        """
        changes = changed_options(options, backend=backend)
        if isinstance(run_after, timedelta):
            changes |= {"run_after": None, "run_after_delay": run_after}
        elif run_after is not None:
            changes |= {"run_after": run_after, "run_after_delay": None}
        changed = replace(self, **changes)
        if changed.limit is not None and changed.limit is not self.limit:
            check_limit(changed.limit)
        if (queue_name := options.get("queue_name")) is not None and not changed.get_backend().queues:
            queues.warn_if_mistyped(queue_name)
        return changed

    def enqueue_on_commit(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult | None:
        """Enqueue a job that workers see when the open transactions have committed, whichever database they are on.

        `Task.enqueue_on_commit()` of this package's own tasks explains it. A backend for tests enqueues the task at
        once.

        Returns:
            The result of the new job; None if the job will be added after a commit.
        """
        backend: Any = self.get_backend()
        enqueue = getattr(backend, "enqueue_on_commit", backend.enqueue)
        result: JobResult | None = enqueue(self, args, kwargs)
        return result

    async def aenqueue_on_commit(self, /, *args: P.args, **kwargs: P.kwargs) -> JobResult | None:
        """Do as `enqueue_on_commit()` from asynchronous code, in a thread."""
        return await sync_to_async(partial(self.enqueue_on_commit, *args, **kwargs))()

    if not TYPE_CHECKING:  # type checkers would accept any attribute

        def __getattr__(self, name):
            """Say what to call instead of another queue's method. Python calls this for a missing attribute."""
            raise missing_attribute(self, name)


@overload
def task(function: Callable[P, R], /) -> PgQueueTask[P, R]: ...
@overload
def task(
    *,
    takes_context: Literal[True],
    backend: str = ...,
    schedule: Times | Iterable[Times] = ...,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[Concatenate[Any, P], R]], PgQueueTask[P, R]]: ...
@overload
def task(
    *,
    takes_context: Literal[False] = ...,
    backend: str = ...,
    schedule: Times | Iterable[Times] = ...,
    **options: Unpack[TaskOptions],
) -> Callable[[Callable[P, R]], PgQueueTask[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, *, backend: str = "default", **options: Any) -> Any:
    """Decorate a function like Django's `@task`, with this package's options on every Django version and backend.

    Django's own decorator accepts additional options from Django 6.1 on, and only if the backend's `task_class` has
    them. A project whose tests use Django's ImmediateBackend could not be imported with it.

    Args:
        function: The function, if the decorator is used without options.
        backend: The alias in TASKS.
        **options: `takes_context`, and the options of `PgQueueTask`.

    Returns:
        The task, or a decorator that returns it.

    Raises:
        InvalidTask: The function or an option is invalid.
    """

    def decorate(func: Callable[..., Any]) -> PgQueueTask[Any, Any]:
        task_class = task_backends[backend].task_class
        if not issubclass(task_class, PgQueueTask):
            task_class = PgQueueTask
        return task_class(func=func, backend=backend, **DJANGO_DEFAULTS | options)

    return decorate if function is None else decorate(function)


DJANGO_DEFAULTS: dict[str, Any] = {"priority": 0, "queue_name": "default", "run_after": None, "takes_context": False}
"""Defaults that the fields of Django 6.0's task class lack."""


def adopt(task: PgQueueTask[Any, Any]) -> EngineTask[Any, Any]:
    """Return the registered engine task of this task's function. Register this one if the function has none yet.

    Raise the framework's `InvalidTask` if the engine refuses the task. Nothing is registered in that case.
    """
    name = task.module_path
    known = registry.get(name)
    if isinstance(known, EngineTask) and known.func is task.func:
        return known
    try:
        engine_task = for_engine(task)
        times = declarations.check_schedule(engine_task, task.schedule)  # an error must not leave the task registered
        registry.register(engine_task)
        declarations.declare(engine_task, times)
    except exceptions.InvalidTask as error:
        raise InvalidTask(str(error)) from error
    framework_signals.connect(engine_task.name)
    for alias in engine_task.aliases:
        framework_signals.connect(alias)
    return engine_task


def check_limit(limit: Limit) -> None:
    """Raise the framework's `InvalidTask` if no registered task declares this limit."""
    for problem in limit_problems("limit", limit):
        raise InvalidTask(problem)
    try:
        registry.check_limit(limit)
    except exceptions.InvalidTask as error:
        raise InvalidTask(str(error)) from error


def for_engine(task: PgQueueTask[Any, Any]) -> EngineTask[Any, Any]:
    """Return the engine's task for this task, with the defaults of its backend. Raise the engine's `InvalidTask`."""
    adapter = Adapter(task, task.get_backend())
    options = adapter.options
    values = {name: getattr(task, name) for name in (*(each.name for each in fields(SharedFields)), *SHARED)}
    for name in BACKEND_DEFAULTS & set(options):
        if values[name.lower()] is None:
            values[name.lower()] = options[name]
    if values["max_attempts"] is None:
        values["max_attempts"] = 1
    run_after = task.run_after if task.run_after_delay is None else task.run_after_delay
    return EngineTask(func=task.func, name=task.module_path, run_after=run_after, adapter=adapter, **values)
