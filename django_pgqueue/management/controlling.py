"""`manage.py pgqueue pause|resume|drain|clear`: queues and tasks in operation, from a shell."""

from __future__ import annotations

import getpass
import re
from datetime import datetime, timedelta
from typing import Any, Final

from django.core.management.base import CommandError, CommandParser, OutputWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from django_pgqueue import control

DURATION: Final = re.compile(r"(\d+)([smhd])")
UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
HELP: Final = {
    "pause": "let workers claim no job of a queue or a task",
    "resume": "end a pause",
    "drain": "pause, and wait until nothing of it runs",
    "clear": "cancel the jobs that wait",
}


def add_arguments(subcommands: Any) -> None:
    """Add the subcommands."""
    for name, text in HELP.items():
        parser: CommandParser = subcommands.add_parser(name, help=text)
        parser.add_argument("queue", nargs="?", help="the name of a queue")
        parser.add_argument("--task", help="the name of a task, instead of a queue")
        parser.add_argument("--database", help="alias of the database with the jobs")
        if name in ("pause", "drain"):
            parser.add_argument("--reason", default="", help="why, for others to read")
        if name == "pause":
            parser.add_argument("--until", help="when it ends by itself: 30m, 2h, 1d, or an ISO 8601 time")
        if name == "drain":
            parser.add_argument("--timeout", help="how long to wait, such as 10m (default: as long as it takes)")
        if name == "clear":
            parser.add_argument("--dry-run", action="store_true", help="say how many, and cancel none")


def run(options: dict[str, Any], stdout: OutputWrapper) -> None:
    """Run one of them; raises `CommandError` for what cannot be meant, or for what still runs after the time."""
    target = {"queue_name": options["queue"], "task": options["task"], "database": options["database"]}
    try:
        COMMANDS[options["subcommand"]](target, options, stdout)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from None


def _pause(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    control.pause(**target, until=_until(options["until"]), reason=options["reason"], by=_user())
    stdout.write(f"Paused. {control.waiting(**target).count():,} jobs wait.")


def _resume(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    stdout.write("Resumed." if control.resume(**target) else "It was not paused.")


def _drain(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    timeout = options["timeout"] and _duration(options["timeout"])
    running = control.drain(**target, timeout=timeout, reason=options["reason"] or "drained", by=_user())
    if running:
        raise CommandError(f"Paused, but {running:,} jobs still run.")
    stdout.write("Paused, and nothing of it runs.")


def _clear(target: dict[str, Any], options: dict[str, Any], stdout: OutputWrapper) -> None:
    if options["dry_run"]:
        stdout.write(f"{control.waiting(**target).count():,} jobs would be cancelled.")
    else:
        stdout.write(f"Cancelled {control.clear(**target):,} jobs.")


COMMANDS: Final = {"pause": _pause, "resume": _resume, "drain": _drain, "clear": _clear}


def _until(text: str | None) -> timedelta | datetime | None:
    if text is None or DURATION.fullmatch(text):
        return text and _duration(text)  # type: ignore[return-value]  # None stays None
    at = parse_datetime(text)
    if at is None:
        raise ValueError(f"{text!r} is no time: 30m, 2h, 1d, or an ISO 8601 time such as 2030-01-31T08:00")
    return at if at.tzinfo else timezone.make_aware(at)


def _duration(text: str) -> timedelta:
    found = DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no duration: a number and s, m, h or d, such as 30m")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a process without a name, as in some containers
        return ""
