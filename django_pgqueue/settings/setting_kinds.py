"""The kinds of settings: for each, which values are valid, and what to say about an invalid one.

`conf` names the kind of each setting. Nothing here reads the project's settings, except the names of its databases.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final, Literal

from django.conf import settings as django_settings

from django_pgqueue.declared.retry import check_backoff
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.ground.job_log import LEVELS

DAY_SECONDS: Final = 24 * 3600.0
FOREVER: Final = "forever"
NAME: Final = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
"""Valid names of tasks and queues."""
TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")
"""Valid bearer tokens, which are the characters of RFC 6750. Shorter ones can be guessed."""

Retention = Duration | Literal["forever"]

DEFAULT_RETENTION: Final[dict[str, Retention]] = {
    "succeeded": 7 * DAY_SECONDS,
    "cancelled": 7 * DAY_SECONDS,
    "dead": 90 * DAY_SECONDS,
}


def retention_seconds(value: Retention) -> float | None:
    """Return a retention in seconds, or None for "forever".

    Raises:
        TypeError: `value` is neither a duration nor "forever".
        ValueError: `value` is negative or longer than 100 years.
    """
    return None if value == FOREVER else seconds(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_duration(value: object) -> bool:
    with suppress(TypeError, ValueError):
        return seconds(value) > 0  # type: ignore[arg-type]  # a settings file can contain any value
    return False


def _is_listen(value: object) -> bool:
    names = [name for pair in value.items() for name in pair] if isinstance(value, Mapping) else [value]
    return value is None or all(isinstance(name, str) and name in django_settings.DATABASES for name in names)


def _is_port(value: object) -> bool:
    return value is None or (_is_count(value) and isinstance(value, int) and value <= 65535)


def _is_address(value: object) -> bool:
    with suppress(ValueError):
        return isinstance(value, str) and bool(ip_address(value))
    return False


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


def _is_list_of_codecs(value: object) -> bool:
    if not isinstance(value, list | tuple):
        return False
    return _is_list_of_names(value[1:] if value and value[0] is None else value)


def _is_retention(value: object) -> bool:
    with suppress(TypeError, ValueError):
        if isinstance(value, Mapping):
            list(map(retention_seconds, value.values()))
            return set(value) <= set(DEFAULT_RETENTION)
    return False


def _is_backoff(value: Any) -> bool:
    with suppress(TypeError, ValueError):
        check_backoff(value)
        return True
    return False


def _is_list_of_queues(value: object) -> bool:
    return value is None or (_is_list_of_names(value) and bool(value) and all(map(NAME.fullmatch, value)))  # type: ignore[call-overload]  # a list


CHECKS: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "count": (_is_count, "must be a whole number of at least 1"),
    "duration": (_is_duration, "must be a positive number of seconds or a timedelta"),
    "timeout": (
        lambda value: value is None or _is_duration(value),
        "must be None, a positive number of seconds or a timedelta",
    ),
    "backoff": (
        _is_backoff,
        "must be None, seconds, a timedelta, or a function of (attempt, exception) or (exception, task_result)",
    ),
    "queues": (
        _is_list_of_queues,
        "must be None or a list of names of queues, each of 1 to 100 of the characters A-Z a-z 0-9 _ . : -",
    ),
    "level": (
        lambda value: value is None or (isinstance(value, str) and value in LEVELS),
        f"must be None or one of {', '.join(LEVELS)}",
    ),
    "flag": (lambda value: isinstance(value, bool), "must be True or False"),
    "listen": (_is_listen, "must be None, an alias in DATABASES, or a dict of such aliases by the alias of the jobs"),
    "port": (_is_port, "must be None or a port number from 1 to 65535"),
    "address": (_is_address, 'must be an IP address such as "127.0.0.1"'),
    "private": (  # no message shows the value
        lambda value: value is None or (isinstance(value, str) and bool(TOKEN.fullmatch(value))),
        "must be None or a string of at least 16 of the characters A-Z a-z 0-9 - . _ ~ + / =",
    ),
    "environment": (
        lambda value: isinstance(value, str) and (not value or bool(NAME.fullmatch(value))),
        "must be a string of at most 100 of the characters A-Z a-z 0-9 _ . : -",
    ),
    "clone_guard": (lambda value: value in ("refuse", "warn", "off"), 'must be "refuse", "warn" or "off"'),
    "modules": (_is_list_of_names, "must be a list of module names"),
    "paths": (_is_list_of_names, "must be a list of dotted paths to classes"),
    "codecs": (
        _is_list_of_codecs,
        "must be a list of dotted paths to classes, and can begin with None to store new values as plain JSON",
    ),
    "retention": (
        _is_retention,
        'must be a dict from "succeeded", "cancelled" or "dead" to seconds, a timedelta or "forever"',
    ),
}
"""For each kind of option: whether a value is valid, and the end of the message about an invalid one."""
DURATIONS: Final = frozenset({"duration", "timeout"})
"""Kinds of options that `get_settings()` turns into seconds."""
