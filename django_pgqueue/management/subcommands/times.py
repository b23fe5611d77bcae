"""Read times and durations that are typed on the command line: `30m`, `2h`, `1d`, or an ISO 8601 time."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone
from django.utils.dateparse import parse_datetime

DURATION: Final = re.compile(r"(\d{1,9})([smhd])")
LONGEST: Final = timedelta(days=36_500)
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration_of(option: str, text: str) -> timedelta:
    """Return a duration such as `30m`. Raise `ValueError` with the option's name if it is invalid."""
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"Invalid {option} {text!r}: use a number with s, m, h or d, such as 30m")
    duration = timedelta(**{UNITS[found[2]]: int(found[1])})
    if duration > LONGEST:
        raise ValueError(f"Invalid {option} {text!r}: use at most {LONGEST.days}d, which is 100 years")
    return duration


def time_of(option: str, text: str) -> datetime | timedelta:
    """Return an aware datetime, or the duration that was typed instead. Raise `ValueError` if it is neither."""
    if DURATION.fullmatch(text):
        return duration_of(option, text)
    try:
        at = parse_datetime(text)
    except ValueError:  # the text has the form of a time, but there is no such time
        at = None
    if at is None:
        raise ValueError(f"Invalid {option} {text!r}: use 30m, 2h, 1d, or an ISO 8601 time such as 2030-01-31T08:00")
    return at if at.tzinfo else timezone.make_aware(at)
