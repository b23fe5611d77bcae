"""Read values that are typed as arguments of several subcommands: durations, times, and the user who types."""

from __future__ import annotations

import getpass
import re
from datetime import datetime, timedelta
from typing import Final

from django.utils import timezone
from django.utils.dateparse import parse_datetime

DURATION: Final = re.compile(r"(\d+)([smhd])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def duration(option: str, text: str) -> timedelta:
    """Return a duration such as 30m. Raise `ValueError` if it is not one."""
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"Invalid {option} {text!r}: use a number with s, m, h or d, such as 30m")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def instant(option: str, text: str) -> datetime:
    """Return an ISO 8601 time, by default in the current time zone. Raise `ValueError` if it is not one."""
    try:
        at = parse_datetime(text)
    except ValueError:  # the form is right, but there is no such day
        at = None
    if at is None:
        raise ValueError(f"Invalid {option} {text!r}: use an ISO 8601 time such as 2030-01-31T08:00")
    return at if at.tzinfo else timezone.make_aware(at)


def current_user() -> str:
    """Return the name of the user of the process, or an empty string."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in some containers
        return ""
