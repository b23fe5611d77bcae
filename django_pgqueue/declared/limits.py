"""Limits: how many jobs of a key run at a time, how many start in a period, and in which order.

Tasks declare a `Limit`. `enqueue()` writes the key of each call into the job's row, and the worker's claims obey the
policy of the limit. A `Limit` is immutable and always valid: invalid values raise `InvalidTask` when it is created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from django.utils.crypto import salted_hmac

from django_pgqueue.durations import MAX_SECONDS
from django_pgqueue.exceptions import InvalidTask
from django_pgqueue.ground.lazy_strings import lazy_problems

from .breakers import Breaker
from .key_templates import names_in, template_problems

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,60}", re.ASCII)
RATE: Final = re.compile(r"([0-9]{1,9})/([0-9]{0,6})([smhd])", re.ASCII)
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_NUMBER: Final = 1_000_000_000
"""Maximum of all numbers of a limit: weights and their sums must fit the columns."""
MAX_PER_SECOND: Final = 1_000_000
"""Maximum rate: the timestamps of the database have microseconds."""
MAX_KEY_LENGTH: Final = 200
"""Maximum characters of a limit key, including the limit's name."""
SHOWN: Final = ("key", "concurrency", "rate", "burst", "weight", "share", "breaker")
"""Fields that the text of a limit contains if they differ from their defaults."""
SHARED: Final = ("name", "concurrency", "rate", "burst", "ordered", "on_dead", "share", "breaker")
"""Fields that are equal in all tasks that share a limit."""
ON_DEAD: Final = ("continue", "block")
"""Valid values of `on_dead`. The first value is the default."""

LimitKey = str | Callable[..., str | int | None]
"""A template over the names of the arguments, or a function of the call's arguments."""


class CallLimit(NamedTuple):
    """The limit of one call, as the columns of its job's row."""

    limit_key: str
    limit_weight: int | None
    """None: 1."""
    limit_order: int | None
    """The value of `Limit.order`."""


NO_LIMIT: Final = dict.fromkeys(CallLimit._fields)
"""The columns of a job without a limit."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of how jobs start, over all workers. Pass it as the option `limit` of `@task` or of `using()`.

    Each value of `key` has slots and tokens of its own. Waiting keys take turns, so a limit with a key and without a
    number gives each key a fair share. Tasks can share a limit: they declare equal limits, which can differ only in
    `key` and `weight`.

    Args:
        name: Name of the limit: 1 to 60 letters, digits and the characters `_`, `-` and `.`.
        key: What a limit counts separately. A template over the names of the arguments, such as
            `"customer:{customer_id}"`; or a function of the call's arguments that returns a string, a whole number, or
            None for a job without a limit. None: all jobs count together.
        concurrency: Maximum jobs of a key that run at a time. None: no maximum.
        rate: Maximum starts of a key in a period, such as `"100/m"`, `"5/s"`, `"1000/h"` or `"10/30s"`. The units are
            s, m, h and d. None: no maximum.
        burst: How many jobs of a key may start at once after a time without starts. Needs `rate`.
        weight: How many slots and tokens a job takes, or a function of the call's arguments that returns it. Needs
            `concurrency` or `rate`, and is at most `concurrency`, and at most `burst` if there is a rate.
        ordered: Whether the jobs of a key run one after the other, in the order of their ids.
        on_dead: Effect of a dead job on later jobs of its key: "continue" or "block". Needs `ordered`.
        share: How many jobs of a key may start in one turn.
        breaker: When to pause a key because its attempts fail. None: never.

    Raises:
        InvalidTask: A value is invalid, or two values contradict each other. The message says what to change.

    Example::

        @task(limit=Limit("stripe", rate="100/m", burst=10))
        def charge(order_id: int) -> None: ...


        @task(limit=Limit("import", key="customer:{customer_id}", ordered=True))
        def import_file(customer_id: int, path: str) -> None: ...
    """

    name: str
    key: LimitKey | None = field(default=None, kw_only=True)
    concurrency: int | None = field(default=None, kw_only=True)
    rate: str | None = field(default=None, kw_only=True)
    burst: int = field(default=1, kw_only=True)
    weight: int | Callable[..., int] = field(default=1, kw_only=True)
    ordered: bool = field(default=False, kw_only=True)
    on_dead: Literal["continue", "block"] = field(default="continue", kw_only=True)
    share: int = field(default=1, kw_only=True)
    breaker: Breaker | None = field(default=None, kw_only=True)
    interval_seconds: float | None = field(init=False, repr=False, compare=False)
    """Seconds until a token of the rate comes back: the period divided by the number of starts. None without a rate."""
    argument_names: tuple[str, ...] = field(init=False, repr=False, compare=False)
    """Names of the arguments in the template `key`."""

    def __post_init__(self) -> None:
        for check in (_lazy_problems, _value_problems, _key_problems, _rate_problems, _combination_problems):
            for problem in check(self):
                raise InvalidTask(f"limit {self.name!r}: {problem}")
        object.__setattr__(self, "interval_seconds", None if self.rate is None else interval_seconds(self.rate))
        object.__setattr__(self, "argument_names", names_in(self.key) if isinstance(self.key, str) else ())

    def __str__(self) -> str:
        """Return the name and what differs from the defaults, for operators."""
        given = {name: getattr(self, name) for name in SHOWN}
        parts = [
            f"{name} {getattr(value, '__name__', value)}"
            for name, value in given.items()
            if value != self.__dataclass_fields__[name].default
        ]
        if self.ordered:
            parts.append("ordered, blocked by dead jobs" if self.blocks else "ordered")
        return f"{self.name} ({', '.join(parts)})"

    @property
    def blocks(self) -> bool:
        """Whether a dead job blocks the later jobs of its key."""
        return self.ordered and self.on_dead == "block"

    @property
    def order(self) -> int | None:
        """The value of the column `limit_order` of the jobs: None, 1 for ordered jobs, 2 if a dead job blocks them."""
        if not self.ordered:
            return None
        return 2 if self.blocks else 1

    @property
    def policy(self) -> tuple[Any, ...]:
        """The values that are equal in all tasks that share the limit: all except `key` and `weight`."""
        return tuple(getattr(self, name) for name in SHARED)

    @property
    def reads_arguments(self) -> bool:
        """Whether the key or the weight of a job depends on its arguments."""
        return self.key is not None or callable(self.weight)


def name_of(limit_key: str) -> str:
    """Return the name of the limit to which the limit key of a job belongs."""
    return limit_key.partition(":")[0]


def has_value(limit_key: str) -> bool:
    """Return whether a limit key is that of one value of `Limit.key`, and not the name of a limit alone."""
    return ":" in limit_key


def without_value(limit_key: str) -> str:
    """Return a limit key as everybody may see it: the name of the limit, and "…" for the value made of arguments."""
    name, colon, _ = limit_key.partition(":")
    return f"{name}:…" if colon else name


def logged(limit_key: str) -> str:
    """Return a limit key for log lines: with a digest instead of its value, which is made of arguments.

    The digest is keyed by SECRET_KEY, so nobody can find the value by trying. Lines about one key have one digest.
    """
    name, colon, value = limit_key.partition(":")
    return f"{name}:#{salted_hmac('django_pgqueue.limit_key', value).hexdigest()[:8]}" if colon else name


def key_problems(limit_key: str) -> Iterator[str]:
    """Yield the problem of a limit key that the database cannot store. It does not quote the key, made of arguments."""
    name, has_value, value = limit_key.partition(":")
    if has_value and not value:
        yield f"the key of limit {name!r} is empty: return None for a job without a limit"
    if len(limit_key) > MAX_KEY_LENGTH:
        length = MAX_KEY_LENGTH - len(name) - 1
        yield f"the key of limit {name!r} has more than {length} characters: hash longer keys"
    if "\x00" in value or any("\ud800" <= character <= "\udfff" for character in value):
        yield f"the key of limit {name!r} has a character that PostgreSQL cannot store: remove it"


def weight_problems(limit: Limit, weight: int) -> Iterator[str]:
    """Yield the problem of a weight that is invalid, or more than the limit admits."""
    if not _is_number(weight):
        yield f"weight {weight!r} must be a whole number from 1 to {MAX_NUMBER}"
    elif limit.concurrency is not None and weight > limit.concurrency:
        yield f"weight {weight} is more than concurrency {limit.concurrency}: raise concurrency, or lower the weight"
    elif limit.rate is not None and weight > limit.burst:
        yield f"weight {weight} is more than burst {limit.burst}: raise burst, or lower the weight"


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_NUMBER


def _lazy_problems(limit: Limit) -> Iterator[str]:
    for option in ("name", "key", "rate"):
        yield from lazy_problems(option, getattr(limit, option))


def _value_problems(limit: Limit) -> Iterator[str]:
    name: object = limit.name
    if not isinstance(name, str) or not NAME.fullmatch(name):
        yield "the name must be 1 to 60 of the characters A-Z a-z 0-9 _ - ."
    numbers = {"concurrency": limit.concurrency, "burst": limit.burst, "share": limit.share, "weight": limit.weight}
    for field_name, value in numbers.items():
        is_other = (field_name == "concurrency" and value is None) or (field_name == "weight" and callable(value))
        if not is_other and not _is_number(value):
            yield f"{field_name} {value!r} must be a whole number from 1 to {MAX_NUMBER}"
    ordered: object = limit.ordered
    if not isinstance(ordered, bool):
        yield f"ordered must be True or False, not {ordered!r}"
    if limit.on_dead not in ON_DEAD:
        yield f"on_dead must be one of {', '.join(ON_DEAD)}, not {limit.on_dead!r}"
    breaker: object = limit.breaker
    if breaker is not None and not isinstance(breaker, Breaker):
        yield f"breaker must be a Breaker or None, not {breaker!r}"


def _key_problems(limit: Limit) -> Iterator[str]:
    key: Any = limit.key
    if key is None or callable(key):
        return
    if not isinstance(key, str):
        yield f"key must be a template or a function of the arguments, not {key!r}"
        return
    problem = ""
    for problem in template_problems(f"key {key!r}", key):
        yield problem
    if not problem and not names_in(key):
        yield f"key {key!r} names no argument, so all jobs have one key: remove it, or write {{argument}}"


def _rate_problems(limit: Limit) -> Iterator[str]:
    rate: Any = limit.rate
    if rate is None:
        return
    found = RATE.fullmatch(rate) if isinstance(rate, str) else None
    if found is None or 0 in (int(found[1]), int(found[2] or 1)):
        yield f'rate {rate!r} must be like "100/m", "5/s", "1000/h" or "10/30s", with the units s, m, h and d'
        return
    interval = interval_seconds(rate)
    if interval * MAX_PER_SECOND < 1:
        yield f"rate {rate!r} must be at most {MAX_PER_SECOND} in a second"
    if _is_number(limit.burst) and interval * limit.burst > MAX_SECONDS:
        yield f"rate {rate!r} needs more than 100 years for {limit.burst} starts: reduce the period or burst"


def interval_seconds(rate: str) -> float:
    """Return the seconds until a token of a valid rate comes back."""
    tokens, _, period = rate.partition("/")
    return int(period[:-1] or 1) * UNIT_SECONDS[period[-1]] / int(tokens)


def _combination_problems(limit: Limit) -> Iterator[str]:
    has_number = limit.concurrency is not None or limit.rate is not None
    if not (has_number or limit.ordered or limit.key is not None or limit.breaker is not None):
        yield "it limits nothing: pass concurrency, rate, ordered, key or breaker"
    if limit.rate is None and limit.burst != 1:
        yield "burst needs a rate"
    if not has_number and limit.weight != 1:
        yield "weight needs concurrency or rate"
    if not limit.ordered and limit.on_dead != ON_DEAD[0]:
        yield 'on_dead="block" needs ordered=True'
    if limit.ordered and limit.concurrency not in (None, 1):
        yield f"ordered=True runs one job of a key at a time: remove concurrency {limit.concurrency}, or ordered"
    if not callable(limit.weight):
        yield from weight_problems(limit, limit.weight)
