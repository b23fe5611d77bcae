"""`manage.py pgqueue worker|run|health`: run a worker or a single job in this process, and read a worker's health file.

`worker` is the same as `manage.py runworker`. `python -m django_pgqueue.health` starts faster than `health`.
"""

from __future__ import annotations

import argparse
import sys

from django.core.management.base import CommandError

from django_pgqueue import health
from django_pgqueue.display import in_line, visible
from django_pgqueue.ground.endings import Ending
from django_pgqueue.management.commands import runworker
from django_pgqueue.management.release_argument import release_name
from django_pgqueue.models import Job
from django_pgqueue.states import State
from django_pgqueue.tasks.registry import in_words
from django_pgqueue.worker.foreground_run import run_one

from .output import Output
from .parsers import row_id
from .subcommand import ExitCode, NotFound, Options, Subcommand, add_database, database_alias


def _add_worker(parser: argparse.ArgumentParser) -> None:
    runworker.add_arguments(parser)
    parser.add_argument(
        *("-v", "--verbosity"),
        type=int,
        choices=range(4),
        default=argparse.SUPPRESS,  # otherwise it would replace the value of `pgqueue -v 2 worker`
        help="2: Print one line for each job that ends.",
    )


def _worker(options: Options, out: Output) -> None:
    runworker.exit_worker(runworker.run(options, out.stdout))


WORKER = Subcommand("worker", "Run a worker, like `runworker`.", _add_worker, _worker, runs_tasks=True)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job_id", type=row_id, help="Number of the job.")
    add_database(parser, "Database of the job.")
    parser.add_argument("--retry", action="store_true", help="Make a finished job ready before running it.")


def _run(options: Options, out: Output) -> None:
    job_id, alias, release = options["job_id"], database_alias(options), release_name(options)
    job = Job.objects.using(alias).filter(pk=job_id).first()
    if job is None:
        raise NotFound(
            f"Job {job_id} does not exist in the database {alias!r}. Pass --database to look in another one."
        )
    if options["retry"] and job.finished_at is not None:
        job.retry(using=alias)
    report, wait = run_one(alias, job_id, release)
    if wait:
        raise CommandError(
            f"Job {job_id} cannot start now because of its limit {in_line(in_words(job.limit_key))}: {wait}."
        )
    job.refresh_from_db()
    if report is None:
        raise CommandError(f"Job {job_id} is {job.state}, but only a ready job can be run: {_why_not_ready(job)}.")
    if report.ending is Ending.POSTPONED:
        raise CommandError(f"Job {job_id} was not run: {in_line(report.error)}.")
    if report.traceback:
        out.stderr.write(visible(report.traceback))
    out.write(
        f"Job {job_id} ({in_line(job.task_name)}), attempt {job.attempt}: {report.ending.value}, now {job.state}."
    )
    if report.is_failure:
        sys.exit(ExitCode.FAILED)


def _why_not_ready(job: Job) -> str:
    if job.finished_at is not None:
        return "pass --retry to make it ready first"
    if job.state == State.WAITING:
        return f"it waits for other jobs of its workflow, which `manage.py pgqueue why {job.pk}` names"
    return "a worker has claimed it"


RUN = Subcommand("run", "Run one ready job in this process, due or not.", _add_run, _run, runs_tasks=True)


def _health(options: Options, out: Output) -> None:
    is_healthy, summary = health.judge(options["path"], max_age_seconds=options["max_age"], ready=options["ready"])
    out.write(summary)
    if not is_healthy:
        sys.exit(ExitCode.FAILED)


HEALTH = Subcommand(
    "health", "Check from its health file whether a worker is alive or ready.", health.add_arguments, _health
)
