"""Backoffs: how long a job waits after a failed attempt.

The worker calls `delay_after()` through `Task.delay_after()` when it records a failure. The functions in this module
use no clock and no database.

The default backoff is 30 s, doubled with each attempt and capped at one hour, plus a random 0 to 30 % for each job. The
jitter spreads out jobs that failed at the same time. Ten attempts with this backoff last about three hours.
"""

import random
from collections.abc import Callable
from typing import Final

from .exceptions import Duration, seconds

Backoff = Callable[[int, BaseException | None], Duration | None]
"""A function of (attempt, exception) that returns the delay before the next attempt, or None for no further attempt.

`attempt` is the number of the failed attempt (1, 2, …). `exception` is None if the worker was lost, because the
exception is unknown in that case.
"""

MAX_DELAY_SECONDS: Final = 400 * 24 * 3600.0
"""Maximum delay (400 days). Longer delays are reduced to it: a delay of centuries is a mistake, and timestamps are
limited."""


def exponential(base: Duration = 30, *, factor: float = 2, cap: Duration = 3600, jitter: float = 0.3) -> Backoff:
    """Return a backoff that grows exponentially: `base * factor ** (attempt - 1)`, at most `cap`, plus jitter.

    Args:
        base: Delay after the first attempt, in seconds or as a timedelta.
        factor: Multiplier for each further attempt, finite and at least 1.
        cap: Maximum delay before jitter, in seconds or as a timedelta.
        jitter: Maximum random addition as a fraction of the delay, from 0 to 1. 0.3 adds 0 to 30 %.

    Returns:
        A function for the `backoff` option of `@task`.

    Raises:
        TypeError: `base` or `cap` is not a duration.
        ValueError: An argument is out of range.

    Example::

        @task(backoff=exponential(10, cap=600), max_attempts=5)
        def send_reminder(order_id: int) -> None: ...
    """
    base_seconds, cap_seconds = seconds(base), seconds(cap)
    if not 1 <= factor < float("inf") or not 0 <= jitter <= 1:
        raise ValueError(
            "exponential(): factor must be at least 1 and finite, and jitter between 0 and 1, "
            f"not factor={factor!r} and jitter={jitter!r}"
        )

    def backoff(attempt: int, exception: BaseException | None) -> float:
        try:
            delay = min(cap_seconds, base_seconds * float(factor) ** (attempt - 1))
        except OverflowError:
            delay = cap_seconds if base_seconds else 0.0
        return delay * (1 + random.uniform(0, jitter))  # noqa: S311 -- spreads load, needs no secrecy

    return backoff


def fixed(delay: Duration) -> Backoff:
    """Return a backoff that is always `delay`, without jitter.

    Args:
        delay: Seconds or a timedelta.

    Returns:
        A function for the `backoff` option of `@task`.

    Raises:
        TypeError: `delay` is not a duration.
        ValueError: `delay` is negative or longer than 100 years.
    """
    delay_seconds = seconds(delay)
    return lambda attempt, exception: delay_seconds


DEFAULT_BACKOFF: Final = exponential()


def as_backoff(value: Backoff | Duration | None) -> Backoff:
    """Return the function for a task's `backoff` option.

    None means the default backoff, and a duration means a fixed one. A function is returned unchanged.
    """
    if value is None:
        return DEFAULT_BACKOFF
    return value if callable(value) else fixed(value)


def delay_after(backoff: Backoff, attempt: int, exception: BaseException | None) -> float | None:
    """Return the seconds before the next attempt, or None if there is no further attempt.

    Args:
        backoff: A backoff, possibly a function of the application.
        attempt: Number of the failed attempt, from 1.
        exception: The exception that ended it, or None if the worker was lost.

    Raises:
        TypeError: `backoff` returned neither a duration nor None.
        ValueError: `backoff` returned a duration that is negative or longer than 100 years.
        Exception: Any error that `backoff` raises.
    """
    delay = backoff(attempt, exception)
    return None if delay is None else min(seconds(delay), MAX_DELAY_SECONDS)
