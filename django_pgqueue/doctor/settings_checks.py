"""Checks of what this process declares: its settings, the limits of its tasks, and the installation it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from django.conf import settings as django_settings
from django.db import connections

from django_pgqueue import stats
from django_pgqueue.settings import conf
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.ownership import read_ownership
from django_pgqueue.tasks import registry

from .findings import Level, Result, cannot_see, check, counted, listed, ok, quoted, worst
from .session import ROLE, Session

LEASE_SECONDS: Final = 4.0
Problem = tuple[Level, str, str]


@check(
    "settings",
    f"Error: `PGQUEUE` is invalid, or `IMMEDIATE` is on. Warning: `LEASE` is below {LEASE_SECONDS:g} s, `DEBUG` is "
    "on, or Django's connection pool is smaller than `CONCURRENCY`. Info: `NOTIFY` is off, or persistent "
    "connections have no health checks.",
    "Such settings are valid, but they slow or stop jobs, or cost memory.",
)
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


SETTINGS_CHECKS: Final = (_settings,)


@check(
    "installation",
    "Error: the database belongs to another installation, such as the source of a restored dump, and workers with "
    'the settings of this process wait. Warning: `CLONE_GUARD` is `"warn"`, so they run its jobs.',
    "Workers that wait run no job and are not in the list of workers.",
)
def _installation(session: Session) -> Result:
    guard = get_settings().CLONE_GUARD
    if guard == "off":
        return ok("Workers do not compare installations, because CLONE_GUARD is off.", clone_guard=guard)
    found = read_ownership(session.connection)
    data = {"clone_guard": guard, "differences": found.differences, "adopted_by": found.adopted_by}
    if found.differences:
        is_refused = guard == "refuse"
        reaction = "wait and run no job" if is_refused else "log a warning and run its jobs"
        what = (
            f"Workers with the settings of this process {reaction}, because the database belongs to another "
            f"installation: {found.differences}."
        )
        fix = "manage.py pgqueue adopt --dry-run shows what the database contains, and without --dry-run takes it over."
        return Result(Level.ERROR if is_refused else Level.WARNING, what, fix, data)
    if not found.is_certain:
        grant = f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {session.row(ROLE)[0]};"
        return cannot_see("whether the database was copied from another server", grant, **data)
    return ok("The database belongs to this installation, or to none yet.", **data)


INSTALLATION_CHECKS: Final = (_installation,)


@check(
    "undeclared_limits",
    "Warning: due jobs have a limit that no task of this process declares.",
    "Workers with the same code do not start these jobs.",
)
def _undeclared_limits(session: Session) -> Result:
    waiting = {limit.name: limit for limit in stats.limits(session.alias) if limit.due.value}
    undeclared = {name: limit.due.value for name, limit in waiting.items() if not limit.is_declared}
    if not undeclared:
        return ok("Tasks of this process declare the limits of all due jobs.", undeclared={})
    first = max(undeclared, key=undeclared.__getitem__)
    close = get_close_matches(first, registry.limits(), n=1)
    hint = f" Did you mean {quoted(close[0])} instead of {quoted(first)}?" if close else ""
    what = f"Due jobs have {counted(len(undeclared), 'limit')} that no task of this process declares: "
    return Result(
        Level.WARNING,
        f"{what}{listed(undeclared)}.{hint}",
        "Deploy the code that declares the limit, or cancel the jobs and enqueue them again.",
        {"undeclared": undeclared},
    )


LIMIT_CHECKS: Final = (_undeclared_limits,)
