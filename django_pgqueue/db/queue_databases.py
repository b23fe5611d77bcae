"""The databases that contain the tables of the queue, as far as Django's settings and the database routers say it.

The admin, the system checks, the commands for several databases and `runworker --all-databases` ask here. Nothing here
connects to a database: one that is away is still one of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.apps import apps
from django.db import connections, router

from django_pgqueue.settings.conf import get_settings


def queue_aliases() -> list[str]:
    """Return the aliases of the databases that contain the queue's tables, the routers' choice first.

    They are those of PostgreSQL for which the routers allow the migration of these tables. Replicas of the tests and
    aliases that `LISTEN_DATABASE` names are left out.
    """
    first = router.db_for_write(apps.get_model("pgqueue", "Job"))
    return [first, *(alias for alias in connections if alias != first and _is_ours(alias))]


def served_aliases() -> list[str]:
    """Return those of `queue_aliases()` that a worker can serve: without the routers' choice if it has no tables."""
    return [alias for alias in queue_aliases() if has_tables(alias)]


def has_tables(alias: str) -> bool:
    """Return whether a database contains the tables of the queue, as `migrate` would create them."""
    return connections[alias].vendor == "postgresql" and router.allow_migrate_model(
        alias, apps.get_model("pgqueue", "Job")
    )


def distinct(aliases: Iterable[str]) -> list[str]:
    """Return these aliases without those that lead to the same database as an earlier one, by their settings."""
    found: dict[tuple[str, ...], str] = {}
    for alias in aliases:
        settings = connections[alias].settings_dict
        found.setdefault(tuple(str(settings.get(key, "")) for key in ("HOST", "PORT", "NAME", "OPTIONS")), alias)
    return [*found.values()]


def _is_ours(alias: str) -> bool:
    is_replica = bool(connections[alias].settings_dict.get("TEST", {}).get("MIRROR"))
    return has_tables(alias) and not is_replica and alias not in get_settings().listen_aliases
