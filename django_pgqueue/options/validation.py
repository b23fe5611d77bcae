"""Checks of calls and of single values of task options.

`options` declares which check belongs to which option. `enqueue()` and `enqueue_many()` call `check_call()`. A check of
a value gets the name of the option, for its messages, and yields one sentence per problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache, partial
from keyword import iskeyword
from typing import Any, Final

from django.conf import settings

from django_pgqueue.db.fields import aware
from django_pgqueue.declared.chunks import MAX_WAIT_SECONDS
from django_pgqueue.declared.key_templates import template_problems
from django_pgqueue.declared.limits import Limit
from django_pgqueue.durations import seconds
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.job_log import LEVELS
from django_pgqueue.ground.search_text import MAX_NAME_LENGTH, MAX_NAMES
from django_pgqueue.ground.signatures import signature_of
from django_pgqueue.settings.conf import known_queues
from django_pgqueue.settings.setting_kinds import DEFAULT_RETENTION, retention_seconds
from django_pgqueue.settings.setting_kinds import NAME as NAME

MAX_KEY_LENGTH: Final = 200
UNIQUE_WHILE: Final = ("ready+running", "ready")
ON_CONFLICT: Final = ("skip", "replace", "raise")
ON_MISSING: Final = ("dead", "cancel", "retry")
"""Valid values of the options `unique_while`, `on_conflict` and `on_missing`. The first value is the default."""

Check = Callable[[str, Any], Iterator[str]]
"""Yields the problems of an option's value. Its arguments are the name of the option and the value."""
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
        return aware(run_after), 0.0
    return None, 0.0 if run_after is None else seconds(run_after)


@lru_cache(maxsize=1000)
def check_call(func: Callable[..., Any], positional: int, names: tuple[str, ...]) -> None:
    """Check that a function accepts a number of positional arguments and these keywords.

    The values make no difference, so the result is cached for each combination. Without the cache, this check took 2 µs
    of the 8 µs for encoding a call.

    Raises:
        TypeError: The function does not accept such a call.
    """
    signature_of(func).bind(*(None,) * positional, **dict.fromkeys(names))


def as_names(names: Any, option: str = "aliases") -> tuple[str, ...]:
    """Return an iterable of names as a tuple.

    Raises:
        InvalidTask: `names` is a string. It would be split into letters.
    """
    if isinstance(names, str):
        raise InvalidTask(f"{option} must be a list of names, not the string {names!r}")
    return tuple(names)


def as_errors(errors: type[BaseException] | Iterable[type[BaseException]]) -> tuple[type[BaseException], ...]:
    """Return one exception class or several as a tuple."""
    return (errors,) if isinstance(errors, type) else tuple(errors)


def name_problems(option: str, name: Any) -> Iterator[str]:
    """Yield the problem of the name of a task or a queue."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield f"{option} {name!r} must be 1 to 100 of the characters A-Z a-z 0-9 _ . : -"


def unknown_queue(option: str, name: str) -> Iterator[str]:
    """Yield the problem of a queue that `PGQUEUE["QUEUES"]` does not name."""
    queues = known_queues()
    if queues is not None and name not in queues:
        close = get_close_matches(name, queues, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"the queues are {', '.join(map(repr, queues))}"
        yield f"{option} {name!r} is not in PGQUEUE['QUEUES']: {hint}"


def alias_problems(_option: str, values: Iterable[Any]) -> Iterator[str]:
    """Yield the problems of earlier names of a task."""
    for name in values:
        yield from name_problems("alias", name)


def sensitive_problems(option: str, names: Iterable[Any]) -> Iterator[str]:
    """Yield the problem of names of sensitive arguments. `definition` compares them with the function's signature."""
    for name in names:
        if not isinstance(name, str):
            yield f"{option} must be names of arguments, not {name!r}"


def search_problems(option: str, names: tuple[Any, ...]) -> Iterator[str]:
    """Yield the problems of names of search keys. `definition` compares them with the function's signature."""
    if len(names) > MAX_NAMES:
        yield f"{option} has {len(names)} names: at most {MAX_NAMES} are allowed"
    for name in names:
        if not isinstance(name, str) or not name.isidentifier() or iskeyword(name) or len(name) > MAX_NAME_LENGTH:
            yield f"{option} must be names of arguments with at most {MAX_NAME_LENGTH} characters, not {name!r}"


def number_problems(low: int, high: int) -> Check:
    """Return a check for whole numbers in a range."""

    def check(option: str, value: Any) -> Iterator[str]:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            yield f"{option} {value!r} must be a whole number from {low} to {high}"

    return check


def database_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of the database of a task's jobs. Whether the alias exists is checked at the enqueue."""
    if not callable(value) and (not isinstance(value, str) or not value):
        yield f"{option} must be an alias in DATABASES or a function of the arguments, not {value!r}"


def flag_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of a boolean."""
    if not isinstance(value, bool):
        yield f"{option} must be True or False, not {value!r}"


def exception_problems(option: str, errors: tuple[Any, ...]) -> Iterator[str]:
    """Yield the problem of a tuple of exception classes."""
    if not all(isinstance(error, type) and issubclass(error, BaseException) for error in errors):
        yield f"{option} must be exception classes, not {errors!r}"


def parsing_problems(parse: Callable[[Any], object]) -> Check:
    """Return a check for values that `parse` accepts: it raises no `TypeError` or `ValueError`."""

    def check(option: str, value: Any) -> Iterator[str]:
        try:
            parse(value)
        except (TypeError, ValueError) as error:
            yield f"{option}: {error}"

    return check


def moment_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of a time at which a job is due or expires: a duration or a datetime.

    The datetime must be aware. With `USE_TZ = False`, Django makes naive ones, and `due()` adds the time zone.
    """
    if not isinstance(value, datetime):
        yield from parsing_problems(due)(option, value)
    elif value.tzinfo is None and settings.USE_TZ:
        yield f"{option} must be an aware datetime, not {value}: add a time zone"
    elif not 2000 <= value.year < 9000:
        yield f"{option} {value} must be between the years 2000 and 9000"


def expiry_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of a time by which a job must start."""
    check = moment_problems if isinstance(value, datetime) else partial(length_problems, "expiry")
    yield from check(option, value)


def chunk_wait_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of the time for which a chunk waits for more jobs."""
    try:
        wait_seconds = seconds(value)
    except (TypeError, ValueError) as error:
        yield f"{option}: {error}"
    else:
        if wait_seconds > MAX_WAIT_SECONDS:
            yield f"{option} {value!r} must be at most {MAX_WAIT_SECONDS:g} seconds"


def length_problems(limit: str, option: str, value: Any) -> Iterator[str]:
    """Yield the problem of a duration that must be longer than 0. The message says that None means no `limit`."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if (is_number and value <= 0) or (isinstance(value, timedelta) and value <= timedelta()):
        yield f"{option} must be longer than 0 seconds, not {value!r}: pass None for no {limit}"
        return
    try:
        seconds(value)
    except (TypeError, ValueError) as error:
        yield f"{option}: {error}"


def retention_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problems of a retention, or a mapping of states to retentions."""
    by_state = value if isinstance(value, Mapping) else {"dead": value}
    if unknown := set(by_state) - set(DEFAULT_RETENTION):
        yield f"{option} has unknown states {sorted(unknown)}: the states are {sorted(DEFAULT_RETENTION)}"
    for each in by_state.values():
        yield from parsing_problems(retention_seconds)(option, 0 if each is None else each)


def isolation_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of the kind of isolation."""
    if value != "process":
        yield f'{option} must be "process" or None, not {value!r}'


def keep_logs_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of the level of the log lines that are kept."""
    if value is not False and not (isinstance(value, str) and value in LEVELS):
        yield f"{option} must be one of {', '.join(LEVELS)}, or False, or None, not {value!r}"


def choice_problems(choices: Sequence[str]) -> Check:
    """Return a check for one of several words."""

    def check(option: str, value: Any) -> Iterator[str]:
        if value not in choices:
            yield f"{option} must be one of {', '.join(choices)}, not {value!r}"

    return check


def limit_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of a limit. `Limit` checks its own values, and `definition` compares it with the signature."""
    if not isinstance(value, Limit):
        yield f'{option} must be a Limit, such as Limit("name", rate="100/m"), not {value!r}'


def unique_while_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of how long a job keeps its key."""
    if value in UNIQUE_WHILE:
        return
    try:
        is_positive = seconds(value) > 0
    except (TypeError, ValueError):
        is_positive = False
    if not is_positive:
        states = " or ".join(f'"{state}"' for state in UNIQUE_WHILE)
        yield f"{option} must be {states}, or a period of more than 0 seconds, not {value!r}"


def unique_key_problems(option: str, value: Any) -> Iterator[str]:
    """Yield the problem of a unique key, or a function that returns one."""
    if isinstance(value, str):
        yield from wrong_key(value)
        yield from template_problems(option, value)
    elif not callable(value):
        yield f"{option} must be a string or a function of the arguments, not {value!r}"


def wrong_key(key: str | None) -> Iterator[str]:
    """Yield the problem of an invalid unique key. It does not quote the key, which can be made of arguments."""
    if key is not None and not (1 <= len(key) <= MAX_KEY_LENGTH and key.isprintable()):
        kind = f"has {len(key)}" if key.isprintable() else "contains others"
        yield f"unique_key must be 1 to {MAX_KEY_LENGTH} printable characters, and it {kind}: hash longer keys"
