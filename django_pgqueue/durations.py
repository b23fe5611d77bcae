"""Durations that an application passes: their type, and the check of each.

A duration is never text, because "10m" means minutes in one library and months in another. The errors say what to pass.
"""

import re
from datetime import timedelta
from typing import Final

Duration = float | timedelta
"""A duration in arguments and settings: seconds, or a timedelta."""

MAX_SECONDS = 100 * 365 * 24 * 3600
"""Maximum duration (100 years). Longer durations are mistakes, and could exceed the range of a timestamp."""
TEXT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(s|m|h|d|w|min|sec|second|minute|hour|day|week)s?\s*", re.IGNORECASE)
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def from_text(value: object) -> str:
    """Return the timedelta that a text such as "10m" means, as Python writes it; "" for any other value."""
    found = TEXT.fullmatch(value) if isinstance(value, str) else None
    return f"timedelta({UNITS[found[2][0].lower()]}={found[1]})" if found else ""


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
        meant = f", such as {text}" if (text := from_text(duration)) else ""
        given = repr(duration) if text else type(duration).__name__
        raise TypeError(f"invalid duration: pass a number of seconds or a timedelta{meant}, not {given}")
    if not 0 <= duration <= MAX_SECONDS:
        raise ValueError(f"invalid duration {duration!r}: pass 0 to {MAX_SECONDS} seconds (100 years)")
    return float(duration)
