"""What the server behind an alias is: migrated, writable, and of which timeline."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from django.db import connections
from django.db.migrations.executor import MigrationExecutor

TIMELINE: Final = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
_newest_timeline: dict[str, str] = {}
_promotions: dict[str, bool] = {"end this process": False, "seen": False}


def end_at_promotion() -> None:
    """From now on refuse later timelines too: what this process holds was claimed on the one it knows.

    A standby that had not received the claims hands out the same ids again, and a report of this process would end
    somebody else's execution.
    """
    _promotions["end this process"] = True


def was_promoted() -> bool:
    """Whether this process was to end at a promotion, and has met one."""
    return _promotions["seen"]


def refuse_an_old_primary(connection: psycopg.Connection[Any], alias: str) -> None:
    """Raise `psycopg.OperationalError` if this process has worked on a later timeline than the server's.

    Each promotion of a standby begins a new one. An old primary that comes back beside the new one accepts writes, and
    a list of hosts may well lead to it first: half of this process's jobs would be finished here, and half there.
    """
    try:
        [[timeline]] = connection.execute(TIMELINE).fetchall()
    except psycopg.DatabaseError:
        if connection.closed or connection.broken:
            raise
        return  # a service that does not tell
    if timeline is None:
        return
    known = _newest_timeline.get(alias, timeline)
    if timeline > known and _promotions["end this process"]:
        _promotions["seen"] = True
        raise psycopg.OperationalError(f"the server of {alias!r} was promoted: this process ends, a new one takes over")
    newest = _newest_timeline[alias] = max(timeline, _newest_timeline.get(alias, ""))
    if timeline != newest:
        raise psycopg.OperationalError(
            f"the server of {alias!r} is on timeline {int(timeline, 16)}, and this process has worked on "
            f"{int(newest, 16)}: an old primary has come back, and must be stopped (or restart this process)"
        )


def missing_migrations(alias: str) -> list[str]:
    """Return the names of this package's migrations that the database lacks; raises what the database raises."""
    executor = MigrationExecutor(connections[alias])
    targets = executor.loader.graph.leaf_nodes("pgqueue")
    return [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(targets)]


def is_read_only(alias: str) -> bool:
    """Say whether a database accepts no writes: it is a standby, or told so; raises what the database raises."""
    with connections[alias].cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        return bool(cursor.fetchone()[0] == "on")
