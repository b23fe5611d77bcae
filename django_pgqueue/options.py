"""The options of tasks: the one place where each of them is declared.

A field of `TaskFields` declares an option: its type, its default, the check of its value, and the parameters of the
insert statements that carry it. Everything else is derived from these fields: the options of `@task` in both
decorators, of `using()`, of `enqueue_many()`, of scheduled jobs, and the values that the `django.tasks` backend reads
back. Type checkers need the names once more, as keys of `CallOptions`, `TaskOptions` or `UsingOptions`.

`Task` calls `validate()` when a task is created, also by `using()`. An invalid option of `@task` therefore raises an
error when its module is imported, and no `Task` with an invalid option exists.
"""

# ruff: noqa: RUF009 -- option() returns a field, which ruff cannot know

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict

from . import validation
from .conf import Retention, get_settings
from .exceptions import Duration, InvalidTask
from .retry import Backoff, as_backoff
from .validation import ON_CONFLICT, UNIQUE_WHILE, Check, RunAfter, as_errors, as_names, due

if TYPE_CHECKING:
    from .task import Task

Errors = tuple[type[BaseException], ...]
Isolation = Literal["process"]
UniqueKey = str | Callable[..., str | None]
UniqueWhile = Literal["ready", "ready+running"] | Duration
OnConflict = Literal["skip", "replace", "raise"]


class CallOptions(TypedDict, total=False):
    """Options with the same type in `@task` and in `using()`."""

    max_attempts: int | None
    unique_key: UniqueKey | None


class TaskOptions(CallOptions, total=False):
    """The options that both `@task` decorators accept: this package's own and the one of the `django.tasks` backend."""

    aliases: Iterable[str]
    queue_name: str
    priority: int
    backoff: Backoff | Duration | None
    retry_for: type[BaseException] | Errors
    no_retry_for: type[BaseException] | Errors
    atomic: bool
    retention: Retention | Mapping[str, Retention] | None
    store_result: bool
    timeout: Duration | None
    isolation: Isolation | None
    expires: Duration | None
    unique_while: UniqueWhile
    on_conflict: OnConflict


class UsingOptions(CallOptions, total=False):
    """The options that `using()` accepts for tasks of this package and of the backend. None changes nothing."""

    queue_name: str | None
    priority: int | None
    expires: RunAfter | None
    unique_while: UniqueWhile | None
    on_conflict: OnConflict | None
    headers: Mapping[str, Any] | None


class Option(NamedTuple):
    """The declaration of an option, apart from its type."""

    default: Any
    check: Check | None
    """Checks each value except the default."""
    parameters: tuple[str, ...]
    """Parameters of the insert statements that carry the option."""
    values: Callable[[Any], dict[str, Any]] | None
    """Returns these parameters for a value. None: there is one, with the option's name and value."""
    is_backend_default: bool
    """Whether OPTIONS of a `django.tasks` backend can contain a default, with the name in capitals."""


def option(
    check: Check | None = None,
    *parameters: str,
    default: Any = None,
    values: Callable[[Any], dict[str, Any]] | None = None,
    is_backend_default: bool = False,
) -> Any:
    """Return a dataclass field that declares an option; `Option` explains the arguments."""
    declared = Option(default, check, parameters, values, is_backend_default)
    return field(default=default, metadata={"option": declared})


def _attempts(max_attempts: int | None) -> dict[str, Any]:
    return {"max_attempts": max_attempts or get_settings().MAX_ATTEMPTS}


def _due(run_after: RunAfter | None) -> dict[str, Any]:
    run_at, delay_seconds = due(run_after)
    return {"run_after": run_at, "delay_seconds": delay_seconds}


def expiry(expires: RunAfter | None) -> dict[str, Any]:
    """Return `expires_at` and `expires_seconds` for an `expires` option. At most one of them is not None."""
    expires_at, expires_seconds = due(expires)
    return {
        "expires_at": expires_at,
        "expires_seconds": None if expires is None or expires_at is not None else expires_seconds,
    }


@dataclass(frozen=True, kw_only=True)
class SharedFields:
    """The options that this package's tasks and the tasks of the `django.tasks` backend have in common."""

    __slots__ = ()  # the classes of tasks have slots, and would have a `__dict__` too without this line

    aliases: tuple[str, ...] = option(validation.alias_problems, default=())
    max_attempts: int | None = option(
        validation.number_problems(1, 1000), "max_attempts", values=_attempts, is_backend_default=True
    )
    backoff: Backoff | Duration | None = option(validation.parsing_problems(as_backoff), is_backend_default=True)
    retry_for: Errors = option(validation.exception_problems, default=(BaseException,))
    no_retry_for: Errors = option(validation.exception_problems, default=())
    atomic: bool = option(validation.flag_problems, default=False)
    retention: Retention | Mapping[str, Retention] | None = option(
        validation.retention_problems, is_backend_default=True
    )
    store_result: bool = option(validation.flag_problems, default=True)
    timeout: Duration | None = option(validation.timeout_problems, is_backend_default=True)
    isolation: Isolation | None = option(validation.isolation_problems)
    expires: RunAfter | None = option(validation.expiry_problems, "expires_at", "expires_seconds", values=expiry)
    unique_key: UniqueKey | None = option(validation.unique_key_problems)
    unique_while: UniqueWhile = option(validation.unique_while_problems, default=UNIQUE_WHILE[0])
    on_conflict: OnConflict = option(validation.on_conflict_problems, default=ON_CONFLICT[0])
    headers: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)
    """Set by `using()`. Not an option of `@task`."""


@dataclass(frozen=True, kw_only=True)
class TaskFields(SharedFields):
    """All options of this package's tasks. The task class of Django's framework has most of these itself."""

    __slots__ = ()

    name: str = option(validation.name_problems, default="")
    """Key of the task in the registry and in job rows. By default the dotted path of the function."""
    queue_name: str = option(validation.name_problems, "queue_name", default="default")
    priority: int = option(validation.number_problems(-100, 100), "priority", default=0)
    run_after: RunAfter | None = option(validation.moment_problems, "run_after", "delay_seconds", values=_due)
    """Set by `using()`."""
    takes_context: bool = option(validation.flag_problems, default=False)
    database: str | None = option()


OPTIONS: Final[dict[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(TaskFields) if "option" in each.metadata
}
CARRIED: Final = {name: known.parameters for name, known in OPTIONS.items() if known.parameters}
"""Options that an insert statement writes into the job's row. Headers and unique keys depend on the call as well."""
SAME_COLUMN: Final = tuple(name for name in CARRIED if OPTIONS[name].values is None)
"""Options whose value is in the job's column of the same name."""
COMPUTED: Final = tuple((name, known.values) for name, known in OPTIONS.items() if known.values is not None)
UNSET: Final = dict.fromkeys(["headers", *chain.from_iterable(CARRIED.values())])
"""The parameters of the insert statements that carry options, all None."""
BACKEND_DEFAULTS: Final = frozenset(name.upper() for name, known in OPTIONS.items() if known.is_backend_default)
"""Keys in the OPTIONS of a `django.tasks` backend for tasks that do not set the option themselves."""


class JobOptions(NamedTuple):
    """Options of a scheduled job. The schedule's row stores those in `STORED`; the others are set for each job."""

    queue_name: str
    priority: int
    max_attempts: int
    expires_seconds: float | None = None
    headers: str | None = None
    """JSON text."""
    unique_key: str | None = None
    unique_ready_only: bool | None = None
    period_seconds: float | None = None
    """Length of the key's uniqueness window. None: the key depends on the state of the job that has it."""
    task_name: str | None = None
    """The task's current name, because the row may have an earlier one. Unique keys use the current name."""

    def stored(self) -> dict[str, Any]:
        """Return the columns of the schedule's row that contain options."""
        return {name: getattr(self, name) for name in STORED}


STORED: Final = tuple(name for name in JobOptions._fields if name in UNSET and name != "headers")
"""Columns of a schedule's row that contain options of its jobs, in the order in which `sql.schedules` returns them."""


def normalise(task: SharedFields) -> None:
    """Turn the options of a new task that hold several values into tuples.

    Raises:
        InvalidTask: `aliases` is a string.
    """
    object.__setattr__(task, "aliases", as_names(task.aliases))
    object.__setattr__(task, "retry_for", as_errors(task.retry_for))
    object.__setattr__(task, "no_retry_for", as_errors(task.no_retry_for))


def columns_of(task: Task[Any, Any]) -> dict[str, Any]:
    """Return the parameters of the insert statements that carry a task's options."""
    columns = {name: getattr(task, name) for name in SAME_COLUMN}
    for name, values in COMPUTED:
        columns |= values(getattr(task, name))
    return columns


def scheduled_options(task: Task[Any, Any]) -> JobOptions:
    """Return the options that a schedule of this task stores for its jobs."""
    columns = columns_of(task)
    return JobOptions(**{name: columns[name] for name in STORED})


def changed_options(given: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return the options that a call of `using()` sets: those that are not None.

    Raises `TypeError`, as Python does, for a name that is not an option of `using()`.
    """
    for unknown in given.keys() - UsingOptions.__optional_keys__:
        raise TypeError(f"using() got an unexpected keyword argument {unknown!r}")
    return {name: value for name, value in {**others, **given}.items() if value is not None}


def validate(task: Task[Any, Any]) -> None:
    """Check the function and the options of a task.

    Raises:
        InvalidTask: The function cannot be a task, or an option is invalid. The message names the first problem.
    """
    # Combinations are the last: their check needs options that are valid on their own.
    for problem in chain(_function_problems(task), _option_problems(task), _combination_problems(task)):
        raise InvalidTask(f"{task.name}: {problem}")


def _function_problems(task: Task[Any, Any]) -> Iterator[str]:
    func = task.func
    if not inspect.isfunction(func) or func.__qualname__ != func.__name__ or func.__name__ == "<lambda>":
        yield "a task must be a module-level function, so that workers can find it by its name"
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        yield "a generator function cannot be a task, because calling it does not run its body"
    if task.atomic and task.is_async:
        yield "an async task cannot be atomic: Django has no asynchronous transactions"
    if task.takes_context and next(iter(task.signature.parameters), "") != "context":
        yield "takes_context=True needs a first argument named context"


def _option_problems(task: Task[Any, Any]) -> Iterator[str]:
    for name, known in OPTIONS.items():
        value = getattr(task, name)
        if known.check is not None and value is not known.default:
            yield from known.check(name, value)


def _combination_problems(task: Task[Any, Any]) -> Iterator[str]:
    if task.expires is not None:
        (expires_at, expires_seconds), (run_at, delay_seconds) = due(task.expires), due(task.run_after)
        if (expires_at is None) == (run_at is None):
            is_after = expires_seconds > delay_seconds if expires_at is None or run_at is None else expires_at > run_at
            if not is_after:
                yield f"expires {task.expires} is not after run_after {task.run_after}: the job would never run"
    defaults = (UNIQUE_WHILE[0], ON_CONFLICT[0])
    if task.unique_key is None and (task.unique_while, task.on_conflict) != defaults:
        yield "unique_while and on_conflict need a unique_key"
