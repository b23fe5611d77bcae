"""`manage.py pgqueue worker|run|pause|…`: all subcommands under one name that no other app's command can hide."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_pgqueue import health
from django_pgqueue.db.engine_connection import connect
from django_pgqueue.management import celery_beat, queue_commands
from django_pgqueue.management.queue_commands import add_command
from django_pgqueue.management.standard_streams import open_missing_streams
from django_pgqueue.worker.foreground_run import run_one
from django_pgqueue.worker.maintenance.pruner import Pruner

from . import runworker


class Command(BaseCommand):
    """Operate the queue from a shell."""

    help = "Run workers, and operate the job queue. `pgqueue COMMAND --help` shows the options of a command."

    def __init__(self, *args: Any, **options: Any) -> None:
        """Open missing standard streams before anything is printed."""
        open_missing_streams()
        super().__init__(*args, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
        worker = add_command(subcommands, "worker", "Run a worker, like `runworker`.")
        runworker.add_arguments(worker)
        worker.add_argument(
            *("-v", "--verbosity"),
            type=int,
            choices=range(4),
            default=argparse.SUPPRESS,  # otherwise it would replace the value of `pgqueue -v 2 worker`
            help="2: Print one line for each job that ends.",
        )
        run = add_command(subcommands, "run", "Run one ready job in this process, due or not.")
        run.add_argument("job_id", type=int, help="Number of the job.")
        run.add_argument("--database", metavar="ALIAS", help="Database of the job.")
        run.add_argument("--retry", action="store_true", help="Make a finished job ready before running it.")
        queue_commands.add_arguments(subcommands)
        prune = add_command(subcommands, "prune", "Delete finished jobs whose retention has ended.")
        prune.add_argument("--database", metavar="ALIAS", help="Database of the jobs.")
        prune.add_argument("--dry-run", action="store_true", help="Print what would be deleted, and delete nothing.")
        check = add_command(subcommands, "health", "Check from its health file whether a worker is alive or ready.")
        health.add_arguments(check)
        celery_beat.add_arguments(subcommands)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] == "worker":
            runworker.exit_worker(runworker.run(options, self.stdout))
        if options["subcommand"] == "health":
            self._report_health(options)
            return
        alias = runworker.database_alias(options)
        if options["subcommand"] == "run":
            self._run(alias, options["job_id"], retry=options["retry"])
        elif options["subcommand"] == "prune":
            self._prune(alias, dry_run=options["dry_run"])
        elif options["subcommand"] == celery_beat.NAME:
            celery_beat.run(options, alias, self.stdout)
        else:
            queue_commands.run(options, self.stdout, self.stderr)

    def _run(self, alias: str, job_id: int, *, retry: bool) -> None:
        from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

        job = Job.objects.using(alias).filter(pk=job_id).first()
        if job is None:
            raise CommandError(
                f"Job {job_id} does not exist in the database {alias!r}. Pass --database to look in another one."
            )
        if retry and job.finished_at is not None:
            job.retry(using=alias)
        report = run_one(alias, job_id)
        if report is None:
            reason = "pass --retry to make it ready first" if job.finished_at is not None else "a worker has claimed it"
            raise CommandError(f"Job {job_id} is {job.state}, but only a ready job can be run: {reason}.")
        job.refresh_from_db()
        if report.traceback:
            self.stderr.write(report.traceback)
        self.stdout.write(
            f"Job {job_id} ({job.task_name}), attempt {job.attempt}: {report.ending.value}, now {job.state}."
        )
        if report.is_failure:
            sys.exit(1)

    def _report_health(self, options: dict[str, Any]) -> None:
        is_healthy, summary = health.judge(options["path"], max_age_seconds=options["max_age"], ready=options["ready"])
        self.stdout.write(summary)
        if not is_healthy:
            sys.exit(1)

    def _prune(self, alias: str, *, dry_run: bool) -> None:
        connection = connect(alias, "prune")
        try:
            if dry_run:
                for (task_name, state), count in Pruner().count(connection).items():
                    self.stdout.write(f"{count:>10,}  {state:<10} {task_name or 'all other tasks'}")
            else:
                deleted = Pruner().prune(connection)
                self.stdout.write(f"Deleted {deleted:,} finished jobs.")
        finally:
            connection.close()
