"""The one settings dict, `PGQUEUE`: its defaults, its units, and what is wrong with a given one.

Read lazily, and again after `override_settings`. Unknown keys and wrong types are system-check errors
(see `checks`); reading them raises `ImproperlyConfigured` with the same words.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Final, Literal

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from .exceptions import Duration, seconds

DAY_SECONDS: Final = 24 * 3600.0
FOREVER: Final = "forever"

Retention = Duration | Literal["forever"]


def option(default: Any, kind: str) -> Any:
    """Return a dataclass field whose `kind` names the check in `CHECKS` that its value must pass."""
    return field(default=default, metadata={"kind": kind})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`PGQUEUE`, checked and with defaults; durations are seconds (float), sizes bytes (int)."""

    MAX_ATTEMPTS: int = option(10, "count")
    """Attempts of a job before it is dead; about three hours with the default backoff."""
    CRASH_BUDGET: int = option(3, "count")
    """Times a job may take its worker down with it before it is dead, whatever attempts are left."""
    CONCURRENCY: int = option(10, "count")
    """Jobs at a time in one worker process."""
    PROCESSES: int = option(1, "count")
    """Worker processes under one supervisor."""
    LEASE: float = option(60.0, "duration")
    """Seconds that an execution stays its worker's without a beat; the beat is a quarter of it."""
    RESCUE_INTERVAL: float = option(5.0, "duration")
    """Seconds between two looks for executions whose lease is over."""
    PRUNE_INTERVAL: float = option(60.0, "duration")
    """Seconds between two rounds of removing finished jobs past their retention."""
    SCHEDULE_INTERVAL: float = option(5.0, "duration")
    """Seconds between two looks of a worker at the schedules, where none is due before; 60 while there are none."""
    POLL_INTERVAL: float = option(30.0, "duration")
    """Seconds an idle worker sleeps at most while notifications reach it."""
    POLL_INTERVAL_WITHOUT_LISTEN: float = option(1.0, "duration")
    """Seconds an idle worker sleeps at most while none do."""
    GRACE: float = option(25.0, "duration")
    """Seconds that running jobs get to end after SIGTERM, before they are given back."""
    CANCEL_GRACE: float = option(10.0, "duration")
    """Seconds that a running job gets to end by itself, once it was asked to, before it is stopped."""
    RETENTION: Mapping[str, Retention] | None = option(None, "retention")
    """How long finished jobs are kept: {"succeeded": …, "cancelled": …, "dead": …}, durations or "forever"."""
    MAX_ARGUMENTS_BYTES: int = option(256 * 1024, "count")
    MAX_RESULT_BYTES: int = option(64 * 1024, "count")
    MAX_TRACEBACK_BYTES: int = option(16 * 1024, "count")
    CLAIM_LIMIT: int = option(500, "count")
    """Jobs that one claim takes at most."""
    UNKNOWN_TASK_LIMIT: float = option(3600.0, "duration")
    """Seconds that a job waits for a worker that knows its task, or accepts its arguments, before it is dead."""
    CONN_MAX_AGE: float = option(600.0, "duration")
    """Seconds that a worker's thread keeps a Django database connection between jobs."""
    NOTIFY: bool = option(default=True, kind="flag")
    """Whether enqueue wakes sleeping workers; without it they find jobs by polling alone."""
    LISTEN_DATABASE: str | None = option(None, "alias")
    """Alias for LISTEN where the main one leads through a transaction pooler; None: the worker's own."""
    IMMEDIATE: bool = option(default=False, kind="flag")
    """Whether a job that is due runs at its enqueue, in the caller's thread and transaction: for tests and a shell."""
    MIDDLEWARE: Sequence[str] = option((), "paths")
    """Dotted paths of classes that stand around enqueue and run, the first outermost; see `middleware`."""
    TASK_MODULES: Sequence[str] = option((), "modules")
    """Modules with tasks beyond `<app>.tasks` (and what is below it) of every installed app."""

    @property
    def beat_seconds(self) -> float:
        """Seconds between two beats: a quarter of the lease, so that three may be missed."""
        return self.LEASE / 4

    def retention_seconds(self, state: str) -> float | None:
        """Return how long finished jobs of `state` are kept; None is for ever."""
        return retention_seconds((self.RETENTION or {}).get(state, DEFAULT_RETENTION[state]))


DEFAULT_RETENTION: Final[dict[str, Retention]] = {
    "succeeded": 7 * DAY_SECONDS,
    "cancelled": 7 * DAY_SECONDS,
    "dead": 90 * DAY_SECONDS,
}


def retention_seconds(value: Retention) -> float | None:
    """Return a retention in seconds, None for "forever"; raises like `exceptions.seconds`."""
    return None if value == FOREVER else seconds(value)


def _count(value: object) -> str | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    return None if whole else "must be a whole number of at least 1"


def _duration(value: object) -> str | None:
    try:
        positive = seconds(value) > 0  # type: ignore[arg-type]  # whatever a settings file holds
    except (TypeError, ValueError):
        positive = False
    return None if positive else "must be a positive number of seconds or a timedelta"


def _flag(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be True or False"


def _alias(value: object) -> str | None:
    known = value is None or value in django_settings.DATABASES
    return None if known else "must be None or an alias in DATABASES"


def _modules(value: object) -> str | None:
    listed = isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)
    return None if listed else "must be a list of module names"


def _paths(value: object) -> str | None:
    listed = isinstance(value, list | tuple) and all(isinstance(path, str) for path in value)
    return None if listed else "must be a list of dotted paths to classes"


def _retention(value: object) -> str | None:
    wanted = 'must be a dict of "succeeded", "cancelled" and "dead" to seconds, timedelta or "forever"'
    if not isinstance(value, Mapping) or not set(value) <= set(DEFAULT_RETENTION):
        return wanted
    try:
        list(map(retention_seconds, value.values()))
    except (TypeError, ValueError):
        return wanted
    return None


CHECKS: Final = {
    "count": _count,
    "duration": _duration,
    "flag": _flag,
    "alias": _alias,
    "modules": _modules,
    "paths": _paths,
    "retention": _retention,
}
OPTIONS: Final = {option.name: option for option in fields(Settings)}


def problems(given: object) -> list[str]:
    """Return what is wrong with a `PGQUEUE` dict, one sentence each; an empty list if nothing is."""
    if not isinstance(given, Mapping):
        return ["PGQUEUE must be a dict."]
    found = []
    for key, value in given.items():
        if key not in OPTIONS:
            close = difflib.get_close_matches(str(key).upper(), OPTIONS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else f" Known: {', '.join(OPTIONS)}."
            found.append(f"PGQUEUE has no option {key!r}.{hint}")
        elif wrong := CHECKS[OPTIONS[key].metadata["kind"]](value):
            found.append(f"PGQUEUE[{key!r}] {wrong}, not {value!r}.")
    return found


@cache
def get_settings() -> Settings:
    """Return the project's settings; raises `ImproperlyConfigured` if `PGQUEUE` holds anything wrong."""
    given = getattr(django_settings, "PGQUEUE", {})
    if wrong := problems(given):
        raise ImproperlyConfigured(" ".join(wrong))
    durations = {key for key in given if OPTIONS[key].metadata["kind"] == "duration"}
    options: dict[str, Any] = {key: seconds(value) if key in durations else value for key, value in given.items()}
    return Settings(**options)


def _forget(*, setting: str, **kwargs: object) -> None:
    if setting in {"PGQUEUE", "DATABASES"}:
        get_settings.cache_clear()


setting_changed.connect(_forget)
