"""`manage.py pgqueue limits list|show|set|reset|release`: the figures of limits, and their changes while workers run.

`list` and `show` print what `stats.limits()`, `stats.limit_keys()` and `stats.limit_key()` return. Each of the other
actions calls a function of `control`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any, Final

from django_pgqueue import control, stats
from django_pgqueue.control.targets import check_limit_key
from django_pgqueue.declared.limits import name_of
from django_pgqueue.display import in_line
from django_pgqueue.ground.similar_names import meant
from django_pgqueue.options.task_options import UNCHANGED
from django_pgqueue.states import Pausable

from .known_names import FORCE, check_name
from .output import Column, Output, counted, date_of
from .queue_commands import end_of
from .status_command import note_of, span
from .subcommand import (
    NotFound,
    Options,
    Subcommand,
    UsageError,
    acting,
    add_database,
    add_reading,
    database_alias,
    user_name,
)

KEYS_SHOWN: Final = 50
MOST_KEYS: Final = 200
Figures = stats.LimitFigures | stats.LimitKeyFigures
NO_VALUE: Final = "none"
"""The text of a field that the override leaves as it is in the code."""
NUMBERS: Final = ("concurrency", "burst", "share")

LIMIT_COLUMNS: Final = (
    Column("limit", lambda limit: limit.name, is_flexible=True),
    Column("due", lambda limit: limit.due, is_number=True),
    Column("oldest due", lambda limit: span(limit.oldest_due_seconds), is_number=True),
    Column("later", lambda limit: limit.later, is_number=True),
    Column("running", lambda limit: limit.running, is_number=True),
    Column("keys", lambda limit: limit.keys, is_number=True),
    Column("held", lambda limit: limit.held_keys, is_number=True),
    Column("values", lambda limit: _values(limit.values), is_flexible=True),
    Column("changes", lambda limit: "; ".join(_changes(limit)), is_flexible=True),
)
KEY_COLUMNS: Final = (
    Column("key", lambda key: key.limit_key, is_flexible=True),
    Column("due", lambda key: key.due, is_number=True),
    Column("oldest due", lambda key: span(key.oldest_due_seconds), is_number=True),
    Column("later", lambda key: key.later, is_number=True),
    Column("running", lambda key: key.running, is_number=True),
    Column("waits for", lambda key: key.waits_for),
    Column("next start", lambda key: span(key.next_start_seconds), is_number=True),
    Column("changes", lambda key: "; ".join(_changes(key)), is_flexible=True),
)


def _values(values: stats.LimitValues | None) -> str:
    """Return the values that claims obey as text."""
    if values is None:
        return "not declared here"
    parts = ["ordered"] if values.is_ordered else []
    if values.concurrency is not None and not values.is_ordered:
        parts.append(f"concurrency {values.concurrency}")
    if values.rate is not None:
        parts.append(f"rate {values.rate}, burst {values.burst}")
    if values.share != 1:
        parts.append(f"share {values.share}")
    return ", ".join(parts) or "turns"


def _changes(figures: Figures) -> Iterator[str]:
    """Yield what operators have changed, and what circuit breakers do."""
    if figures.override is not None:
        given = {name: getattr(figures.override, name) for name in ("concurrency", "rate", "burst", "share")}
        values = ", ".join(f"{name} {value}" for name, value in given.items() if value is not None)
        yield f"override {values}{note_of(figures.override)}"
    if figures.pause is not None:
        yield f"{figures.pause.name} paused{note_of(figures.pause)}"
    if figures.has_open_breaker:
        is_paused = figures.pause is not None
        yield "circuit breaker open" if is_paused else "circuit breaker probing: one job at a time"
    if isinstance(figures, stats.LimitFigures):
        counts = {
            "overridden": figures.overridden_keys,
            "paused": figures.paused_keys,
            "with an open circuit breaker": figures.open_breakers,
        }
        for what, count in counts.items():
            if count.value:
                yield f"{count} {'key' if count == stats.Count(1) else 'keys'} {what}"


def _list(options: Options, out: Output) -> None:
    found = stats.limits(database_alias(options))
    out.listing("limits", LIMIT_COLUMNS, found, f"{counted(len(found), 'limit')}.")


def _add_show(parser: ArgumentParser) -> None:
    parser.add_argument("limit_key", metavar="KEY", help="Name of a limit, or one limit key.")
    parser.add_argument("--prefix", default="", metavar="TEXT", help="Only keys whose value begins with this text.")
    parser.add_argument("--after", default="", metavar="KEY", help="Only keys behind this one, for the next page.")
    parser.add_argument(
        "--count", type=int, default=KEYS_SHOWN, metavar="N", help=f"Keys of a page, at most {MOST_KEYS}."
    )
    add_reading(parser)


def _show(options: Options, out: Output) -> None:
    """Print a limit with a page of its keys, or one key. Raise `NotFound` for a limit that nothing uses."""
    key, alias = options["limit_key"], database_alias(options)
    try:
        check_limit_key(key)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not 1 <= options["count"] <= MOST_KEYS:
        raise UsageError(f"Invalid --count {options['count']}: pass 1 to {MOST_KEYS}.")
    limits = {each.name: each for each in stats.limits(alias)}
    limit = limits.get(name := name_of(key))
    if limit is None:
        found = meant(name, limits, "pgqueue limits list")
        raise NotFound(f"No task declares the limit {name!r}, and no unfinished job has it{found}")
    if key != limit.name:
        _show_key(stats.limit_key(key, alias), out)
        return
    bounds = {"after": options["after"], "count": options["count"], "prefix": options["prefix"]}
    page = stats.limit_keys(limit.name, **bounds, database=alias)
    if out.is_json:
        out.json({"limit": limit, "keys": page.keys, "next_after": page.next_after})
        return
    out.table(LIMIT_COLUMNS, [limit])
    if page.keys:
        out.write("")
        out.table(KEY_COLUMNS, page.keys)
    more = f" Next page: --after {page.next_after!r}" if page.next_after else ""
    out.summary(f"{counted(len(page.keys), 'key')}.{more}")


def _show_key(key: stats.LimitKeyFigures, out: Output) -> None:
    if out.is_json:
        out.json({"key": key})
        return
    out.write(out.coloured(f"Limit key {in_line(key.limit_key)}"))
    facts = {
        "Values": _values(key.values),
        "Changes": "; ".join(_changes(key)),
        "Running": f"{key.running} (weight {key.running_weight})",
        "Running jobs": ", ".join(map(str, key.running_job_ids)),
        "Due": key.due,
        "Oldest due": span(key.oldest_due_seconds),
        "Later": key.later,
        "Next job": key.next_job_id,
        "Waits for": key.waits_for,
        "Blocked by job": key.blocking_job_id,
        "Next start in": span(key.next_start_seconds),
        "Held until": date_of(key.held_until),
    }
    for name, value in facts.items():
        if value not in ("", None):
            out.write(f"{name:<17}{in_line(str(value))}")


# ---------------------------------------------------------------------------- changes


def _add_key(parser: ArgumentParser) -> None:
    """Add the arguments that all actions share."""
    parser.add_argument("limit_key", metavar="KEY", help="Name of a limit, for all its keys, or one limit key.")
    parser.add_argument("--reason", metavar="TEXT", default="", help="Reason, stored in the audit.")
    add_database(parser)


def _add_values(parser: ArgumentParser) -> None:
    _add_key(parser)
    parser.add_argument("--force", action="store_true", help="Override it also if nothing uses the name yet.")
    as_in_code = f"{NO_VALUE}: as in the code."
    parser.add_argument("--concurrency", metavar="N", help=f"Jobs of a key that run at a time. {as_in_code}")
    parser.add_argument("--rate", metavar="RATE", help=f"Starts of a key in a period, such as 100/m. {as_in_code}")
    parser.add_argument("--burst", metavar="N", help=f"Starts at once after a time without starts. {as_in_code}")
    parser.add_argument("--share", metavar="N", help=f"Jobs of a key that start in one turn. {as_in_code}")
    parser.add_argument(
        "--until", metavar="TIME", help="End: 30m, 2h, 1d, or an ISO 8601 time. Default: until it is reset."
    )


def _origin(options: Options) -> dict[str, Any]:
    """Return who changes a limit, and why. Raise `NotFound` if nothing uses its name and `--force` is missing."""
    alias, limit_key, is_forced = database_alias(options), options["limit_key"], options.get("force")
    check_limit_key(limit_key)
    if not is_forced:
        check_name(Pausable.LIMIT, limit_key, alias, "" if is_forced is None else FORCE)
    return {"reason": options["reason"], "by": user_name(), "database": alias}


def _set(options: Options, out: Output) -> str:
    values = {name: _number(name, options[name]) for name in NUMBERS}
    rate = {None: UNCHANGED, NO_VALUE: None}.get(options["rate"], options["rate"])
    until = end_of(options["until"])
    control.override_limit(options["limit_key"], rate=rate, **values, until=until, **_origin(options))
    return "Overridden. Workers apply it within a second."


def _number(name: str, text: str | None) -> Any:
    """Return the number in the text of an option."""
    if text is None or text == NO_VALUE:
        return UNCHANGED if text is None else None
    if not text.isdecimal():
        raise ValueError(f"Invalid --{name} {text!r}: pass a whole number, or {NO_VALUE} for the value in the code")
    return int(text)


def _reset(options: Options, out: Output) -> str:
    restored = control.restore_limit(options["limit_key"], **_origin(options))
    return "Reset: the override is removed." if restored else "Nothing to reset: it is not overridden."


def _release(options: Options, out: Output) -> str:
    ended = control.end_hold(options["limit_key"], **_origin(options))
    return "Released: the hold has ended." if ended else "Nothing to release: no key is held."


LIMITS = Subcommand(
    "limits",
    "List and override limits, and end their holds.",
    actions=(
        Subcommand("list", "List limits: their jobs, keys and values.", add_reading, _list),
        Subcommand("show", "Show a limit with its keys, or one limit key.", _add_show, _show),
        Subcommand("set", "Override values of a limit or of one key while workers run.", _add_values, acting(_set)),
        Subcommand("reset", "Remove the override of a limit or of one key.", _add_key, acting(_reset)),
        Subcommand("release", "End the hold of a key, or of all keys of a limit.", _add_key, acting(_release)),
    ),
)
