"""Time travel for tests: the queue's statements see a later time. No row is changed, and nothing sleeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

from django_pgqueue.db.statements import clock

P = ParamSpec("P")
R = TypeVar("R")


class time_travel:
    """Move the queue's clock forward, so that delayed jobs and retries are due, retention ends and leases expire.

    Use it as a context manager, or as a decorator of functions and coroutine functions. Nested uses add up.

    It shifts PostgreSQL's time in the queue statements of this process. It does not change the time that tasks
    themselves see: use `freezegun` or `time-machine` for that. These in turn do not move the queue's clock.

    Args:
        days: Days to add.
        hours: Hours to add.
        minutes: Minutes to add.
        seconds: Seconds to add.
        milliseconds: Milliseconds to add.

    Raises:
        ValueError: The sum of the arguments is negative.

    Example:
        >>> with time_travel(hours=1):
        ...     run_jobs()
    """

    def __init__(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        shift = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if shift < timedelta():
            raise ValueError(f"time_travel() cannot go back by {-shift.total_seconds():g} s: pass a positive time span")
        self.shift_seconds = shift.total_seconds()

    def __enter__(self) -> None:
        clock.shift_seconds += self.shift_seconds

    def __exit__(self, *error: object) -> None:
        clock.shift_seconds -= self.shift_seconds

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function or a coroutine function.

        Raises:
            TypeError: `function` is anything else, such as a class. Decorating it would have no effect.
        """
        if not inspect.isfunction(function):
            raise TypeError(
                f"time_travel() decorates functions, got {function!r}: decorate the methods of a class one by one"
            )
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def async_wrapper(*args: P.args, **kwargs: P.kwargs) -> object:
                with self:
                    return await function(*args, **kwargs)

            return async_wrapper  # type: ignore[return-value]  # mypy does not see that it is a coroutine function too

        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)  # type: ignore[no-any-return]  # isfunction() made its type Any

        return wrapper
