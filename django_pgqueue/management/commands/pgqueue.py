"""`manage.py pgqueue worker|prune|health`: the package's own command, which no other app's can hide."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_pgqueue import db, health
from django_pgqueue.worker.maintenance import Pruner

from . import runworker


class Command(BaseCommand):
    """Everything a person does with the queue from a shell."""

    help = "Run and tend the job queue."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the subcommands."""
        subcommands = parser.add_subparsers(dest="subcommand", metavar="worker|prune|health", required=True)
        worker = subcommands.add_parser("worker", help="run jobs: the same as `runworker`")
        runworker.add_arguments(worker)
        prune = subcommands.add_parser("prune", help="remove finished jobs that are past their retention")
        prune.add_argument("--database", help="alias of the database with the jobs")
        prune.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
        health_of = subcommands.add_parser("health", help="ask a worker's health file whether it is alive, or ready")
        health.add_arguments(health_of)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand."""
        if options["subcommand"] == "worker":
            sys.exit(runworker.run(options, self.stdout))
        if options["subcommand"] == "health":
            self._tell_health(options)
            return
        self._prune(options["database"] or runworker.default_alias(), dry_run=options["dry_run"])

    def _tell_health(self, told: dict[str, Any]) -> None:
        is_well, words = health.judge(told["path"], max_age_seconds=told["max_age"], ready=told["ready"])
        self.stdout.write(words)
        if not is_well:
            sys.exit(1)

    def _prune(self, alias: str, *, dry_run: bool) -> None:
        if alias not in connections:
            raise CommandError(f"DATABASES has no alias {alias!r}: it has {', '.join(connections)}.")
        connection = db.connect(alias, "prune")
        try:
            if dry_run:
                for (task_name, state), count in Pruner().count(connection).items():
                    self.stdout.write(f"{count:>10,}  {state:<10} {task_name or 'all other tasks'}")
            else:
                removed = Pruner().prune(connection)
                self.stdout.write(f"Removed {removed:,} finished jobs.")
        finally:
            connection.close()
