"""Durations that an application passes: their type, and the check of each."""

from datetime import timedelta

Duration = float | timedelta
"""A duration in arguments and settings: seconds, or a timedelta."""

MAX_SECONDS = 100 * 365 * 24 * 3600
"""Maximum duration (100 years). Longer durations are mistakes, and could exceed the range of a timestamp."""


def seconds(duration: Duration) -> float:
    """Return a duration in seconds.

    Args:
        duration: A number of seconds, or a timedelta.

    Raises:
        TypeError: `duration` is neither a number nor a timedelta. A boolean is not a number here.
        ValueError: `duration` is negative, not finite, or longer than 100 years.
    """
    if isinstance(duration, timedelta):
        duration = duration.total_seconds()
    if isinstance(duration, bool) or not isinstance(duration, int | float):
        raise TypeError(f"invalid duration: pass a number of seconds or a timedelta, not {type(duration).__name__}")
    if not 0 <= duration <= MAX_SECONDS:
        raise ValueError(f"invalid duration {duration!r}: pass 0 to {MAX_SECONDS} seconds (100 years)")
    return float(duration)
