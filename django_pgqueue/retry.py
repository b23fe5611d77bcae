"""When a failed attempt is followed by another: pure functions, no clock, no database.

The default backoff is 30 s doubled with each attempt, capped at an hour, plus up to 30 % of jitter per
job, so that jobs which failed together do not come back together. Ten attempts of it last about three hours.
"""

import random
from collections.abc import Callable
from typing import Final

from .exceptions import Duration, seconds

Backoff = Callable[[int, BaseException | None], Duration | None]
"""From the attempt that failed (1, 2, …) and its exception to the delay before the next; None: no more.

The exception is None where the worker was lost, for then nobody saw one.
"""

MAX_DELAY_SECONDS: Final = 400 * 24 * 3600.0
"""A backoff beyond this is cut: a delay of centuries is a mistake, and a timestamp has an end."""


def exponential(base: Duration = 30, *, factor: float = 2, cap: Duration = 3600, jitter: float = 0.3) -> Backoff:
    """Return a backoff of `base * factor ** (attempt - 1)`, at most `cap`, plus a random 0 to `jitter` of itself."""
    base_seconds, cap_seconds = seconds(base), seconds(cap)
    if not 1 <= factor < float("inf") or not 0 <= jitter <= 1:
        raise ValueError("exponential(): factor must be at least 1 and finite, and jitter between 0 and 1")

    def backoff(attempt: int, exception: BaseException | None) -> float:
        try:
            delay = min(cap_seconds, base_seconds * float(factor) ** (attempt - 1))
        except OverflowError:
            delay = cap_seconds if base_seconds else 0.0
        return delay * (1 + random.uniform(0, jitter))  # noqa: S311 -- spreads load, hides nothing

    return backoff


def fixed(delay: Duration) -> Backoff:
    """Return a backoff that is always `delay`, without jitter."""
    delay_seconds = seconds(delay)
    return lambda attempt, exception: delay_seconds


DEFAULT_BACKOFF: Final = exponential()


def as_backoff(value: Backoff | Duration | None) -> Backoff:
    """Return what a task's `backoff` option means: None is the default, a duration is fixed, a function itself."""
    if value is None:
        return DEFAULT_BACKOFF
    return value if callable(value) else fixed(value)


def delay_after(backoff: Backoff, attempt: int, exception: BaseException | None) -> float | None:
    """Return the seconds before the next attempt, or None for no more; the user's function may be wrong.

    Raises whatever `backoff` raises, and `TypeError` or `ValueError` if it returns no duration.
    """
    delay = backoff(attempt, exception)
    return None if delay is None else min(seconds(delay), MAX_DELAY_SECONDS)
