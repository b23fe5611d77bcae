"""Time travel: the queue's statements see a later time; no row is touched, and nobody sleeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

from django_pgqueue.db import clock

P = ParamSpec("P")
R = TypeVar("R")


class time_travel:
    """Let the queue's time be that much later: delayed jobs and retries come due, retention ends, leases run out.

    A context manager, or a decorator of functions and coroutine functions; journeys within one another add up. It moves
    the time of this process's queue statements, which is PostgreSQL's. What the tasks themselves take for the time is
    `freezegun`'s or `time-machine`'s business, and neither moves the queue. Raises `ValueError` for a journey into the
    past.
    """

    def __init__(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        shift = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        if shift < timedelta():
            raise ValueError(f"time travel leads into the future only, not {shift.total_seconds():g} s")
        self.shift_seconds = shift.total_seconds()

    def __enter__(self) -> None:
        clock.shift_seconds += self.shift_seconds

    def __exit__(self, *error: object) -> None:
        clock.shift_seconds -= self.shift_seconds

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function; raises `TypeError` for anything else, of which nothing would travel."""
        if not inspect.isfunction(function):
            raise TypeError(f"time_travel decorates functions, not {function!r}: decorate the methods of a class")
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def travelling(*args: P.args, **kwargs: P.kwargs) -> object:
                with self:
                    return await function(*args, **kwargs)

            return travelling  # type: ignore[return-value]  # a coroutine function, as it was

        @wraps(function)
        def travels(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return function(*args, **kwargs)  # type: ignore[no-any-return]  # isfunction() made it any

        return travels
