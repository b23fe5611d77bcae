"""What can be a task: checks of the function and its options, made when a task is made, also by `using()`."""

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
PRIORITIES: Final = range(-100, 101)
MAX_ATTEMPTS: Final = 1000
MAX_KEY_LENGTH: Final = 200
UNIQUE_WHILE: Final = ("ready+running", "ready")
ON_CONFLICT: Final = ("skip", "replace", "raise")
"""The first of each is the default."""

RunAfter = float | timedelta | datetime
"""When a job is due: seconds or timedelta from its enqueue, or an aware datetime."""


def due(run_after: RunAfter | None) -> tuple[datetime | None, float]:
    """Return (instant, seconds from the enqueue), one of which says when a job is due; raises as `seconds`."""
    if isinstance(run_after, datetime):
        return run_after, 0.0
    return None, 0.0 if run_after is None else seconds(run_after)


@lru_cache(maxsize=1000)
def check_call(func: Callable[..., Any], positional: int, names: tuple[str, ...]) -> None:
    """Raise `TypeError` if a function cannot be called with so many positional arguments and these keywords.

    What they are makes no difference, so each shape is bound once: 2 us of the 8 that a call took to encode.
    """
    inspect.signature(func).bind(*(None,) * positional, **dict.fromkeys(names))


def as_call(call: Any, number: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return one of `enqueue_many`'s calls; raises `TypeError` if it is no pair of a sequence and a mapping."""
    if isinstance(call, tuple | list) and len(call) == 2:
        args, kwargs = call
        if isinstance(args, tuple | list) and isinstance(kwargs, Mapping):
            return args, kwargs
    # Its types only: what is in it may be a secret, and this text ends in logs.
    kinds = [type(part).__name__ for part in call] if isinstance(call, tuple | list) else type(call).__name__
    raise TypeError(f"enqueue_many(): call {number} must be a pair (args, kwargs) such as ((1,), {{}}), not {kinds}")


def as_names(names: Any) -> tuple[str, ...]:
    """Return an iterable of names as a tuple; raises `InvalidTask` for a single string, which is one of letters."""
    if isinstance(names, str):
        raise InvalidTask(f"aliases must be a list of names, not the string {names!r}")
    return tuple(names)


def as_errors(errors: type[BaseException] | Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    """Return one exception class, or several, as a tuple."""
    return (errors,) if isinstance(errors, type) else tuple(errors)


def validate(task: Task[Any, Any]) -> None:
    """Raise `InvalidTask` if the function cannot be a task, or an option is out of its range."""
    for wrong in (*_wrong_function(task), *_wrong_options(task), *_wrong_flags(task)):
        raise InvalidTask(f"{task.name}: {wrong}")


def _wrong_function(task: Task[Any, Any]) -> Iterator[str]:
    func = task.func
    if not inspect.isfunction(func) or func.__qualname__ != func.__name__ or func.__name__ == "<lambda>":
        yield "a task must be a function at module level, so that workers find it by its name"
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        yield "a generator function cannot be a task: calling it runs nothing"
    if task.atomic and task.is_async:
        yield "an async task cannot be atomic: Django has no asynchronous transactions"
    if task.takes_context and next(iter(task.signature.parameters), "") != "context":
        yield "takes_context needs a first argument that is named context"


def _wrong_options(task: Any) -> Iterator[str]:
    # `Any`: types are promises, and these are the checks of what was really given.
    for what, name in (("name", task.name), ("queue_name", task.queue_name), *(("alias", a) for a in task.aliases)):
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield f"{what} {name!r} must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -"
    if not isinstance(task.priority, int) or task.priority not in PRIORITIES:
        yield f"priority {task.priority!r} must be a whole number from -100 to 100"
    most = task.max_attempts
    if most is not None and (not isinstance(most, int) or not 1 <= most <= MAX_ATTEMPTS):
        yield f"max_attempts {most!r} must be a whole number from 1 to {MAX_ATTEMPTS}"
    yield from _wrong_times(task)
    for what, errors in (("retry_for", task.retry_for), ("no_retry_for", task.no_retry_for)):
        if not all(isinstance(error, type) and issubclass(error, BaseException) for error in errors):
            yield f"{what} must be exception classes"


def _wrong_flags(task: Any) -> Iterator[str]:
    for what in ("atomic", "store_result", "takes_context"):
        if not isinstance(flag := getattr(task, what), bool):
            yield f"{what} must be True or False, not {flag!r}"
    yield from _wrong_uniqueness(task)
    if task.isolation not in (None, "process"):
        yield f'isolation must be "process" or None, not {task.isolation!r}'


def _wrong_times(task: Task[Any, Any]) -> Iterator[str]:
    if task.timeout is not None:
        yield from _wrong_timeout(task.timeout)
    yield from _wrong_instant("run_after", task.run_after)
    yield from _wrong_instant("expires", task.expires)
    yield from _wrong_expiry(task)
    by_state = task.retention if isinstance(task.retention, Mapping) else {"dead": task.retention}
    if unknown := set(by_state) - set(DEFAULT_RETENTION):
        yield f"retention has no state {sorted(unknown)}: the states are {sorted(DEFAULT_RETENTION)}"
    for what, check in (
        ("run_after", lambda: due(task.run_after)),
        ("backoff", lambda: as_backoff(task.backoff)),
        ("retention", lambda: [retention_seconds(0 if value is None else value) for value in by_state.values()]),
    ):
        try:
            check()
        except (TypeError, ValueError) as error:
            yield f"{what}: {error}"


def _wrong_timeout(timeout: Any) -> Iterator[str]:
    try:
        positive = seconds(timeout) > 0
    except (TypeError, ValueError) as error:
        yield f"timeout: {error}"
    else:
        if not positive:
            yield "timeout must be longer than 0 seconds; None is for no timeout"


def _wrong_instant(what: str, instant: Any) -> Iterator[str]:
    if isinstance(instant, datetime):
        if instant.tzinfo is None:
            yield f"{what} must be an aware datetime: give it a time zone"
        elif not 2000 <= instant.year < 9000:
            yield f"{what} {instant} must lie between the years 2000 and 9000"


def _wrong_expiry(task: Task[Any, Any]) -> Iterator[str]:
    if task.expires is None:
        return
    try:
        (expires_at, expires_seconds), (run_at, delay_seconds) = due(task.expires), due(task.run_after)
    except (TypeError, ValueError) as error:
        yield f"expires: {error}"
        return
    if expires_at is None and expires_seconds <= 0:
        yield "expires must be longer than 0 seconds; None is for never"
    elif (expires_at is None) == (run_at is None):
        is_before = expires_seconds <= delay_seconds if expires_at is None or run_at is None else expires_at <= run_at
        if is_before:
            yield f"expires {task.expires} is not after run_after {task.run_after}: such a job would never run"


def _wrong_uniqueness(task: Any) -> Iterator[str]:
    yield from _wrong_unique_while(task.unique_while)
    if task.on_conflict not in ON_CONFLICT:
        yield f"on_conflict must be one of {', '.join(ON_CONFLICT)}, not {task.on_conflict!r}"
    if task.unique_key is None:
        if (task.unique_while, task.on_conflict) != (UNIQUE_WHILE[0], ON_CONFLICT[0]):
            yield "unique_while and on_conflict need a unique_key"
    elif isinstance(task.unique_key, str):
        yield from wrong_key(task.unique_key)
    elif not callable(task.unique_key):
        yield f"unique_key must be a string or a function of the arguments, not {task.unique_key!r}"


def _wrong_unique_while(unique_while: Any) -> Iterator[str]:
    if unique_while in UNIQUE_WHILE:
        return
    try:
        positive = seconds(unique_while) > 0
    except (TypeError, ValueError):
        positive = False
    if not positive:
        states = " or ".join(f'"{state}"' for state in UNIQUE_WHILE)
        yield f"unique_while must be {states}, or a period of more than 0 seconds, not {unique_while!r}"


def wrong_key(key: str | None) -> Iterator[str]:
    """Say what is wrong with a unique key."""
    if key is not None and not (1 <= len(key) <= MAX_KEY_LENGTH and key.isprintable()):
        yield f"unique_key {key[:50]!r} must be 1 to {MAX_KEY_LENGTH} printable characters: hash what is longer"
