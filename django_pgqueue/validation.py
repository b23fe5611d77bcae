"""Validation of a task's function, options and calls.

`Task` calls `validate()` when a task is created, also by `using()`. `enqueue()` calls `check_call()`, and
`enqueue_many()` calls `as_call()` too. An invalid option of `@task` therefore raises an error when its module is
imported, and no `Task` with an invalid option exists.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from .conf import DEFAULT_RETENTION, retention_seconds
from .exceptions import InvalidTask, seconds
from .retry import as_backoff

if TYPE_CHECKING:
    from .task import Task

NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""Valid names of tasks and queues."""
PRIORITIES: Final = range(-100, 101)
MAX_ATTEMPTS: Final = 1000
MAX_KEY_LENGTH: Final = 200
UNIQUE_WHILE: Final = ("ready+running", "ready")
ON_CONFLICT: Final = ("skip", "replace", "raise")
"""Valid values of the options `unique_while` and `on_conflict`. The first value is the default."""

RunAfter = float | timedelta | datetime
"""Time at which a job is due: seconds or a timedelta from the enqueue, or an aware datetime."""


def due(run_after: RunAfter | None) -> tuple[datetime | None, float]:
    """Return (instant, seconds from the enqueue) for a `run_after` or `expires` option.

    The instant is None for a relative time. The seconds are 0 for an instant and for None.

    Raises:
        TypeError: `run_after` is neither a duration nor a datetime.
        ValueError: `run_after` is a duration that is negative or longer than 100 years.
    """
    if isinstance(run_after, datetime):
        return run_after, 0.0
    return None, 0.0 if run_after is None else seconds(run_after)


@lru_cache(maxsize=1000)
def check_call(func: Callable[..., Any], positional: int, names: tuple[str, ...]) -> None:
    """Check that a function accepts a number of positional arguments and these keywords.

    The values make no difference, so the result is cached for each combination. Without the cache, this check took 2 µs
    of the 8 µs for encoding a call.

    Raises:
        TypeError: The function does not accept such a call.
    """
    inspect.signature(func).bind(*(None,) * positional, **dict.fromkeys(names))


def as_call(call: Any, number: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return a call of `enqueue_many()` as (args, kwargs).

    Raises:
        TypeError: `call` is not a pair of a list or tuple and a mapping.
    """
    if isinstance(call, tuple | list) and len(call) == 2:
        args, kwargs = call
        if isinstance(args, tuple | list) and isinstance(kwargs, Mapping):
            return args, kwargs
    # Name the types only: the values may be secret, and the message can end up in logs.
    types = [type(part).__name__ for part in call] if isinstance(call, tuple | list) else type(call).__name__
    raise TypeError(f"enqueue_many(): call {number} must be a pair (args, kwargs) such as ((1,), {{}}), not {types}")


def as_names(names: Any) -> tuple[str, ...]:
    """Return an iterable of names as a tuple.

    Raises:
        InvalidTask: `names` is a string. It would be split into letters.
    """
    if isinstance(names, str):
        raise InvalidTask(f"aliases must be a list of names, not the string {names!r}")
    return tuple(names)


def as_errors(errors: type[BaseException] | Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    """Return one exception class or several as a tuple."""
    return (errors,) if isinstance(errors, type) else tuple(errors)


def validate(task: Task[Any, Any]) -> None:
    """Check the function and the options of a task.

    Raises:
        InvalidTask: The function cannot be a task, or an option is invalid. The message names the first problem.
    """
    for problem in (*_function_problems(task), *_option_problems(task), *_flag_problems(task)):
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


def _option_problems(task: Any) -> Iterator[str]:
    # `Any`, because callers can pass values that do not match the annotations of `Task`.
    for option, name in (("name", task.name), ("queue_name", task.queue_name), *(("alias", a) for a in task.aliases)):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield f"{option} {name!r} must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -"
    if not isinstance(task.priority, int) or task.priority not in PRIORITIES:
        yield f"priority {task.priority!r} must be a whole number from -100 to 100"
    attempts = task.max_attempts
    if attempts is not None and (not isinstance(attempts, int) or not 1 <= attempts <= MAX_ATTEMPTS):
        yield f"max_attempts {attempts!r} must be a whole number from 1 to {MAX_ATTEMPTS}"
    yield from _time_problems(task)
    for option, errors in (("retry_for", task.retry_for), ("no_retry_for", task.no_retry_for)):
        if not all(isinstance(error, type) and issubclass(error, BaseException) for error in errors):
            yield f"{option} must be exception classes, not {errors!r}"


def _flag_problems(task: Any) -> Iterator[str]:
    for option in ("atomic", "store_result", "takes_context"):
        if not isinstance(flag := getattr(task, option), bool):
            yield f"{option} must be True or False, not {flag!r}"
    yield from _uniqueness_problems(task)
    if task.isolation not in (None, "process"):
        yield f'isolation must be "process" or None, not {task.isolation!r}'


def _time_problems(task: Task[Any, Any]) -> Iterator[str]:
    if task.timeout is not None:
        yield from _timeout_problems(task.timeout)
    yield from _instant_problems("run_after", task.run_after)
    yield from _instant_problems("expires", task.expires)
    yield from _expiry_problems(task)
    by_state = task.retention if isinstance(task.retention, Mapping) else {"dead": task.retention}
    if unknown := set(by_state) - set(DEFAULT_RETENTION):
        yield f"retention has unknown states {sorted(unknown)}: the states are {sorted(DEFAULT_RETENTION)}"
    for option, check in (
        ("run_after", lambda: due(task.run_after)),
        ("backoff", lambda: as_backoff(task.backoff)),
        ("retention", lambda: [retention_seconds(0 if value is None else value) for value in by_state.values()]),
    ):
        try:
            check()
        except (TypeError, ValueError) as error:
            yield f"{option}: {error}"


def _timeout_problems(timeout: Any) -> Iterator[str]:
    try:
        is_positive = seconds(timeout) > 0
    except (TypeError, ValueError) as error:
        yield f"timeout: {error}"
    else:
        if not is_positive:
            yield "timeout must be longer than 0 seconds: pass None for no timeout"


def _instant_problems(option: str, instant: Any) -> Iterator[str]:
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            yield f"{option} must be an aware datetime, not {instant}: add a time zone"
        elif not 2000 <= instant.year < 9000:
            yield f"{option} {instant} must be between the years 2000 and 9000"


def _expiry_problems(task: Task[Any, Any]) -> Iterator[str]:
    if task.expires is None:
        return
    try:
        (expires_at, expires_seconds), (run_at, delay_seconds) = due(task.expires), due(task.run_after)
    except (TypeError, ValueError) as error:
        yield f"expires: {error}"
        return
    if expires_at is None and expires_seconds <= 0:
        yield "expires must be longer than 0 seconds: pass None for no expiry"
    elif (expires_at is None) == (run_at is None):
        is_before = expires_seconds <= delay_seconds if expires_at is None or run_at is None else expires_at <= run_at
        if is_before:
            yield f"expires {task.expires} is not after run_after {task.run_after}: the job would never run"


def _uniqueness_problems(task: Any) -> Iterator[str]:
    yield from _unique_while_problems(task.unique_while)
    if task.on_conflict not in ON_CONFLICT:
        yield f"on_conflict must be one of {', '.join(ON_CONFLICT)}, not {task.on_conflict!r}"
    if task.unique_key is None:
        if (task.unique_while, task.on_conflict) != (UNIQUE_WHILE[0], ON_CONFLICT[0]):
            yield "unique_while and on_conflict need a unique_key"
    elif isinstance(task.unique_key, str):
        yield from wrong_key(task.unique_key)
    elif not callable(task.unique_key):
        yield f"unique_key must be a string or a function of the arguments, not {task.unique_key!r}"


def _unique_while_problems(unique_while: Any) -> Iterator[str]:
    if unique_while in UNIQUE_WHILE:
        return
    try:
        is_positive = seconds(unique_while) > 0
    except (TypeError, ValueError):
        is_positive = False
    if not is_positive:
        states = " or ".join(f'"{state}"' for state in UNIQUE_WHILE)
        yield f"unique_while must be {states}, or a period of more than 0 seconds, not {unique_while!r}"


def wrong_key(key: str | None) -> Iterator[str]:
    """Yield the problem of an invalid unique key."""
    if key is not None and not (1 <= len(key) <= MAX_KEY_LENGTH and key.isprintable()):
        yield f"unique_key {key[:50]!r} must be 1 to {MAX_KEY_LENGTH} printable characters: hash longer keys"
