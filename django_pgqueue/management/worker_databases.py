"""Which databases a worker serves, from `--database` and `--all-databases`. Called by `runworker`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.db import connections

from django_pgqueue.queue_databases import distinct, served_aliases

from .subcommands.subcommand import database_alias


def chosen_databases(arguments: dict[str, Any]) -> list[str]:
    """Return the aliases to serve, each once. Raise `CommandError` if one cannot be served."""
    given = arguments["database"]
    if arguments["all_databases"]:
        if given:
            raise CommandError("Pass --database or --all-databases, not both.")
        if not (aliases := distinct(served_aliases())):
            raise CommandError("No database has the tables of the queue: pass --database.")
        return aliases
    given = [given] if isinstance(given, str) else given  # a string comes from `call_command()`
    aliases = [database_alias({"database": alias}) for alias in dict.fromkeys(given or [None])]
    for alias in aliases:
        if connections[alias].vendor != "postgresql":
            raise CommandError(
                f"The database {alias!r} is not PostgreSQL: pass the alias of one that is with --database."
            )
    for alias in set(aliases) - set(distinct(aliases)):
        raise CommandError(f"--database {alias} leads to the same database as another alias: pass one of them.")
    return aliases
