"""`manage.py pgqueue remote-worker URL`: run jobs of a server on a machine without its database."""

from __future__ import annotations

import argparse
import os
import ssl
from argparse import ArgumentParser
from pathlib import Path
from typing import Final, TextIO, cast

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS

from django_pgqueue import __version__, log, middleware
from django_pgqueue.management.commands.runworker import exit_worker, positive, seconds
from django_pgqueue.management.queue_arguments import queue_names
from django_pgqueue.management.standard_streams import is_coloured
from django_pgqueue.management.subcommands.output import Output
from django_pgqueue.management.subcommands.subcommand import Options, Subcommand, UsageError
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry

from .client import RemoteClient
from .remote_services import RemoteOptions
from .remote_worker import RemoteWorker

VARIABLE: Final = "PGQUEUE_REMOTE_TOKEN"
"""The environment variable with the token."""
MAX_WAIT_SECONDS: Final = 25.0


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("url", metavar="URL", help="Where the server has the interface: https://example.com/remote/.")
    parser.add_argument(
        "--token-file", metavar="PATH", help=f"File with the token. Default: the environment variable {VARIABLE}."
    )
    parser.add_argument("--name", metavar="NAME", help="Name of this worker in the admin. Default: the host's name.")
    parser.add_argument(
        "--queues", metavar="NAME,...", help="Comma-separated queues, served in this order. Default: all of the token."
    )
    parser.add_argument(
        "--task", action="append", default=[], metavar="NAME", help="Run this task only. Repeat it for more tasks."
    )
    parser.add_argument("--concurrency", type=positive, metavar="N", help="Jobs at a time.")
    parser.add_argument(
        "--wait",
        type=_wait,
        metavar="SECONDS",
        default=20.0,
        help="How long one claim waits for jobs, 25 at most. Default: 20.",
    )
    parser.add_argument(
        "--grace", type=seconds, metavar="SECONDS", help="How long running jobs may continue after SIGTERM."
    )
    parser.add_argument("--isolation", choices=["process"], help="Run every job in an isolated process.")
    parser.add_argument("--until-empty", action="store_true", help="Exit when no due job is left.")
    parser.add_argument("--ca-file", metavar="PATH", help="Certificates to trust, if the server has its own authority.")


def _wait(text: str) -> float:
    number = seconds(text)
    if number > MAX_WAIT_SECONDS:
        raise argparse.ArgumentTypeError(f"must be at most {MAX_WAIT_SECONDS:g}")
    return number


def _run(options: Options, out: Output) -> None:
    try:
        client = RemoteClient(options["url"], _token(options), context=_context(options))
        middleware.chain()  # load it before the isolated processes are forked, so that they inherit it
    except (ValueError, ImproperlyConfigured) as error:
        raise UsageError(str(error)) from None
    settings = get_settings()
    given = {"name": options["name"]} if options["name"] else {}
    chosen = RemoteOptions(
        **given,
        queue_names=queue_names(options["queues"]),
        task_names=tuple(options["task"]),
        concurrency=options["concurrency"] or settings.CONCURRENCY,
        wait_seconds=options["wait"],
        grace_seconds=settings.GRACE if options["grace"] is None else options["grace"],
        isolation=options["isolation"],
        until_empty=options["until_empty"],
    )
    verbosity = options["verbosity"]
    if verbosity:
        out.write(_banner(options["url"], chosen))
    output = cast("TextIO", out.stdout) if verbosity >= 2 else None
    log.enable(output, starts=verbosity >= 3, coloured=is_coloured(out.stdout, options))
    exit_worker(RemoteWorker(client, chosen, DEFAULT_DB_ALIAS).run())


def _token(options: Options) -> str:
    """Return the token. It is no argument, because every user of the machine can read the arguments of a process."""
    if options["token_file"]:
        try:
            return Path(options["token_file"]).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"--token-file {options['token_file']} cannot be read: {error}") from None
    token = os.environ.get(VARIABLE, "").strip()
    if not token:
        raise UsageError(f"There is no token: set the environment variable {VARIABLE}, or pass --token-file.")
    return token


def _context(options: Options) -> ssl.SSLContext | None:
    if not options["ca_file"]:
        return None
    try:
        return ssl.create_default_context(cafile=options["ca_file"])
    except (OSError, ssl.SSLError) as error:
        raise CommandError(f"--ca-file {options['ca_file']} cannot be read: {error}") from None


def _banner(url: str, options: RemoteOptions) -> str:
    names = ", ".join(options.queue_names)
    return (
        f"django_pgqueue {__version__}, remote worker with pid {os.getpid()}: server {url}, "
        f"{f'queues {names}' if names else 'all queues of the token'}, {options.concurrency} jobs at a time, "
        f"{len(registry.all_tasks())} tasks known. Press Ctrl-C or send SIGTERM to stop."
    )


REMOTE_WORKER: Final = Subcommand(
    "remote-worker", "Run jobs of a server over HTTP, without its database.", _add_arguments, _run
)
