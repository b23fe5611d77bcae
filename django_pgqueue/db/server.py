"""Check the server behind a database alias: its migrations, whether it is writable, and its timeline.

The worker calls it at startup, and each time a connection is opened. It protects against an old primary that comes back
after a failover: a process that has worked on the new primary refuses the old one. A running worker refuses standbys.
"""

from __future__ import annotations

from pkgutil import iter_modules, resolve_name
from typing import Any, Final

import psycopg
from django.conf import settings
from django.db import connections

TIMELINE: Final = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
_newest_timeline: dict[str, str] = {}
_promotions: dict[str, bool] = {"end this process": False, "seen": False}
_standbys: dict[str, bool] = {"refuse": False}


def refuse_standbys() -> None:
    """Make `refuse_an_old_primary()` refuse engine connections to a standby, here and in processes forked from now on.

    A session with a standby continues after its promotion, so this process would not see the new timeline.
    """
    _standbys["refuse"] = True


def end_at_promotion() -> None:
    """Make `refuse_an_old_primary()` refuse later timelines too, because this process has claims on the current one.

    A promoted standby that had not received the claims assigns the same ids again. A completion by this process would
    then end another worker's execution.
    """
    _promotions["end this process"] = True


def was_promoted() -> bool:
    """Return whether this process called `end_at_promotion()` and has since connected to a promoted server."""
    return _promotions["seen"]


def refuse_an_old_primary(connection: psycopg.Connection[Any], alias: str, *, is_engine: bool = False) -> None:
    """Raise `psycopg.OperationalError` if this process has worked on a later timeline than the server's.

    Each promotion of a standby starts a new timeline. An old primary that comes back beside the new one accepts writes,
    and a list of hosts may lead to it first. Half of this process's jobs would then be completed on one server, half on
    the other. Also raises, after `end_at_promotion()`, if the server's timeline is later.
    """
    try:
        [[timeline]] = connection.execute(TIMELINE).fetchall()
    except psycopg.DatabaseError:
        if connection.closed or connection.broken:
            raise
        return  # a hosted service that does not reveal its timeline
    if timeline is None:
        if is_engine and _standbys["refuse"]:
            raise psycopg.OperationalError(f"the server of {alias!r} is a standby")
        return
    known = _newest_timeline.get(alias, timeline)
    if timeline > known and _promotions["end this process"]:
        _promotions["seen"] = True
        raise psycopg.OperationalError(
            f"the server of {alias!r} was promoted: this process ends, a new one replaces it"
        )
    newest = _newest_timeline[alias] = max(timeline, _newest_timeline.get(alias, ""))
    if timeline != newest:
        raise psycopg.OperationalError(
            f"the server of {alias!r} is on timeline {int(timeline, 16)}, and this process has worked on "
            f"{int(newest, 16)}: an old primary is running again. Stop it, or restart this process"
        )


def missing_migrations(alias: str) -> list[str]:
    """Return the names of this package's migrations that are not applied. Errors of the database pass through.

    Django's own plan would import the migrations of all apps, which takes 0.2 s in a project with 400 of them.
    """
    from django.db.migrations.recorder import MigrationRecorder  # imported only if needed: by workers and the doctor

    package = settings.MIGRATION_MODULES.get("pgqueue", "django_pgqueue.migrations")
    if package is None:  # the project makes the tables without migrations
        return []
    names = {module.name for module in iter_modules(resolve_name(package).__path__) if module.name[0] not in "_~"}
    applied = {name for app, name in MigrationRecorder(connections[alias]).applied_migrations() if app == "pgqueue"}
    return [f"pgqueue.{name}" for name in sorted(names - applied)]


def is_read_only(alias: str) -> bool:
    """Return whether a database is read-only: a standby, or configured so. Errors of the database pass through."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        return bool(cursor.fetchone()[0] == "on")
