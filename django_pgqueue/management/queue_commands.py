"""`manage.py pgqueue pause|resume|drain|clear`: stop, resume and empty a queue or a task from a shell.

Called by the `pgqueue` command. Each subcommand calls the function of `control` that has its name.
"""

from __future__ import annotations

import getpass
import re
import warnings
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_pgqueue import control
from django_pgqueue.queues import UnknownQueueWarning

DURATION: Final = re.compile(r"(\d+)([smhd])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
HELP: Final = {
    "pause": "Pause a queue or a task: its jobs wait, running ones continue.",
    "resume": "End the pause of a queue or a task.",
    "drain": "Pause a queue or a task, and wait until none of its jobs is running.",
    "clear": "Cancel all waiting jobs of a queue or a task, also those due later.",
}


def add_arguments(subcommands: Any) -> None:
    """Add the subcommands to the parser of `pgqueue`."""
    for name, text in HELP.items():
        parser = add_command(subcommands, name, text)
        parser.add_argument("queue", nargs="?", help="Name of the queue.")
        parser.add_argument("--task", metavar="NAME", help="Name of a task, instead of a queue.")
        parser.add_argument("--database", metavar="ALIAS", help="Database of the jobs.")
        if name in ("pause", "drain"):
            parser.add_argument("--reason", metavar="TEXT", default="", help="Reason, shown in the admin.")
        if name == "pause":
            parser.add_argument(
                "--until",
                metavar="TIME",
                help="End of the pause: 30m, 2h, 1d, or an ISO 8601 time. Default: until it is resumed.",
            )
        if name == "drain":
            parser.add_argument("--timeout", metavar="TIME", help="How long to wait, such as 10m. Default: no limit.")
        if name == "clear":
            parser.add_argument("--dry-run", action="store_true", help="Print the number of jobs, and cancel none.")


def add_command(subcommands: Any, name: str, text: str) -> CommandParser:
    """Add a subcommand. Its help appears in the list of `pgqueue --help` and in its own `--help`."""
    parser: CommandParser = subcommands.add_parser(name, help=text, description=text)
    return parser


def run(options: dict[str, Any], stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    """Run a subcommand, and write to `stderr` at once if the name of the queue may be mistyped.

    Raise `CommandError` for invalid arguments, or if jobs still run after `drain --timeout`.
    """
    if (options["queue"] is None) == (options["task"] is None):
        raise CommandError("Pass either the name of a queue, or --task with the name of a task.")
    target = {"queue_name": options["queue"], "task": options["task"], "database": options["database"]}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UnknownQueueWarning)
            warnings.showwarning = lambda message, *rest, **more: stderr.write(f"Warning: {message}")
            COMMANDS[options["subcommand"]](target, options, stdout)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from None


def _pause(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    control.pause(**target, until=_until(options["until"]), reason=options["reason"], by=_user())
    stdout.write(f"Paused. {control.waiting(**target).count():,} jobs are waiting.")


def _resume(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    stdout.write("Resumed." if control.resume(**target) else "Nothing to resume: it is not paused.")


def _drain(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    timeout = options["timeout"] and _duration("--timeout", options["timeout"])
    running = control.drain(**target, timeout=timeout, reason=options["reason"] or "drained", by=_user())
    if running:
        raise CommandError(f"Paused, but {running:,} jobs are still running. Repeat the command to wait longer.")
    stdout.write("Paused, and no job of it is running.")


def _clear(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    if options["dry_run"]:
        stdout.write(f"{control.waiting(**target).count():,} jobs would be cancelled.")
    else:
        stdout.write(f"Cancelled {control.clear(**target):,} jobs.")


COMMANDS: Final = {"pause": _pause, "resume": _resume, "drain": _drain, "clear": _clear}


def _until(text: str | None) -> timedelta | datetime | None:
    if text is None or DURATION.fullmatch(text):
        return text and _duration("--until", text)  # type: ignore[return-value]  # None stays None
    at = parse_datetime(text)
    if at is None:
        raise ValueError(f"Invalid --until {text!r}: use 30m, 2h, 1d, or an ISO 8601 time such as 2030-01-31T08:00")
    at = at if at.tzinfo else timezone.make_aware(at)
    if at <= timezone.now():
        raise ValueError(f"Invalid --until {text!r}: this time is in the past")
    return at


def _duration(option: str, text: str) -> timedelta:
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"Invalid {option} {text!r}: use a number with s, m, h or d, such as 30m")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user id has no name, as in some containers
        return ""
