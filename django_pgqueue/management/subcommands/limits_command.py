"""`manage.py pgqueue limits set|reset|release`: change limits from a shell while workers run.

Each action calls a function of `control`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any, Final

from django_pgqueue import control
from django_pgqueue.options.task_options import UNCHANGED

from .limits_reading import LIST, SHOW
from .output import Output
from .queue_commands import end_of
from .subcommand import Options, Subcommand, acting, add_database, database_alias, user_name

NO_VALUE: Final = "none"
"""The text of a field that the override leaves as it is in the code."""
NUMBERS: Final = ("concurrency", "burst", "share")


def _add_key(parser: ArgumentParser) -> None:
    """Add the arguments that all actions share."""
    parser.add_argument("limit_key", metavar="KEY", help="Name of a limit, for all its keys, or one limit key.")
    parser.add_argument("--reason", metavar="TEXT", default="", help="Reason, stored in the audit.")
    add_database(parser)


def _add_values(parser: ArgumentParser) -> None:
    _add_key(parser)
    as_in_code = f"{NO_VALUE}: as in the code."
    parser.add_argument("--concurrency", metavar="N", help=f"Jobs of a key that run at a time. {as_in_code}")
    parser.add_argument("--rate", metavar="RATE", help=f"Starts of a key in a period, such as 100/m. {as_in_code}")
    parser.add_argument("--burst", metavar="N", help=f"Starts at once after a time without starts. {as_in_code}")
    parser.add_argument("--share", metavar="N", help=f"Jobs of a key that start in one turn. {as_in_code}")
    parser.add_argument(
        "--until", metavar="TIME", help="End: 30m, 2h, 1d, or an ISO 8601 time. Default: until it is reset."
    )


def _note(options: Options) -> dict[str, Any]:
    """Return who changes a limit, and why."""
    return {"reason": options["reason"], "by": user_name(), "database": database_alias(options)}


def _set(options: Options, out: Output) -> str:
    values = {name: _number(name, options[name]) for name in NUMBERS}
    rate = {None: UNCHANGED, NO_VALUE: None}.get(options["rate"], options["rate"])
    until = end_of(options["until"])
    control.override_limit(options["limit_key"], rate=rate, **values, until=until, **_note(options))
    return "Overridden. Workers apply it within a second."


def _number(name: str, text: str | None) -> Any:
    """Return the number in the text of an option."""
    if text is None or text == NO_VALUE:
        return UNCHANGED if text is None else None
    if not text.isdecimal():
        raise ValueError(f"Invalid --{name} {text!r}: pass a whole number, or {NO_VALUE} for the value in the code")
    return int(text)


def _reset(options: Options, out: Output) -> str:
    restored = control.restore_limit(options["limit_key"], **_note(options))
    return "Reset: the override is removed." if restored else "Nothing to reset: it is not overridden."


def _release(options: Options, out: Output) -> str:
    ended = control.end_hold(options["limit_key"], **_note(options))
    return "Released: the hold has ended." if ended else "Nothing to release: no key is held."


LIMITS = Subcommand(
    "limits",
    "List and override limits, and end their holds.",
    actions=(
        LIST,
        SHOW,
        Subcommand("set", "Override values of a limit or of one key while workers run.", _add_values, acting(_set)),
        Subcommand("reset", "Remove the override of a limit or of one key.", _add_key, acting(_reset)),
        Subcommand("release", "End the hold of a key, or of all keys of a limit.", _add_key, acting(_release)),
    ),
)
