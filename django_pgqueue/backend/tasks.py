"""Tasks of Django's framework, with this package's options; and how each gets its entry in the registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from django_pgqueue import exceptions, registry, timetable
from django_pgqueue.conf import Retention
from django_pgqueue.exceptions import Duration
from django_pgqueue.retry import Backoff
from django_pgqueue.task import Errors, Isolation, OnConflict, UniqueKey, UniqueWhile
from django_pgqueue.task import Task as EngineTask
from django_pgqueue.timetable import Times
from django_pgqueue.validation import RunAfter

from . import telling
from .adapter import Adapter
from .compat import InvalidTask, Task, task_backends

P = ParamSpec("P")
R = TypeVar("R")

if TYPE_CHECKING:

    class TypedTask(Task[P, R]):
        """Django's task, which its stubs and the backport know the function's types of."""

else:

    class TypedTask(Task):
        """Django's task, which takes no types when the program runs."""

        __slots__ = ()

        def __class_getitem__(cls, types):
            return cls


class Options(TypedDict, total=False):
    """What `task()` takes besides `takes_context`."""

    priority: int
    queue_name: str
    backend: str
    max_attempts: int | None
    backoff: Backoff | Duration | None
    retry_for: type[BaseException] | Errors
    no_retry_for: type[BaseException] | Errors
    atomic: bool
    timeout: Duration | None
    isolation: Isolation | None
    retention: Retention | Mapping[str, Retention] | None
    store_result: bool
    aliases: Sequence[str]
    expires: Duration | None
    unique_key: UniqueKey | None
    unique_while: UniqueWhile
    on_conflict: OnConflict
    schedule: Times | Iterable[Times]


DEFAULTS = frozenset({"MAX_ATTEMPTS", "BACKOFF", "TIMEOUT", "RETENTION"})
"""What a backend's OPTIONS may say for all tasks that do not say it themselves."""
SHARED = frozenset({"queue_name", "priority", "takes_context"})
"""Fields of Django's task that mean the same here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PgQueueTask(TypedTask[P, R]):
    """A task of Django's framework whose jobs this package runs. Its further fields are the options of our `@task`.

    Without `max_attempts`, here or in the backend's OPTIONS, a job is not tried again: whoever wrote the task for
    Django's framework did not expect it to be.
    """

    max_attempts: int | None = None
    backoff: Backoff | Duration | None = None
    retry_for: type[BaseException] | Errors = (BaseException,)
    no_retry_for: type[BaseException] | Errors = ()
    atomic: bool = False
    timeout: Duration | None = None
    isolation: Isolation | None = None
    retention: Retention | Mapping[str, Retention] | None = None
    store_result: bool = True
    aliases: Sequence[str] = ()
    expires: RunAfter | None = None
    unique_key: UniqueKey | None = None
    unique_while: UniqueWhile = "ready+running"
    on_conflict: OnConflict = "skip"
    schedule: Times | Iterable[Times] = field(default=(), repr=False, compare=False)
    headers: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """Set by `using()`, and by no option."""
    delay: timedelta | None = None
    """From the enqueue, by the queue's time: set by `using(run_after=timedelta)`, and by no option."""

    def __post_init__(self) -> None:
        """Raises `InvalidTask` of Django's framework for what its backend, or this package, does not take."""
        Task.__post_init__(self)  # super() without arguments fails in a class with slots before Python 3.14
        adopt(self)

    def using(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        run_after: datetime | timedelta | None = None,
        backend: str | None = None,
        max_attempts: int | None = None,
        headers: Mapping[str, Any] | None = None,
        expires: RunAfter | None = None,
        unique_key: UniqueKey | None = None,
        unique_while: UniqueWhile | None = None,
        on_conflict: OnConflict | None = None,
    ) -> PgQueueTask[P, R]:
        """Return a copy with other values; what is None stays. `run_after` may be a timedelta from the enqueue."""
        given: dict[str, Any] = {
            "priority": priority,
            "queue_name": queue_name,
            "backend": backend,
            "max_attempts": max_attempts,
            "headers": headers,
            "expires": expires,
            "unique_key": unique_key,
            "unique_while": unique_while,
            "on_conflict": on_conflict,
        }
        changes = {name: value for name, value in given.items() if value is not None}
        if isinstance(run_after, timedelta):
            changes |= {"run_after": None, "delay": run_after}
        elif run_after is not None:
            changes |= {"run_after": run_after, "delay": None}
        return replace(self, **changes)


NOT_THE_ENGINE_S = {"delay", "schedule"}
OURS = tuple(sorted({one.name for one in fields(PgQueueTask)} - {one.name for one in fields(Task)} - NOT_THE_ENGINE_S))


@overload
def task(function: Callable[P, R], /) -> PgQueueTask[P, R]: ...
@overload
def task(
    *, takes_context: Literal[True], **options: Unpack[Options]
) -> Callable[[Callable[Concatenate[Any, P], R]], PgQueueTask[P, R]]: ...
@overload
def task(
    *, takes_context: Literal[False] = ..., **options: Unpack[Options]
) -> Callable[[Callable[P, R]], PgQueueTask[P, R]]: ...
def task(function: Callable[..., Any] | None = None, /, *, backend: str = "default", **options: Any) -> Any:
    """Do what Django's `@task` does, with this package's options on every version of Django, and for every backend.

    Django's own takes them from 6.1 on, and only while the backend's `task_class` has them: a project whose tests run
    on Django's ImmediateBackend could not be imported there.
    """

    def decorate(func: Callable[..., Any]) -> PgQueueTask[Any, Any]:
        task_class = task_backends[backend].task_class
        if not issubclass(task_class, PgQueueTask):
            task_class = PgQueueTask
        return task_class(func=func, backend=backend, **DJANGO_DEFAULTS | options)

    return decorate if function is None else decorate(function)


DJANGO_DEFAULTS: dict[str, Any] = {"priority": 0, "queue_name": "default", "run_after": None, "takes_context": False}
"""Which the fields of Django 6.0's task do not have."""


def adopt(task: PgQueueTask[Any, Any]) -> EngineTask[Any, Any]:
    """Return the task of the registry that runs this one's jobs; the first made of its function is put there."""
    name = task.module_path
    known = registry.get(name)
    if known is not None and known.func is task.func:
        return known
    try:
        made = for_engine(task)
        times = timetable.check_schedule(made, task.schedule)  # before anything is known of the task
        registry.register(made)
        timetable.declare(made, times)
    except exceptions.InvalidTask as error:
        raise InvalidTask(str(error)) from error
    telling.connect(made.name)
    for alias in made.aliases:
        telling.connect(alias)
    return made


def for_engine(task: PgQueueTask[Any, Any]) -> EngineTask[Any, Any]:
    """Return this task in the words of the engine; raises the engine's `InvalidTask`."""
    options = getattr(task.get_backend(), "options", {})
    words = {name: getattr(task, name) for name in (*OURS, *SHARED)}
    for name in DEFAULTS & set(options):
        if words[name.lower()] is None:
            words[name.lower()] = options[name]
    if words["max_attempts"] is None:
        words["max_attempts"] = 1
    run_after = task.run_after if task.delay is None else task.delay
    return EngineTask(
        func=task.func, name=task.module_path, run_after=run_after, adapter=Adapter(task, options), **words
    )
