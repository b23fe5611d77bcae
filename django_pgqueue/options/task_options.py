"""The options of tasks: the one place that declares and describes each of them.

A field of `TaskFields` declares an option: its type, its default, the check of its value, and the parameters of the
insert statements that carry it. Both `@task` decorators, `using()`, `enqueue_many()`, schedules and the `django.tasks`
backend derive from these fields what they need. For the type checkers of users, the options are also keys of
`CallOptions`, `TaskOptions` or `UsingOptions`. `changed_options()` says what a call of `using()` changes.
"""

# ruff: noqa: RUF009 -- option() returns a field, which ruff cannot know

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from enum import Enum
from functools import partial
from itertools import chain
from typing import Any, Final, Literal, NamedTuple, TypedDict

from django_pgqueue.declared.chunks import MAX_CHUNK
from django_pgqueue.declared.limits import Limit
from django_pgqueue.declared.retry import Backoff, check_backoff
from django_pgqueue.durations import Duration
from django_pgqueue.ground.batch_reference import BatchReference, batch_problems
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.settings.setting_kinds import Retention

from . import validation
from .validation import ON_CONFLICT, ON_MISSING, UNIQUE_WHILE, Check, RunAfter, as_errors, as_names, due


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED
"""Default of a parameter of `using()` or of `override_limit()` for which None is a value."""

Errors = tuple[type[BaseException], ...]
Isolation = Literal["process"]
KeepLogs = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL", False]
UniqueKey = str | Callable[..., str | None]
DatabaseOf = Callable[..., str | None]
"""A function of a call's arguments that returns the alias of the job's database."""
UniqueWhile = Literal["ready", "ready+running"] | Duration
OnConflict = Literal["skip", "replace", "raise"]
OnMissing = Literal["dead", "cancel", "retry"]


class CallOptions(TypedDict, total=False):
    """Options with the same type in `@task` and in `using()`."""

    max_attempts: int | None
    """Maximum attempts of a job, 1 to 1000. None uses `PGQUEUE["MAX_ATTEMPTS"]`."""
    unique_key: UniqueKey | None
    """Key that at most one job has at a time: a template such as "order:{order_id}", or a function of the call's
    arguments that returns a string, or None for a job without a key."""
    limit: Limit | None
    """How many jobs run at a time, or start in a period, for each key, over all workers: `Limit(…)`. None: no limit."""


class TaskOptions(CallOptions, total=False):
    """The options that both `@task` decorators accept: this package's own and the one of the `django.tasks` backend."""

    aliases: Iterable[str]
    """Earlier names of the task. Workers still accept jobs with these names."""
    sensitive: Iterable[str]
    """Names of arguments whose values the admin, log lines, reprs and Django's error reports hide. "return" hides the
    result."""
    search: Iterable[str]
    """Names of arguments by whose values operators find the jobs. The values are stored a second time, as text."""
    queue_name: str
    """Queue of the jobs, by default "default"."""
    priority: int
    """-100 to 100, higher first. By default 0."""
    backoff: Backoff | Duration | None
    """Delay before the next attempt: seconds or a timedelta, plus up to 30 % of jitter; or a function of (attempt,
    exception) or (exception, task_result) that returns one of these, or None for no further attempt. See
    `exponential()` and `fixed()`. None uses `PGQUEUE["BACKOFF"]`."""
    retry_for: type[BaseException] | Errors
    """Exceptions after which the job is attempted again. By default all."""
    no_retry_for: type[BaseException] | Errors
    """Exceptions after which the job is dead at once. They take precedence over `retry_for`."""
    atomic: bool
    """Whether the function and the job's completion share one transaction on the job's database. The effects of the
    function on that database then happen exactly once."""
    retention: Retention | Mapping[str, Retention] | None
    """How long finished jobs are kept: seconds, a timedelta, "forever", or a dict of these by state. With 0 for
    "succeeded", the completion deletes the job. None uses `PGQUEUE["RETENTION"]`."""
    store_result: bool
    """Whether the return value is stored. If JSON cannot represent it, the job is dead."""
    timeout: Duration | None
    """Seconds or a timedelta that one attempt may run. Then a thread gets `TaskTimeout`, a coroutine is cancelled, and
    an isolated process is killed. None uses `PGQUEUE["TIMEOUT"]`."""
    isolation: Isolation | None
    """"process" runs each job in an isolated process, so that a crash affects no other job."""
    keep_logs: KeepLogs | None
    """Level, such as "INFO", from which each execution keeps the lines that the function logs. False keeps none. None
    uses `PGQUEUE["KEEP_LOGS"]`."""
    expires: Duration | None
    """Seconds or a timedelta from the enqueue within which each attempt must start, or the job is cancelled."""
    unique_while: UniqueWhile
    """How long a job keeps its key: "ready+running" (the default), "ready", or a period from its enqueue in seconds or
    as a timedelta."""
    on_conflict: OnConflict
    """Effect of a call whose key another job has: "skip" (the default) adds no job, "replace" replaces that job while
    it waits, "raise" raises `DuplicateJob`."""


class UsingOptions(CallOptions, total=False):
    """The options that `using()` accepts for tasks of this package and of the backend.

    None is a value of `max_attempts`, `unique_key`, `limit`, `expires`, `batch` and `headers`: it resets them. For the
    others, None changes nothing.
    """

    queue_name: str | None
    priority: int | None
    expires: RunAfter | None
    """Time by which each attempt must start: as for `@task`, or an aware datetime. None: no such time."""
    unique_while: UniqueWhile | None
    on_conflict: OnConflict | None
    headers: Mapping[str, Any] | None
    """Names with a string, number, boolean or None for middleware and the context, at most 4 KiB as JSON. None: no
    headers."""
    batch: BatchReference | None
    """The `Batch` that the job belongs to. None: no batch."""


class Option(NamedTuple):
    """The declaration of an option, apart from its type."""

    default: Any = None
    check: Check | None = None
    """Checks each value except the default."""
    parameters: tuple[str, ...] = ()
    """Parameters of the insert statements that carry the option."""
    values: Callable[[Any], dict[str, Any]] | None = None
    """Returns these parameters for a value. None: there is one, with the option's name and value."""
    is_backend_default: bool = False
    """Whether OPTIONS of a `django.tasks` backend can contain a default, with the name in capitals."""
    is_header: bool = False
    """Whether the job's headers carry the option, so that it needs neither a column nor a change of any statement."""
    is_reset_by_none: bool = False
    """Whether None in `using()` resets the option. For all others None changes nothing, as in Django's framework."""


def option(check: Check | None = None, *parameters: str, **others: Any) -> Any:
    """Return a dataclass field that declares an option; `Option` explains the arguments."""
    declared = Option(check=check, parameters=parameters, **others)
    return field(default=declared.default, metadata={"option": declared})


def _attempts(max_attempts: int | None) -> dict[str, Any]:
    return {"max_attempts": max_attempts or get_settings().MAX_ATTEMPTS}


def _expiry(expires: RunAfter | None) -> dict[str, Any]:
    expires_at, expires_seconds = (None, None) if expires is None else due(expires)
    return {"expires_at": expires_at, "expires_seconds": None if expires_at is not None else expires_seconds}


def _batch(batch: BatchReference | None) -> dict[str, Any]:
    return {"batch_id": None if batch is None else batch.id}


def _due(run_after: RunAfter | None) -> dict[str, Any]:
    run_at, delay_seconds = (None, 0.0) if run_after is None else due(run_after)
    return {"run_after": run_at, "delay_seconds": delay_seconds}


@dataclass(frozen=True, kw_only=True)
class SharedFields:
    """The options that this package's tasks and the tasks of the `django.tasks` backend have in common."""

    __slots__ = ()  # the classes of tasks have slots, and would have a `__dict__` too without this line

    aliases: tuple[str, ...] = option(validation.alias_problems, default=())
    sensitive: frozenset[str] = option(validation.sensitive_problems, default=frozenset())
    search: tuple[str, ...] = option(validation.search_problems, default=())
    max_attempts: int | None = option(
        validation.number_problems(1, 1000),
        "max_attempts",
        values=_attempts,
        is_backend_default=True,
        is_reset_by_none=True,
    )
    backoff: Backoff | Duration | None = option(validation.parsing_problems(check_backoff), is_backend_default=True)
    retry_for: Errors = option(validation.exception_problems, default=(BaseException,))
    no_retry_for: Errors = option(validation.exception_problems, default=())
    atomic: bool = option(validation.flag_problems, default=False)
    retention: Retention | Mapping[str, Retention] | None = option(
        validation.retention_problems, is_backend_default=True
    )
    store_result: bool = option(validation.flag_problems, default=True)
    timeout: Duration | None = option(partial(validation.length_problems, "timeout"), is_backend_default=True)
    isolation: Isolation | None = option(validation.isolation_problems)
    keep_logs: KeepLogs | None = option(validation.keep_logs_problems)
    expires: RunAfter | None = option(
        validation.expiry_problems, "expires_at", "expires_seconds", values=_expiry, is_reset_by_none=True
    )
    unique_key: UniqueKey | None = option(validation.unique_key_problems, is_reset_by_none=True)
    unique_while: UniqueWhile = option(validation.unique_while_problems, default=UNIQUE_WHILE[0])
    on_conflict: OnConflict = option(validation.choice_problems(ON_CONFLICT), default=ON_CONFLICT[0])
    limit: Limit | None = option(validation.limit_problems, is_reset_by_none=True)
    batch: BatchReference | None = option(batch_problems, "batch_id", values=_batch, is_reset_by_none=True)
    """Set by `using()`."""
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
    database: str | DatabaseOf | None = option(validation.database_problems, is_reset_by_none=True)
    on_missing: OnMissing = option(validation.choice_problems(ON_MISSING), default=ON_MISSING[0])
    """Effect of a row that an argument names and that does not exist when an attempt begins: the job is dead, or
    cancelled, or the attempt fails like any other."""
    chunk: int | None = option(validation.number_problems(1, MAX_CHUNK))
    """Maximum number of jobs that one call of the function gets. None: the function gets the arguments of one job."""
    chunk_wait: Duration = option(validation.chunk_wait_problems, default=0)
    """How long a due job waits until there are `chunk` jobs."""


OPTIONS: Final[dict[str, Option]] = {
    each.name: each.metadata["option"] for each in fields(TaskFields) if "option" in each.metadata
}
CARRIED: Final = {name: known.parameters for name, known in OPTIONS.items() if known.parameters}
"""Options that an insert statement writes into the job's row. The others of its columns depend on the call as well."""
SAME_COLUMN: Final = tuple(name for name in CARRIED if OPTIONS[name].values is None)
"""Options whose value is in the job's column of the same name."""
COMPUTED: Final = tuple((name, known.values) for name, known in OPTIONS.items() if known.values is not None)
UNSET: Final = dict.fromkeys(["headers", *chain.from_iterable(CARRIED.values())])
"""The parameters of the insert statements that carry options, all None."""
IN_HEADERS: Final = tuple((name, f"pgqueue_{name}") for name, known in OPTIONS.items() if known.is_header)
"""The options that the job's headers carry, and the names of their headers."""
RESET_BY_NONE: Final = frozenset({"headers", *(name for name, known in OPTIONS.items() if known.is_reset_by_none)})
BACKEND_DEFAULTS: Final = frozenset(name.upper() for name, known in OPTIONS.items() if known.is_backend_default)
"""Keys in the OPTIONS of a `django.tasks` backend for tasks that do not set the option themselves."""


class JobOptions(NamedTuple):
    """Options of scheduled jobs that the schedule's row stores, in the order in which `sql.schedules` returns them."""

    queue_name: str
    priority: int
    max_attempts: int
    expires_seconds: float | None = None


def normalise(task: SharedFields) -> None:
    """Turn the options of a new task that hold several values into tuples.

    Raises:
        InvalidTask: `aliases`, `sensitive` or `search` is a string.
    """
    object.__setattr__(task, "aliases", as_names(task.aliases))
    object.__setattr__(task, "sensitive", frozenset(as_names(task.sensitive, "sensitive")))
    object.__setattr__(task, "search", tuple(dict.fromkeys(as_names(task.search, "search"))))
    object.__setattr__(task, "retry_for", as_errors(task.retry_for))
    object.__setattr__(task, "no_retry_for", as_errors(task.no_retry_for))


Row = dict[str, Any]
"""Parameters of the insert statements."""


def columns_of(task: TaskFields) -> Row:
    """Return the parameters of the insert statements that carry a task's options."""
    columns = {name: getattr(task, name) for name in SAME_COLUMN}
    for name, values in COMPUTED:
        columns |= values(getattr(task, name))
    return columns


def headers_of_options(task: TaskFields) -> dict[str, Any]:
    """Return the headers that carry a task's options. None is not stored."""
    return {header: value for name, header in IN_HEADERS if (value := getattr(task, name)) is not None}


def scheduled_options(task: TaskFields) -> JobOptions:
    """Return the options that a schedule of this task stores for its jobs."""
    columns = columns_of(task)
    return JobOptions(**{name: columns[name] for name in JobOptions._fields})


MEANT: Final = {
    "queue": "queue_name",
    "countdown": "run_after",
    "eta": "run_after",
    "delay": "run_after",
    "at": "run_after",
}
"""Options of other queues, and what they are called here."""


def changed_options(given: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return the options that a call of `using()` sets: those that are not None, or that None resets.

    Raises `TypeError` if a name is not an option of `using()`.
    """
    for unknown in given.keys() - UsingOptions.__optional_keys__:
        known = sorted({*UsingOptions.__optional_keys__, *others})
        meant = MEANT.get(unknown) or next(iter(get_close_matches(unknown, known, n=1)), "")
        hint = f": did you mean {meant!r}?" if meant else f": the options are {', '.join(known)}"
        raise TypeError(f"using() got an unexpected keyword argument {unknown!r}{hint}")
    changes = {
        name: value
        for name, value in {**others, **given}.items()
        if value is not UNCHANGED and (value is not None or name in RESET_BY_NONE)
    }
    if "unique_key" in changes and changes["unique_key"] is None:  # these two need a key
        changes = {"unique_while": UNIQUE_WHILE[0], "on_conflict": ON_CONFLICT[0], **changes}
    return changes
