"""Checks of what this process declares: its settings, the limits of its tasks, and the installation it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final

from django.conf import settings as django_settings
from django.db import connections
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue import stats
from django_pgqueue.display import number
from django_pgqueue.settings import conf
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.ownership import read_ownership
from django_pgqueue.tasks import registry

from .findings import Level, Result, cannot_see, check, listed, ok, quoted, worst
from .session import ROLE, Session

LEASE_SECONDS: Final = 4.0
Problem = tuple[Level, str, str]


@check(
    "settings",
    f"Error: `PGQUEUE` is invalid, or `IMMEDIATE` is on. Warning: `LEASE` is below {LEASE_SECONDS:g} s, `DEBUG` is "
    "on, or Django's connection pool is smaller than `CONCURRENCY`. Info: `NOTIFY` is off, or persistent "
    "connections have no health checks.",
    gettext_lazy("Such settings are valid, but they slow or stop jobs, or cost memory."),
)
def _settings(session: Session) -> Result:
    invalid = conf.problems(getattr(django_settings, "PGQUEUE", {}))
    if invalid:
        what = _("PGQUEUE is invalid: %(problems)s") % {"problems": " ".join(invalid)}
        return Result(Level.ERROR, what, _("Correct PGQUEUE."), {"invalid": invalid})
    problems = [*_of_queue(conf.get_settings()), *_of_database(session.alias, conf.get_settings())]
    data = {"problems": [what for _level, what, _fix in problems]}
    if not problems:
        return ok(_("No settings conflict."), **data)
    problems.sort(key=lambda problem: list(Level).index(problem[0]), reverse=True)
    levels, sentences, fixes = zip(*problems, strict=True)
    what = _("Settings conflict: %(problems)s.") % {"problems": "; ".join(sentences)}
    return Result(worst(levels), what, " ".join(fixes), data)


def _of_queue(settings: conf.Settings) -> Iterator[Problem]:
    if settings.IMMEDIATE:
        yield Level.ERROR, _("IMMEDIATE is on, so no worker runs the jobs"), _('Remove "IMMEDIATE" from PGQUEUE.')
    if settings.LEASE < LEASE_SECONDS:
        what = _("LEASE is %(seconds)s s, so a short outage interrupts jobs") % {"seconds": f"{settings.LEASE:g}"}
        yield Level.WARNING, what, _('Set PGQUEUE["LEASE"] to 60.')
    if not settings.NOTIFY:
        what = _("NOTIFY is off, so workers poll")
        yield Level.INFO, what, _('Remove "NOTIFY" from PGQUEUE, unless you turned it off on purpose.')
    if django_settings.DEBUG:
        what = _("DEBUG is on, so each connection keeps its last 9,000 statements in memory")
        yield Level.WARNING, what, _("Set DEBUG = False in production.")


def _of_database(alias: str, settings: conf.Settings) -> Iterator[Problem]:
    database = connections[alias].settings_dict
    pool = database.get("OPTIONS", {}).get("pool")
    if pool:
        size = pool_size(pool)
        if size < settings.CONCURRENCY:
            what = _("the pool of %(alias)s has %(size)s connections for %(jobs)s jobs at a time")
            fix = _("Set %(setting)s to %(value)s, or more.")
            setting = f'DATABASES[{alias!r}]["OPTIONS"]["pool"]'
            yield (
                Level.WARNING,
                what % {"alias": quoted(alias), "size": size, "jobs": settings.CONCURRENCY},
                fix % {"setting": setting, "value": f'{{"max_size": {settings.CONCURRENCY}}}'},
            )
    elif database.get("CONN_MAX_AGE") != 0 and not database.get("CONN_HEALTH_CHECKS"):
        what = _("CONN_MAX_AGE of %(alias)s keeps connections, and CONN_HEALTH_CHECKS is off")
        fix = _('Set DATABASES[%(alias)s]["CONN_HEALTH_CHECKS"] = True.')
        yield Level.INFO, what % {"alias": quoted(alias)}, fix % {"alias": quoted(alias)}


def pool_size(pool: Any) -> int:
    """Return the largest size of psycopg's pool for the value of Django's option `pool`. Its defaults are psycopg's."""
    options = pool if isinstance(pool, dict) else {}
    return int(options.get("max_size") or options.get("min_size", 4))


SETTINGS_CHECKS: Final = (_settings,)

GUARDED: Final = gettext_lazy(
    "Workers with the settings of this process wait and run no job, because the database belongs to another "
    "installation: %(differences)s."
)
WARNED: Final = gettext_lazy(
    "Workers with the settings of this process log a warning and run its jobs, because the database belongs to "
    "another installation: %(differences)s."
)


@check(
    "installation",
    "Error: the database belongs to another installation, such as the source of a restored dump, and workers with "
    'the settings of this process wait. Warning: `CLONE_GUARD` is `"warn"`, so they run its jobs.',
    gettext_lazy("Workers that wait run no job and are not in the list of workers."),
)
def _installation(session: Session) -> Result:
    guard = get_settings().CLONE_GUARD
    if guard == "off":
        return ok(_("Workers do not compare installations, because CLONE_GUARD is off."), clone_guard=guard)
    found = read_ownership(session.connection)
    data = {"clone_guard": guard, "differences": found.differences, "adopted_by": found.adopted_by}
    if found.differences:
        level = Level.ERROR if guard == "refuse" else Level.WARNING
        what = GUARDED if guard == "refuse" else WARNED
        fix = _("%(command)s shows what the database contains, and without --dry-run takes it over.")
        command = "manage.py pgqueue adopt --dry-run"
        return Result(level, what % {"differences": found.differences}, fix % {"command": command}, data)
    if not found.is_certain:
        grant = f"GRANT EXECUTE ON FUNCTION pg_control_system() TO {session.row(ROLE)[0]};"
        return cannot_see(_("Cannot see whether the database was copied from another server."), grant, **data)
    return ok(_("The database belongs to this installation, or to none yet."), **data)


INSTALLATION_CHECKS: Final = (_installation,)


@check(
    "undeclared_limits",
    "Warning: due jobs have a limit that no task of this process declares.",
    gettext_lazy("Workers with the same code do not start these jobs."),
)
def _undeclared_limits(session: Session) -> Result:
    waiting = {limit.name: limit for limit in stats.limits(session.alias) if limit.due.value}
    undeclared = {name: limit.due.value for name, limit in waiting.items() if not limit.is_declared}
    if not undeclared:
        return ok(_("Tasks of this process declare the limits of all due jobs."), undeclared={})
    first = max(undeclared, key=undeclared.__getitem__)
    close = get_close_matches(first, registry.limits(), n=1)
    what = ngettext(
        "Due jobs have %(count)s limit that no task of this process declares: %(names)s.",
        "Due jobs have %(count)s limits that no task of this process declares: %(names)s.",
        len(undeclared),
    ) % {"count": number(len(undeclared)), "names": listed(undeclared)}
    if close:
        hint = _("Did you mean %(close)s instead of %(name)s?")
        what = f"{what} {hint % {'close': quoted(close[0]), 'name': quoted(first)}}"
    fix = _("Deploy the code that declares the limit, or cancel the jobs and enqueue them again.")
    return Result(Level.WARNING, what, fix, {"undeclared": undeclared})


LIMIT_CHECKS: Final = (_undeclared_limits,)
