"""`manage.py runworker`: arguments to a worker's options, and nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import suppress
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import DEFAULT_DB_ALIAS, connections, router

from django_pgqueue import log, middleware, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.management import reloading
from django_pgqueue.management.standard_streams import discard_unwritable_output, open_missing_streams
from django_pgqueue.validation import NAME
from django_pgqueue.worker import Options, Supervisor
from django_pgqueue.worker.exit_functions import run_exit_functions


def add_arguments(parser: CommandParser | argparse.ArgumentParser) -> None:
    """Add what a worker can be told; what is not told, `PGQUEUE` decides."""
    parser.add_argument("--queues", help="comma-separated, strict in that order (default: all)")
    parser.add_argument("--concurrency", type=positive, help="jobs at a time, each process (default: a setting)")
    parser.add_argument("--processes", type=positive, help="worker processes (default: a setting)")
    parser.add_argument("--database", help="alias of the database with the jobs (default: where the router sends them)")
    parser.add_argument("--drain", action="store_true", help="end when nothing due is left")
    parser.add_argument("--max-jobs", type=positive, help="replace a process after this many jobs")
    parser.add_argument("--max-rss-mb", type=positive, help="replace a process that has grown beyond this many MiB")
    parser.add_argument("--grace", type=seconds, help="seconds for running jobs after SIGTERM (default: a setting)")
    parser.add_argument("--isolation", choices=["process"], help="run every job in a process of its own")
    parser.add_argument("--no-listen", action="store_true", help="poll only")
    parser.add_argument("--reload", action="store_true", help="start anew when a file of the project's code changes")
    parser.add_argument("--health-file", metavar="PATH", help="file to tell of the worker's health, once a second")


def run(told: dict[str, Any], stdout: OutputWrapper) -> int:
    """Run a worker and return its exit code; raises `CommandError` for what it is told and cannot use."""
    if told["reload"] and not reloading.is_watched():
        return reloading.run(stdout)
    alias = told["database"] or default_alias()
    if alias not in connections:
        raise CommandError(f"DATABASES has no alias {alias!r}: it has {', '.join(connections)}.")
    if connections[alias].vendor != "postgresql":
        raise CommandError(f"The database {alias!r} is not PostgreSQL; --database names another alias.")
    options = as_options(alias, told)
    try:
        middleware.chain()  # before the forks, which inherit it
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from None
    log.enable()
    if told["verbosity"]:
        with suppress(OSError):  # a full disk keeps no worker from its jobs
            stdout.write(banner(options))
            stdout.flush()
    supervisor = Supervisor(options)
    try:
        supervisor.health.write()
    except OSError as error:
        raise CommandError(f"--health-file cannot be written: {error}") from None
    code = supervisor.run()
    discard_unwritable_output()
    return code


def end(code: int) -> NoReturn:
    """Exit with this code; an exit function of the application that hangs delays that by a few seconds only."""
    if not run_exit_functions(None, DEFAULT_DB_ALIAS):
        os._exit(code)
    sys.exit(code)


def banner(options: Options) -> str:
    """Return what a worker is about to do, in a line."""
    queues = ", ".join(options.queue_names) or "all queues"
    processes = f" in each of {options.processes} processes" if options.processes > 1 else ""
    return (
        f"Worker on database {options.database!r}: {queues}; {options.concurrency} jobs at a time{processes}; "
        f"{len(registry.all_tasks())} tasks known. Ctrl-C stops it."
    )


def as_options(alias: str, told: dict[str, Any]) -> Options:
    """Return a worker's options from what the command line told."""
    settings = get_settings()
    return Options(
        database=alias,
        queue_names=queue_names(told["queues"]),
        concurrency=told["concurrency"] or settings.CONCURRENCY,
        processes=told["processes"] or settings.PROCESSES,
        drain=told["drain"],
        max_jobs=told["max_jobs"],
        max_rss_mb=told["max_rss_mb"],
        grace_seconds=default_grace() if told["grace"] is None else told["grace"],
        listen=not told["no_listen"],
        isolation=told["isolation"],
        health_file=told["health_file"],
    )


def default_grace() -> float:
    """Return the seconds that running jobs get where none were asked for."""
    return reloading.GRACE_SECONDS if reloading.is_watched() else get_settings().GRACE


def queue_names(text: str | None) -> tuple[str, ...]:
    """Return the queues named in `--queues`, each once; raises `CommandError` for a name that no queue can have."""
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if not NAME.fullmatch(name):
            raise CommandError(f"--queues: {name!r} cannot be a queue; leave --queues out for all of them.")
    return names


def default_alias() -> str:
    """Return the alias that jobs are written to."""
    from django_pgqueue.models import Job  # after the apps are loaded

    return router.db_for_write(Job) or DEFAULT_DB_ALIAS


def positive(text: str) -> int:
    """Return a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def seconds(text: str) -> float:
    """Return a number of seconds that is not negative."""
    number = float(text)
    if number < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return number


class Command(BaseCommand):
    """The worker."""

    help = "Run jobs until told to stop by SIGTERM or SIGINT."
    requires_migrations_checks = False  # the worker waits for them, and says so

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make sure that there are standard streams."""
        open_missing_streams()
        super().__init__(*args, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the worker's options."""
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run, and exit with the worker's code."""
        end(run(options, self.stdout))
