"""`manage.py pgqueue remote-token`: create, list and revoke the tokens of remote workers."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django.core.management.base import CommandError
from django.db import IntegrityError, ProgrammingError, connections
from django.utils import timezone
from psycopg.errors import InsufficientPrivilege

from django_pgqueue.durations import seconds
from django_pgqueue.lifecycle.remote_tokens import revoke_remote_token
from django_pgqueue.management.commands.runworker import positive
from django_pgqueue.management.queue_arguments import queue_names
from django_pgqueue.management.subcommands.output import Column, Output, date_of
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

from .machine_tokens import DEFAULT_REQUESTS_PER_MINUTE, create_token, state_of
from .models import RemoteToken

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
    try:
        secret = create_token(
            connections[database_alias(options)],
            name,
            queue_names=queue_names(options["queues"]),
            task_names=options["task"],
            requests_per_minute=options["requests_per_minute"],
            expires_in_seconds=None if days is None else seconds(days * 86400),
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
    out.listing("token", COLUMNS, tokens, _as_json)


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
