"""`manage.py runworker`: check the arguments, turn them into a worker's options, and run the worker.

`manage.py pgqueue worker` uses the same functions. `PGQUEUE` has the values of the arguments that are not given.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, NoReturn, TextIO, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper

from django_pgqueue import __version__, log, middleware
from django_pgqueue.db.queue_databases import distinct, served_aliases
from django_pgqueue.ground.plurals import counted
from django_pgqueue.ground.posix import CAN_FORK
from django_pgqueue.ground.readings import Reading
from django_pgqueue.management import autoreload
from django_pgqueue.management.queue_arguments import concurrency, served_queues
from django_pgqueue.management.release_argument import add_release, release_name
from django_pgqueue.management.standard_streams import (
    discard_unwritable_output,
    is_coloured,
    is_terminal,
    open_missing_streams,
    write_if_writable,
)
from django_pgqueue.management.subcommands.parsers import show_hints
from django_pgqueue.management.subcommands.subcommand import UsageError, database_alias
from django_pgqueue.settings.conf import Settings, get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.worker import Options, Supervisor, SupervisorGroup
from django_pgqueue.worker.runtime.exit_functions import run_exit_functions
from django_pgqueue.worker.supervision.metrics_server import open_port


def chosen_databases(arguments: dict[str, Any]) -> list[str]:
    """Return the aliases to serve, each once. Raise `CommandError` if one cannot be served."""
    given = arguments["database"]
    if arguments["all_databases"]:
        if given:
            raise UsageError("Pass --database or --all-databases, not both.")
        if not (aliases := distinct(served_aliases())):
            raise CommandError("No database has the tables of the queue: pass --database.")
        return aliases
    given = [given] if isinstance(given, str) else given  # a string comes from `call_command()`
    aliases = [database_alias({"database": alias}) for alias in dict.fromkeys(given or [None])]
    for alias in set(aliases) - set(distinct(aliases)):
        raise UsageError(f"--database {alias} leads to the same database as another alias: pass one of them.")
    return aliases


def add_arguments(parser: CommandParser | argparse.ArgumentParser) -> None:
    """Add a worker's arguments."""
    _add_served(parser)
    parser.add_argument("--until-empty", action="store_true", help="Exit when no due job is left.")
    _add_processes(parser)
    parser.add_argument(
        "--grace",
        type=seconds,
        metavar="SECONDS",
        help=f"How long running jobs may continue after SIGTERM. Default: PGQUEUE['GRACE'], or {Settings().GRACE:g}.",
    )
    add_release(parser)
    parser.add_argument("--health-file", metavar="PATH", help="Write the worker's health to this file once a second.")
    parser.add_argument(
        "--metrics-port",
        type=port,
        metavar="PORT",
        help="Serve /livez, /readyz and /metrics on this TCP port; 0: on any free port. Default: "
        "PGQUEUE['METRICS_PORT'], or none.",
    )
    parser.add_argument(
        "--metrics-address",
        type=ip_address,
        metavar="ADDRESS",
        help=f"IP address of that port. Default: PGQUEUE['METRICS_ADDRESS'], or {Settings().METRICS_ADDRESS}.",
    )
    parser.add_argument(
        "--queue-metrics",
        action="store_true",
        help="Also serve the figures of the whole queue on that port, which it reads from the database.",
    )
    parser.add_argument("--no-listen", action="store_true", help="Poll for jobs instead of using notifications.")
    parser.add_argument(
        "--reload", action="store_true", help="Restart when a Python file of the project changes, for development."
    )


def _add_served(parser: argparse.ArgumentParser) -> None:
    """Add the arguments about the queues and the databases that the worker serves."""
    parser.add_argument(
        "--queues", metavar="NAME,...", help="Comma-separated queues, served in this order. Default: all queues."
    )
    parser.add_argument(
        "--queue",
        action="append",
        metavar="NAME[=N]",
        help="A queue to serve, with at most N of its jobs at a time in each process. Repeat it for further queues. "
        "The name * stands for all others.",
    )
    parser.add_argument(
        "--database",
        action="append",
        metavar="ALIAS",
        help="Database of the jobs. Default: chosen by the database routers. Repeat it for several databases.",
    )
    parser.add_argument(
        "--all-databases", action="store_true", help="Serve all databases that have the tables of the queue."
    )


def _add_processes(parser: argparse.ArgumentParser) -> None:
    """Add the arguments about the processes of the worker."""
    parser.add_argument(
        "--concurrency",
        type=positive,
        metavar="N",
        help="Jobs at a time in each process. Default: the sum of the numbers in --queue, or PGQUEUE['CONCURRENCY'], "
        f"or {Settings().CONCURRENCY}.",
    )
    parser.add_argument(
        "--processes",
        type=positive,
        metavar="N",
        help=f"Worker processes. Default: PGQUEUE['PROCESSES'], or {Settings().PROCESSES}.",
    )
    parser.add_argument("--max-jobs", type=positive, metavar="N", help="Replace a process after this many jobs.")
    parser.add_argument(
        "--max-rss-mb",
        type=positive,
        metavar="N",
        help="Replace a process that uses more MiB of memory than this.",
    )
    parser.add_argument("--isolation", choices=["process"], help="Run every job in an isolated process.")


def _reload(arguments: dict[str, Any], stdout: OutputWrapper) -> int:
    """Run a worker that restarts when the code changes. Raise `UsageError` for `--until-empty`, which would not end."""
    if arguments["until_empty"]:
        raise UsageError("--reload waits for changes of the code when no job is left: omit it, or --until-empty.")
    return autoreload.run(stdout)


def run(arguments: dict[str, Any], stdout: OutputWrapper) -> int:
    """Run a worker and return its exit code. Raise `CommandError` for invalid arguments, and without `os.fork()`."""
    if not CAN_FORK:
        raise CommandError(f"A worker needs a POSIX system such as Linux, because it forks. This is {sys.platform}.")
    if arguments["reload"] and not autoreload.is_watched():
        return _reload(arguments, stdout)
    aliases = chosen_databases(arguments)
    live_line = arguments["verbosity"] >= 1 and is_terminal(stdout)
    options, *others = [as_options(alias, arguments, live_line=live_line) for alias in aliases]
    if options.read_queue is not None and options.metrics_port is None:
        raise UsageError("--queue-metrics needs a port: pass --metrics-port too.")
    try:
        middleware.chain()  # load it before the processes are forked, so that they inherit it
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from None
    try:
        listener = open_port(options)
    except OSError as error:
        raise CommandError(f"--metrics-port {options.metrics_port} cannot be opened: {error}") from None
    if arguments["verbosity"]:
        write_if_writable(stdout, banner(options, listener.getsockname()[1] if listener else None, aliases))
    worker = SupervisorGroup([options, *others], listener) if others else Supervisor(options, listener)
    try:
        worker.health_file.write()
    except OSError as error:
        raise CommandError(f"--health-file cannot be written: {error}") from None
    print_job_lines(arguments, stdout)
    code = worker.run()
    discard_unwritable_output()
    return code


def print_job_lines(arguments: dict[str, Any], stdout: OutputWrapper) -> None:
    """Switch on the log lines of jobs, and the printed ones. Nothing before this point may need them.

    On a terminal, somebody looks on, so lines are printed by default. Elsewhere `-v 2` switches them on.
    """
    verbosity = arguments["verbosity"]
    output = cast("TextIO", stdout) if verbosity >= 2 or (verbosity and is_terminal(stdout)) else None
    log.enable(output, starts=verbosity >= 3, coloured=is_coloured(stdout, arguments))


def exit_worker(code: int) -> NoReturn:
    """Exit with this code. An exit function of the application that hangs delays the exit by a few seconds only."""
    if not run_exit_functions():
        os._exit(code)
    sys.exit(code)


def banner(options: Options, metrics_port: int | None = None, aliases: Sequence[str] = ()) -> str:
    """Return a line that describes the worker that is starting. `aliases` are its databases, if there are several."""
    names = options.served.texts()
    queues = f"{'queues' if len(names) > 1 else 'queue'} {', '.join(names)}" if names else "all queues"
    processes, jobs = counted(options.processes, "process", "processes"), counted(options.concurrency)
    databases = f"database {options.database!r},"
    if len(aliases) > 1:
        databases = f"databases {', '.join(map(repr, aliases))}, each with"
    metrics = f", metrics on port {metrics_port}" if metrics_port is not None else ""
    release = f"release {options.release!r}, " if options.release else ""
    return (
        f"django_pgqueue {__version__}, worker with pid {os.getpid()}: {release}{databases} {queues}, "
        f"{processes} x {jobs}, {counted(len(registry.all_tasks()), 'task')} known{metrics}. "
        "Press Ctrl-C or send SIGTERM to stop."
    )


def as_options(alias: str, arguments: dict[str, Any], *, live_line: bool = False) -> Options:
    """Return a worker's options from the command line's arguments and the settings."""
    settings = get_settings()
    served = served_queues(arguments["queues"], arguments["queue"])
    return Options(
        database=alias,
        queue_names=served.names,
        queue_concurrency=served.concurrency,
        concurrency=concurrency(served, arguments["concurrency"]),
        processes=arguments["processes"] or settings.PROCESSES,
        until_empty=arguments["until_empty"],
        max_jobs=arguments["max_jobs"],
        max_rss_mb=arguments["max_rss_mb"],
        grace_seconds=default_grace() if arguments["grace"] is None else arguments["grace"],
        listen=not arguments["no_listen"],
        isolation=arguments["isolation"],
        health_file=arguments["health_file"],
        release=release_name(arguments),
        live_line=live_line,
        metrics_port=settings.METRICS_PORT if arguments["metrics_port"] is None else arguments["metrics_port"],
        metrics_address=str(arguments["metrics_address"] or settings.METRICS_ADDRESS),
        read_queue=_reader_of_queue(alias) if arguments["queue_metrics"] else None,
    )


def _reader_of_queue(alias: str) -> Callable[[], Sequence[Reading]]:
    """Return the function that reads the figures of a queue for `--queue-metrics`."""
    from django_pgqueue.metrics import collect  # imported only if needed: no other option reads figures

    return partial(collect, alias)


def default_grace() -> float:
    """Return the grace period in seconds if `--grace` is not given."""
    return autoreload.GRACE_SECONDS if autoreload.is_watched() else get_settings().GRACE


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return number


def port(text: str) -> int:
    """Parse the number of a TCP port."""
    number = int(text)
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text} must be a number from 0 to 65535")
    return number


def seconds(text: str) -> float:
    """Parse a number of seconds that is not negative."""
    number = float(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} must not be negative")
    return number


class Command(BaseCommand):
    """Run a worker."""

    help = (
        "Run the jobs of this project until Ctrl-C or SIGTERM. On a terminal, and with -v 2, print one line for each "
        "job that ends."
    )
    requires_migrations_checks = False  # the worker itself waits for missing migrations and logs that it does

    def __init__(self, *args: Any, **options: Any) -> None:
        """Open missing standard streams before anything is printed."""
        open_missing_streams()
        super().__init__(*args, **options)

    def add_arguments(self, parser: CommandParser) -> None:
        """Add a worker's arguments."""
        show_hints(parser)
        add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        exit_worker(run(options, self.stdout))
