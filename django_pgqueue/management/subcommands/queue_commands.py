"""`manage.py pgqueue pause|resume|drain|clear`: stop, resume and empty a queue, a task or a limit from a shell.

Each subcommand calls the function of `control` that has its name.
"""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import CommandError

from django_pgqueue import control
from django_pgqueue.control.targets import target_of
from django_pgqueue.settings.conf import known_queues
from django_pgqueue.states import Pausable

from .consent import MOST_COUNTED, JobPreview, add_consent, is_agreed, progress
from .known_names import FORCE, check_name
from .output import Output, counted
from .subcommand import Options, Subcommand, UsageError, acting, add_database, database_alias, user_name
from .times import duration_of, time_of

Target = dict[str, Any]


def _add_target(parser: ArgumentParser) -> None:
    """Add the arguments that name the queue, the task or the limit."""
    parser.add_argument("queue", nargs="?", help="Name of the queue.")
    parser.add_argument("--task", metavar="NAME", help="Name of a task, instead of a queue.")
    parser.add_argument("--limit-key", metavar="KEY", help="Name of a limit, or one of its keys, instead of a queue.")
    add_database(parser)


def _add_reason(parser: ArgumentParser) -> None:
    parser.add_argument("--reason", metavar="TEXT", default="", help="Reason, shown in the admin.")


def _add_resume(parser: ArgumentParser) -> None:
    _add_target(parser)
    _add_reason(parser)


def _add_force(parser: ArgumentParser) -> None:
    parser.add_argument("--force", action="store_true", help="Pause it also if nothing uses the name yet.")


def _add_pause(parser: ArgumentParser) -> None:
    _add_target(parser)
    _add_reason(parser)
    _add_force(parser)
    parser.add_argument(
        "--until",
        metavar="TIME",
        help="End of the pause: 30m, 2h, 1d, or an ISO 8601 time. Default: until it is resumed.",
    )


def _add_drain(parser: ArgumentParser) -> None:
    _add_target(parser)
    _add_reason(parser)
    _add_force(parser)
    parser.add_argument("--timeout", metavar="TIME", help="How long to wait, such as 10m. Default: no limit.")


def _add_clear(parser: ArgumentParser) -> None:
    _add_target(parser)
    _add_reason(parser)
    add_consent(parser)


def _target(options: Options) -> Target:
    """Return the arguments of `control` that name the target.

    Raise `UsageError` unless there is exactly one, and `NotFound` if nothing uses its name and `--force` is missing.
    """
    target = {"queue_name": options["queue"], "task": options["task"], "limit_key": options["limit_key"]}
    if list(target.values()).count(None) != 2:
        raise UsageError("Pass either the name of a queue, --task with the name of a task, or --limit-key.")
    kind, name = target_of(**target)
    alias, is_forced = database_alias(options), options.get("force")
    if not (is_forced or (kind is Pausable.QUEUE and known_queues())):  # `control` refuses queues that are not listed
        check_name(kind, name, alias, "" if is_forced is None else FORCE)
    return {**target, "database": alias}


def _pause(options: Options, out: Output) -> str:
    target = _target(options)
    control.pause(**target, until=end_of(options["until"]), reason=options["reason"], by=user_name())
    waiting = control.waiting(**target).count()
    return f"Paused. {counted(waiting)} {'is' if waiting == 1 else 'are'} waiting."


def _resume(options: Options, out: Output) -> str:
    resumed = control.resume(**_target(options), reason=options["reason"], by=user_name())
    return "Resumed." if resumed else "Nothing to resume: it is not paused."


def _drain(options: Options, out: Output) -> str:
    timeout = options["timeout"] and duration_of("--timeout", options["timeout"])
    reason = options["reason"] or "drained"
    if running := control.drain(**_target(options), timeout=timeout, reason=reason, by=user_name()):
        verb = "is" if running == 1 else "are"
        raise CommandError(f"Paused, but {counted(running)} {verb} still running. Repeat the command to wait longer.")
    return "Paused, and no job of it is running."


def _clear(options: Options, out: Output) -> str | None:
    target = _target(options)
    task_names = control.waiting(**target).order_by().values_list("task_name", flat=True)[: MOST_COUNTED + 1]
    preview = JobPreview.of_tasks(task_names)
    if not preview.count and not options["dry_run"]:
        control.clear(**target)  # it checks the name
    if not is_agreed(preview, "cancel", options, out):
        return None
    show = progress(out, preview.count, is_exact=preview.is_exact)
    cancelled = control.clear(**target, reason=options["reason"], by=user_name(), on_batch=show)
    return f"Cancelled {counted(cancelled)}."


def end_of(text: str | None) -> timedelta | datetime | None:
    """Return the end in the text of `--until`."""
    at = None if text is None else time_of("--until", text)
    if at == timedelta():
        raise ValueError(f"Invalid --until {text!r}: the end would be now, use 30m, 2h or 1d")
    if isinstance(at, datetime) and at <= datetime.now(UTC):
        raise ValueError(f"Invalid --until {text!r}: this time is in the past")
    return at


PAUSE = Subcommand(
    "pause",
    "Pause a queue, a task or a limit: its jobs wait, running ones continue.",
    _add_pause,
    acting(_pause),
)
RESUME = Subcommand("resume", "End the pause of a queue, a task or a limit.", _add_resume, acting(_resume))
DRAIN = Subcommand(
    "drain",
    "Pause a queue, a task or a limit, and wait until none of its jobs is running.",
    _add_drain,
    acting(_drain),
)
CLEAR = Subcommand(
    "clear",
    "Cancel all waiting jobs of a queue, a task or a limit, also those due later.",
    _add_clear,
    acting(_clear),
)
