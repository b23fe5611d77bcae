"""`manage.py pgqueue remote-worker|remote-token`: run jobs of a server without its database, and manage its tokens.

A machine runs `remote-worker URL`. An operator creates, lists and revokes tokens where the database is.
"""

from __future__ import annotations

import os
import ssl
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, ProgrammingError, connections
from django.utils import timezone
from psycopg.errors import InsufficientPrivilege

from django_pgqueue import __version__, durations, middleware
from django_pgqueue.lifecycle.remote_tokens import revoke_remote_token
from django_pgqueue.management.commands.runworker import exit_worker, positive, print_job_lines, seconds
from django_pgqueue.management.queue_arguments import queue_names
from django_pgqueue.management.subcommands.known_names import check_target_queue
from django_pgqueue.management.subcommands.output import Column, Output, counted, date_of
from django_pgqueue.management.subcommands.subcommand import (
    NotFound,
    Options,
    Subcommand,
    UsageError,
    add_database,
    add_reading,
    database_alias,
    user_name,
)
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry

from .client import RemoteClient
from .machine_tokens import DEFAULT_REQUESTS_PER_MINUTE, create_token, state_of
from .models import RemoteToken
from .remote_services import RemoteOptions
from .remote_worker import RemoteWorker

VARIABLE: Final = "PGQUEUE_REMOTE_TOKEN"
"""The environment variable with the token."""
MAX_WAIT_SECONDS: Final = 25.0


def _add_worker(parser: ArgumentParser) -> None:
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
        raise ArgumentTypeError(f"{text} must be at most {MAX_WAIT_SECONDS:g}")
    return number


def _worker(options: Options, out: Output) -> None:
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
    if options["verbosity"]:
        out.write(_banner(options["url"], chosen))
    print_job_lines(options, out.stdout)
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
        f"{f'queues {names}' if names else 'all queues of the token'}, {counted(options.concurrency)} at a time, "
        f"{counted(len(registry.all_tasks()), 'task')} known. Press Ctrl-C or send SIGTERM to stop."
    )


REMOTE_WORKER: Final = Subcommand(
    "remote-worker", "Run jobs of a server over HTTP, without its database.", _add_worker, _worker
)


# ---------------------------------------------------------------------------- tokens

DATABASE: Final = "Database of the jobs and of the tokens."
MAY_NOT_CREATE: Final = (
    "The role of this database user may not create tokens: run the command as the owner of the tables, or grant the "
    "user the privileges that docs/production/security.md lists under 'Who creates tokens'."
)
LISTED: Final = 1000
COLUMNS: Final = (
    Column("id", lambda token: str(token.pk), is_number=True),
    Column("name", lambda token: token.name, is_flexible=True),
    Column("state", lambda token: state_of(token, timezone.now()), is_state=True),
    Column("queues", lambda token: ",".join(map(str, token.queue_names)) or "all", is_flexible=True),
    Column("tasks", lambda token: ",".join(map(str, token.task_names)) or "all", is_flexible=True),
    Column("created", lambda token: date_of(token.created_at)),
    Column("expires", lambda token: date_of(token.expires_at)),
    Column("last used", lambda token: date_of(token.used_at)),
)


def _add_create(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="Names the token for people, such as the machine that gets it.")
    parser.add_argument("--queues", metavar="NAME,...", help="Queues that it gives access to. Default: all.")
    parser.add_argument("--force", action="store_true", help="Accept names for --queues that look misspelled.")
    parser.add_argument(
        "--task", action="append", default=[], metavar="NAME", help="Task that it gives access to. Default: all."
    )
    parser.add_argument(
        "--expires-in", type=float, metavar="DAYS", help="Days until it expires. Default: it is valid until revoked."
    )
    parser.add_argument(
        "--requests-per-minute",
        type=positive,
        metavar="N",
        default=DEFAULT_REQUESTS_PER_MINUTE,
        help=f"Requests that each process of the server accepts. Default: {DEFAULT_REQUESTS_PER_MINUTE}.",
    )
    add_database(parser, DATABASE)


def _create(options: Options, out: Output) -> None:
    name = options["name"]
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise UsageError(f"{name!r} is not a valid name of a token: use 1 to 100 printable characters.")
    days = options["expires_in"]
    if days is not None and not 0 < days <= 36_500:
        raise UsageError(f"--expires-in {days:g} is not valid: pass a number of days above 0.")
    alias, queues = database_alias(options), queue_names(options["queues"])
    for queue_name in () if options["force"] else queues:
        check_target_queue(queue_name, alias)
    try:
        secret = create_token(
            connections[alias],
            name,
            queue_names=queues,
            task_names=options["task"],
            requests_per_minute=options["requests_per_minute"],
            expires_in_seconds=None if days is None else durations.seconds(days * 86400),
            created_by=user_name(),
        )
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    except IntegrityError:
        raise CommandError(f"A valid token has the name {name!r}: revoke it, or use another name.") from None
    except ProgrammingError as error:
        if not isinstance(error.__cause__, InsufficientPrivilege):
            raise
        raise CommandError(MAY_NOT_CREATE) from None
    out.summary(f"This is the token {name!r}. It cannot be shown again.")
    out.write(secret)


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="Also list the tokens that are not valid any more.")
    add_reading(parser, DATABASE)


def _list(options: Options, out: Output) -> None:
    tokens = list(RemoteToken.objects.using(database_alias(options)).defer("digest").order_by("-pk")[:LISTED])
    if not options["all"]:
        tokens = [token for token in tokens if state_of(token, timezone.now()) == "valid"]
    out.listing("tokens", COLUMNS, tokens, f"{counted(len(tokens), 'token')}.", _as_json)


def _as_json(token: RemoteToken) -> dict[str, Any]:
    return {
        "id": token.pk,
        "name": token.name,
        "state": state_of(token, timezone.now()),
        "queues": token.queue_names,
        "tasks": token.task_names,
        "requests_per_minute": token.requests_per_minute,
        "created_at": token.created_at,
        "created_by": token.created_by,
        "expires_at": token.expires_at,
        "used_at": token.used_at,
        "revoked_at": token.revoked_at,
        "revoked_by": token.revoked_by,
    }


def _add_revoke(parser: ArgumentParser) -> None:
    parser.add_argument("token", metavar="NAME", help="Name or id of a valid token.")
    add_database(parser, DATABASE)


def _revoke(options: Options, out: Output) -> None:
    alias, given = database_alias(options), options["token"]
    valid = RemoteToken.objects.using(alias).filter(revoked_at=None)
    token = valid.filter(name=given).first()
    if token is None and given.isascii() and given.isdigit() and len(given) < 19:
        token = valid.filter(pk=int(given)).first()
    if token is None or revoke_remote_token(connections[alias], token.pk, revoked_by=user_name()) is None:
        raise NotFound(f"No valid token has the name or the id {given!r}. `pgqueue remote-token list` lists them.")
    out.summary(f"Revoked the token {token.name!r}.")


REMOTE_TOKEN: Final = Subcommand(
    "remote-token",
    "Manage the tokens of remote workers.",
    actions=(
        Subcommand("create", "Create a token, and print it once.", _add_create, _create),
        Subcommand("list", "List the valid tokens.", _add_list, _list),
        Subcommand("revoke", "Revoke a token at once.", _add_revoke, _revoke),
    ),
)
