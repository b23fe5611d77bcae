"""The check of the settings of this process, for combinations that are valid and still unwise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.conf import settings as django_settings
from django.db import connections

from django_pgqueue import conf

from .findings import Check, Level, Result, ok, worst
from .session import Session

LEASE_SECONDS: Final = 4.0
Problem = tuple[Level, str, str]


def _settings(session: Session) -> Result:
    invalid = conf.problems(getattr(django_settings, "PGQUEUE", {}))
    if invalid:
        return Result(Level.ERROR, f"PGQUEUE is invalid: {' '.join(invalid)}", "Correct PGQUEUE.", {"invalid": invalid})
    problems = [*_of_queue(conf.get_settings()), *_of_database(session.alias, conf.get_settings())]
    data = {"problems": [what for _, what, _ in problems]}
    if not problems:
        return ok("No settings conflict.", **data)
    problems.sort(key=lambda problem: list(Level).index(problem[0]), reverse=True)
    what = "; ".join(what for _, what, _ in problems)
    fix = " ".join(fix for _, _, fix in problems)
    return Result(worst(level for level, *_ in problems), f"Settings conflict: {what}.", fix, data)


def _of_queue(settings: conf.Settings) -> Iterator[Problem]:
    if settings.IMMEDIATE:
        yield Level.ERROR, "IMMEDIATE is on, so no worker runs the jobs", 'Remove "IMMEDIATE" from PGQUEUE.'
    if settings.LEASE < LEASE_SECONDS:
        what = f"LEASE is {settings.LEASE:g} s, so a short outage interrupts jobs"
        yield Level.WARNING, what, 'Set PGQUEUE["LEASE"] to 60.'
    if not settings.NOTIFY:
        what = "NOTIFY is off, so workers poll"
        yield Level.INFO, what, 'Remove "NOTIFY" from PGQUEUE, unless you turned it off on purpose.'
    if django_settings.DEBUG:
        what = "DEBUG is on, so each connection keeps its last 9,000 statements in memory"
        yield Level.WARNING, what, "Set DEBUG = False in production."


def _of_database(alias: str, settings: conf.Settings) -> Iterator[Problem]:
    database = connections[alias].settings_dict
    pool = database.get("OPTIONS", {}).get("pool")
    if pool:
        size = pool_size(pool)
        if size < settings.CONCURRENCY:
            what = f"the pool of {alias!r} has {size} connections for {settings.CONCURRENCY} jobs at a time"
            fix = f'Set DATABASES[{alias!r}]["OPTIONS"]["pool"] to {{"max_size": {settings.CONCURRENCY}}}, or more.'
            yield Level.WARNING, what, fix
    elif database.get("CONN_MAX_AGE") != 0 and not database.get("CONN_HEALTH_CHECKS"):
        what = f"CONN_MAX_AGE of {alias!r} keeps connections, and CONN_HEALTH_CHECKS is off"
        yield Level.INFO, what, f'Set DATABASES[{alias!r}]["CONN_HEALTH_CHECKS"] = True.'


def pool_size(pool: Any) -> int:
    """Return the largest size of psycopg's pool for the value of Django's option `pool`. Its defaults are psycopg's."""
    options = pool if isinstance(pool, dict) else {}
    return int(options.get("max_size") or options.get("min_size", 4))


SETTINGS_CHECKS: Final = (
    Check(
        "settings",
        f"Error: `PGQUEUE` is invalid, or `IMMEDIATE` is on. Warning: `LEASE` is below {LEASE_SECONDS:g} s, `DEBUG` is "
        "on, or Django's connection pool is smaller than `CONCURRENCY`. Info: `NOTIFY` is off, or persistent "
        "connections have no health checks.",
        "Such settings are valid, but they slow or stop jobs, or cost memory.",
        _settings,
    ),
)
