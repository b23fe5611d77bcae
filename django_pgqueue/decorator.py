"""`@task`: makes a task of a function, and makes it known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar, overload

from . import registry, timetable
from .conf import Retention
from .context import TaskContext
from .exceptions import Duration, InvalidTask
from .retry import Backoff
from .task import Errors, Isolation, OnConflict, Task, UniqueKey, UniqueWhile
from .timetable import Times

NO_OPTIONS: Final = {"func", "adapter", "headers"}
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
    aliases: Iterable[str] = ...,
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    backoff: Backoff | Duration | None = ...,
    retry_for: type[BaseException] | Errors = ...,
    no_retry_for: type[BaseException] | Errors = ...,
    atomic: bool = ...,
    retention: Retention | Mapping[str, Retention] | None = ...,
    store_result: bool = ...,
    database: str | None = ...,
    timeout: Duration | None = ...,
    isolation: Isolation | None = ...,
    expires: Duration | None = ...,
    unique_key: UniqueKey | None = ...,
    unique_while: UniqueWhile = ...,
    on_conflict: OnConflict = ...,
    schedule: Times | Iterable[Times] = ...,
) -> Callable[[Callable[Concatenate[TaskContext, P], R]], Task[P, R]]: ...
@overload
def task(
    *,
    takes_context: Literal[False] = ...,
    name: str = ...,
    aliases: Iterable[str] = ...,
    queue_name: str = ...,
    priority: int = ...,
    max_attempts: int | None = ...,
    backoff: Backoff | Duration | None = ...,
    retry_for: type[BaseException] | Errors = ...,
    no_retry_for: type[BaseException] | Errors = ...,
    atomic: bool = ...,
    retention: Retention | Mapping[str, Retention] | None = ...,
    store_result: bool = ...,
    database: str | None = ...,
    timeout: Duration | None = ...,
    isolation: Isolation | None = ...,
    expires: Duration | None = ...,
    unique_key: UniqueKey | None = ...,
    unique_while: UniqueWhile = ...,
    on_conflict: OnConflict = ...,
    schedule: Times | Iterable[Times] = ...,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None, /, *, schedule: Times | Iterable[Times] = (), **options: Any
) -> Any:
    """Make a task of a module-level function; with or without options.

    * `name`: its key in the rows, instead of the function's dotted path; `aliases`: earlier names still accepted.
    * `queue_name`, `priority` (-100 … 100, higher first), `database` (alias): defaults of its jobs.
    * `takes_context`: the first argument, which must be named `context`, is a `TaskContext`.
    * `max_attempts` (1 … 1000): attempts in all; None for PGQUEUE["MAX_ATTEMPTS"].
    * `backoff`: before the next attempt, seconds or timedelta, or a function of (attempt, exception) that returns
      them, or None for "no more"; see `retry.exponential` and `retry.fixed`.
    * `retry_for`, `no_retry_for`: exceptions that are tried again, or not; the latter wins.
    * `atomic`: body and finish are one transaction on the job's database, so its effects there happen once.
    * `retention`: how long finished jobs are kept, seconds, timedelta or "forever"; or a dict of these by state.
      With 0 a job that succeeded is gone with its finish.
    * `timeout`: seconds or timedelta that one attempt may run for; then `TaskTimeout` is raised in it, a coroutine is
      cancelled, an isolated one killed. None: as long as it takes.
    * `isolation="process"`: each job runs in a process of its own, which is all that a crash takes with it.
    * `expires`: seconds or timedelta from the enqueue by which a job has to start; later it is cancelled instead.
    * `unique_key`: a string, or a function of the call's arguments that returns one, or None for "not unique"; while a
      job with that key is there (`unique_while`: "ready" or "ready+running"), or for a period from its enqueue (seconds
      or timedelta), another one is left out ("skip"), takes its place ("replace") or is refused ("raise"), as
      `on_conflict` says.
    * `store_result`: whether the return value is kept; it must be JSON then, or the attempt fails.
    * `schedule`: when workers enqueue it by themselves: `cron(…)`, `every(…)`, or a list of these.

    Raises `InvalidTask` if the function or an option is wrong.
    """

    def decorate(func: Callable[..., Any]) -> Task[Any, Any]:
        for unknown in set(options) - OPTIONS:
            close = get_close_matches(unknown, OPTIONS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"they are {', '.join(sorted(OPTIONS))}"
            raise InvalidTask(f"@task has no option {unknown!r}: {hint}")
        made: Task[Any, Any] = Task(func=func, **options)
        times = timetable.check_schedule(made, schedule)  # before anything is known of the task
        registry.register(made)
        timetable.declare(made, times)
        return made

    return decorate if function is None else decorate(function)
