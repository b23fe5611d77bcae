"""`manage.py pgqueue prune`: delete finished jobs now, instead of waiting for a worker to do it."""

from __future__ import annotations

import argparse

from django.core.management.base import OutputWrapper

from django_pgqueue.db.engine_connection import connect
from django_pgqueue.worker.maintenance.pruner import Pruner

from .subcommand import Options, Subcommand, add_database, database_alias


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_database(parser)
    parser.add_argument("--dry-run", action="store_true", help="Print what would be deleted, and delete nothing.")


def _run(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    connection = connect(database_alias(options), "prune")
    try:
        if not options["dry_run"]:
            deleted = Pruner().prune(connection)
            stdout.write(f"Deleted {deleted:,} finished jobs.")
        found = Pruner().count(connection)
        if options["dry_run"]:
            for (task_name, state), (count, _) in found.items():
                stdout.write(f"{count:>10,}  {state:<10} {task_name or 'all other tasks'}")
        if kept := sum(each.kept for each in found.values()):
            stdout.write(f"{kept:,} jobs past their retention stay, because unfinished work needs them.")
    finally:
        connection.close()


PRUNE = Subcommand("prune", "Delete finished jobs whose retention has ended.", _add_arguments, _run)
