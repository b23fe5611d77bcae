"""Circuit breakers: when a limit key is paused because its attempts fail, and which failures count.

A `Breaker` is a part of a `Limit`. Worker processes count the attempts that end (`worker.completion.breaker_counter`),
and `lifecycle.breakers` opens and closes the breaker of each key. A `Breaker` is immutable and always valid.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from django_pgqueue.exceptions import Directive, InvalidTask

MAX_ATTEMPTS: Final = 1_000_000
MAX_WINDOW_SECONDS: Final = 600
"""Maximum of `seconds`. A process adds a row a second for a busy key, and each check reads the rows of the window."""
MAX_PAUSE_SECONDS: Final = 86400
PAUSED_BY: Final = "circuit breaker"
"""The value of `Pause.paused_by` in the pauses of breakers."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """Pause a limit key whose attempts fail, and let single jobs probe it afterwards. Pass it as `Limit(breaker=…)`.

    The breaker of a key opens if at least `attempts` attempts ended within `seconds`, and at least the share `failures`
    of them failed. The key is then paused. After the pause, one job at a time runs. If the first of them to end
    succeeds, the breaker closes; if it fails, the key is paused again.

    An attempt that snoozes, is cancelled or is released does not count, and neither does one that raises `Retry` or
    `Dead`.

    Args:
        failures: Share of failed attempts: more than 0 and at most 1.
        attempts: Minimum number of attempts that ended: 1 to 1,000,000.
        seconds: Length of the window in which attempts count, in seconds: 1 to 600.
        pause: Length of each pause in seconds: 1 to 86,400.
        exceptions: Classes of the exceptions that count as failures. By default all failures count. With classes,
            attempts that fail with another exception, or because their process is lost, do not count at all.

    Raises:
        InvalidTask: A value is invalid. The message says what to change.

    Example::

        @task(limit=Limit("payments", breaker=Breaker(failures=0.5, attempts=20, seconds=60, pause=30)))
        def charge(order_id: int) -> None: ...
    """

    failures: float = field(default=0.5, kw_only=True)
    attempts: int = field(default=20, kw_only=True)
    seconds: float = field(default=60, kw_only=True)
    pause: float = field(default=30, kw_only=True)
    exceptions: tuple[type[BaseException], ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise InvalidTask(f"breaker: {problem}")

    def __str__(self) -> str:
        """Return the values, for operators."""
        return f"{self.failures:g} of {self.attempts} attempts in {self.seconds:g} s, pause {self.pause:g} s"

    def counts(self, exception: BaseException | None, exception_class: str) -> bool:
        """Return whether a failure with this exception counts.

        Args:
            exception: The exception, or None if it is in another process, or if there was none.
            exception_class: Path of its class, or "".
        """
        found = type(exception) if exception is not None else _class_of(exception_class)
        if found is None:
            return not self.exceptions
        # `issubclass()` would run the code of a metaclass.
        return Directive not in found.__mro__ and not {*found.__mro__}.isdisjoint(self.exceptions or (BaseException,))


def _class_of(path: str) -> type[BaseException] | None:
    """Return the class of an exception by its path, or None if no loaded module contains it. Imports nothing."""
    module_name, _, name = path.rpartition(".")
    found = getattr(sys.modules.get(module_name), "__dict__", {}).get(name)
    return found if isinstance(found, type) and BaseException in found.__mro__ else None


def _problems(breaker: Breaker) -> Iterator[str]:
    if not _is_number(breaker.failures) or not 0 < breaker.failures <= 1:
        yield f"failures {breaker.failures!r} must be a share: more than 0 and at most 1, such as 0.5"
    attempts: Any = breaker.attempts
    if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= MAX_ATTEMPTS:
        yield f"attempts {attempts!r} must be a whole number from 1 to {MAX_ATTEMPTS}"
    for name, maximum in (("seconds", MAX_WINDOW_SECONDS), ("pause", MAX_PAUSE_SECONDS)):
        value = getattr(breaker, name)
        if not _is_number(value) or not 1 <= value <= maximum:
            yield f"{name} {value!r} must be a number of seconds from 1 to {maximum}"
    classes: Any = breaker.exceptions
    if not isinstance(classes, tuple) or not all(
        isinstance(each, type) and issubclass(each, BaseException) for each in classes
    ):
        yield f"exceptions {classes!r} must be a tuple of exception classes, such as (ConnectionError,)"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
