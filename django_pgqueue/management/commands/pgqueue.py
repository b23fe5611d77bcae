"""`manage.py pgqueue worker|run|pause|…`: the package's own command, which no other app's can hide."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from django_pgqueue import db, health
from django_pgqueue.management import controlling
from django_pgqueue.management.standard_streams import open_missing_streams
from django_pgqueue.worker.pruner import Pruner
from django_pgqueue.worker.single import run_one

from . import runworker


class Command(BaseCommand):
    """Everything a person does with the queue from a shell."""

    help = "Run and tend the job queue."

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make sure that there are standard streams."""
        open_missing_streams()
        super().__init__(*args, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the subcommands."""
        names = "|".join(["worker", "run", *controlling.HELP, "prune", "health"])
        subcommands = parser.add_subparsers(dest="subcommand", metavar=names, required=True)
        worker = subcommands.add_parser("worker", help="run jobs: the same as `runworker`")
        runworker.add_arguments(worker)
        run = subcommands.add_parser("run", help="run one ready job here, in the foreground, due or not")
        run.add_argument("job_id", type=int)
        run.add_argument("--database", help="alias of the database with the job")
        run.add_argument("--retry", action="store_true", help="make a finished job ready first")
        controlling.add_arguments(subcommands)
        prune = subcommands.add_parser("prune", help="remove finished jobs that are past their retention")
        prune.add_argument("--database", help="alias of the database with the jobs")
        prune.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
        health_of = subcommands.add_parser("health", help="ask a worker's health file whether it is alive, or ready")
        health.add_arguments(health_of)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the subcommand."""
        if options["subcommand"] == "worker":
            runworker.end(runworker.run(options, self.stdout))
        if options["subcommand"] == "health":
            self._tell_health(options)
            return
        if options["subcommand"] == "run":
            self._run(options["database"] or runworker.default_alias(), options["job_id"], retry=options["retry"])
            return
        _check_alias(options["database"] or runworker.default_alias())
        if options["subcommand"] in controlling.HELP:
            controlling.run(options, self.stdout)
            return
        self._prune(options["database"] or runworker.default_alias(), dry_run=options["dry_run"])

    def _run(self, alias: str, job_id: int, *, retry: bool) -> None:
        from django_pgqueue.models import Job  # after the apps are loaded

        _check_alias(alias)
        job = Job.objects.using(alias).filter(pk=job_id).first()
        if job is None:
            raise CommandError(f"There is no job {job_id} in the database {alias!r}.")
        if retry and job.finished_at is not None:
            job.retry(using=alias)
        report = run_one(alias, job_id)
        if report is None:
            hint = "--retry makes it ready first" if job.finished_at is not None else "a worker has it"
            raise CommandError(f"Job {job_id} is {job.state}, and only a ready one can be run: {hint}.")
        job.refresh_from_db()
        if report.traceback:
            self.stderr.write(report.traceback)
        self.stdout.write(
            f"Job {job_id} ({job.task_name}), attempt {job.attempt}: {report.ending.value}, now {job.state}."
        )
        if report.is_failure:
            sys.exit(1)

    def _tell_health(self, told: dict[str, Any]) -> None:
        is_well, words = health.judge(told["path"], max_age_seconds=told["max_age"], ready=told["ready"])
        self.stdout.write(words)
        if not is_well:
            sys.exit(1)

    def _prune(self, alias: str, *, dry_run: bool) -> None:
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


def _check_alias(alias: str) -> None:
    if alias not in connections:
        raise CommandError(f"DATABASES has no alias {alias!r}: it has {', '.join(connections)}.")
