"""Define the parts of a subcommand of `manage.py pgqueue`, and the options and exit codes that all of them share.

To add a subcommand, write a module in this package that defines a `Subcommand`, and add that to `SUBCOMMANDS` in the
`pgqueue` command.
"""

from __future__ import annotations

import getpass
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NoReturn

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections, router

from django_pgqueue.control.targets import UnknownLimitWarning, UnknownTaskWarning
from django_pgqueue.db.queue_databases import served_aliases
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.queues import UnknownQueueWarning

from .output import Output
from .parsers import SubcommandParser, show_hints

Options = dict[str, Any]


class ExitCode(IntEnum):
    """The exit codes of `pgqueue`. They are part of the public interface; argparse uses `USAGE` too."""

    DONE = 0
    FAILED = 1
    """The command failed, or what it checks is not in order."""
    USAGE = 2
    """The arguments are invalid."""
    NOT_FOUND = 3
    """A job, queue, task or schedule in the arguments does not exist."""


class NotFound(CommandError):
    """A job, queue, task or schedule in the arguments does not exist."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=ExitCode.NOT_FOUND)


class UsageError(CommandError):
    """The arguments are invalid, or do not fit together."""

    def __init__(self, message: str) -> None:
        super().__init__(message, returncode=ExitCode.USAGE)


@dataclass(frozen=True)
class Subcommand:
    """One subcommand of `pgqueue`, or one action of a subcommand such as `jobs list`.

    Attributes:
        name: The word to type.
        help: One sentence for `--help`.
        add_arguments: Adds the arguments to the subcommand's parser.
        run: Does the work: it gets the parsed options, and prints to an `Output`.
        actions: Further words, each with its own arguments. The subcommand itself then has neither.
        runs_tasks: Whether it runs tasks, in the language of the settings. The other subcommands speak English.
    """

    name: str
    help: str
    add_arguments: Callable[[ArgumentParser], None] = lambda parser: None
    run: Callable[[Options, Output], None] | None = None
    actions: tuple[Subcommand, ...] = ()
    runs_tasks: bool = False


def add_subcommands(parser: ArgumentParser, subcommands: Iterable[Subcommand], metavar: str = "COMMAND") -> None:
    """Add subcommands to a parser. Afterwards, the options `run` and `runs_tasks` are those of the one typed.

    Without a subcommand, `run` lists them and fails. The error of argparse would name none of them.
    """
    subcommands = list(subcommands)
    parser.set_defaults(run=partial(_list_subcommands, parser.prog, subcommands), runs_tasks=False)
    show_hints(parser)
    parsers = parser.add_subparsers(metavar=metavar, required=False, parser_class=SubcommandParser)
    for subcommand in subcommands:
        text = subcommand.help
        # Without abbreviations, so that `--limit` of a command without it does not mean `--limit-key`.
        added = parsers.add_parser(subcommand.name, help=text, description=text, allow_abbrev=False)
        if subcommand.actions:
            add_subcommands(added, subcommand.actions, metavar="ACTION")
        else:
            subcommand.add_arguments(added)
            added.set_defaults(run=subcommand.run, runs_tasks=subcommand.runs_tasks)


def _list_subcommands(prog: str, subcommands: Sequence[Subcommand], options: Options, out: Output) -> NoReturn:
    width = max(len(subcommand.name) for subcommand in subcommands)
    lines = [f"  {subcommand.name:<{width}}  {subcommand.help}" for subcommand in subcommands]
    raise UsageError("\n".join([f"Pass one of these commands to `{prog}`:", *lines]))


def add_database(parser: ArgumentParser, help: str = "Database of the jobs.") -> None:  # noqa: A002 -- argparse's word
    """Add `--database`. Read it with `database_alias()`."""
    parser.add_argument("--database", metavar="ALIAS", help=help)


def add_json(parser: ArgumentParser) -> None:
    """Add `--json` to a command that reads."""
    parser.add_argument("--json", action="store_true", help="Print one JSON document.")


def add_reading(parser: ArgumentParser, help: str = "Database of the jobs.") -> None:  # noqa: A002 -- argparse's word
    """Add `--database` and `--json` to a command that reads one database."""
    add_database(parser, help)
    add_json(parser)


def add_databases(parser: ArgumentParser) -> None:
    """Add `--database` and `--all-databases` to a command that reads. Read them with `database_aliases()`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--database", metavar="ALIAS", help="Database of the jobs.")
    group.add_argument(
        "--all-databases", action="store_true", help="All databases that have the tables of the queue, one by one."
    )


def database_aliases(options: Options) -> list[str]:
    """Return the aliases that a command is about. Raise `UsageError` for an unknown one."""
    return served_aliases() if options["all_databases"] else [database_alias(options)]


def database_alias(options: Options) -> str:
    """Return `--database`, or the alias that jobs are written to.

    Raise `UsageError` for an unknown one, and `CommandError` for one that is not PostgreSQL.
    """
    from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

    given = options["database"]  # an empty one is refused: it may be a variable of a script that is not set
    alias = (router.db_for_write(Job) or DEFAULT_DB_ALIAS) if given is None else given
    if alias not in connections:
        raise UsageError(f"DATABASES has no alias {alias!r}: pass --database with one of {', '.join(connections)}.")
    if connections[alias].vendor != "postgresql":
        raise CommandError(f"The database {alias!r} is not PostgreSQL: pass the alias of one that is with --database.")
    return str(alias)


def user_name() -> str:
    """Return the name of the operating system's user, or "" if the user has no name. Logs and audits store it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in some containers
        return ""


def acting(act: Callable[[Options, Output], str | None]) -> Callable[[Options, Output], None]:
    """Return the `run` of a subcommand that changes something. The act returns the text to print, if it has one.

    The errors by which the act is refused become those of a command. Warnings are written to standard error at once.
    """

    def run(options: Options, out: Output) -> None:
        try:
            with warnings.catch_warnings():
                for category in (UnknownQueueWarning, UnknownLimitWarning, UnknownTaskWarning):
                    warnings.simplefilter("always", category)
                warnings.showwarning = lambda message, *rest, **more: out.stderr.write(f"Warning: {message}")
                if text := act(options, out):
                    out.write(text)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None
        except (JobLocked, OSError) as error:
            raise CommandError(str(error)) from None

    return run


def has_terminal() -> bool:
    """Return whether there is a terminal to ask on."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, refusal: str, unchanged: str) -> None:
    """Ask on a terminal.

    Raises:
        CommandError: With the message `unchanged`: the answer is not yes.
        UsageError: With the message `refusal`: there is no terminal to ask on.
    """
    if not has_terminal():
        raise UsageError(refusal)
    answer = ""
    with suppress(EOFError):  # Ctrl-D
        answer = input(f"{question} [y/N] ")
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError(unchanged)
