"""`manage.py pgqueue status|queues`: what is wrong, the figures of all queues, and the queues: jobs, rates, pauses.

`top` prints the figures and some columns of the table too.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from datetime import timedelta
from typing import Final

from django.db import Error

from django_pgqueue import stats
from django_pgqueue.display import duration, in_line
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.answers import STATES
from django_pgqueue.stats.causes.current import causes_of, current, document_of
from django_pgqueue.stats.causes.facts import Facts
from django_pgqueue.stats.causes.words import Words

from .output import Column, Output, counted, date_of
from .subcommand import (
    ExitCode,
    Options,
    Subcommand,
    add_databases,
    add_json,
    add_reading,
    database_alias,
    database_aliases,
)

CAUSES_SHOWN: Final = 10
WORDS: Final = Words(with_keys=True)
"""Times in UTC, and limit keys by name: who runs a command can read the database."""


def span(seconds: float | None) -> str:
    """Return a duration as text, or an empty string for None."""
    return "" if seconds is None else duration(timedelta(seconds=seconds), brief=True)


def rate(per_minute: float | None, *, is_estimate: bool = False) -> str:
    """Return a rate as text, with a sign before an estimate. None, a rate that is not known, is a dash."""
    return "–" if per_minute is None else f"{'≈' if is_estimate else ''}{per_minute:,.0f}"


def slots(figures: stats.QueueStats | stats.Overview) -> str:
    """Return how many slots are busy, and how many there are. A number that is not known is a dash."""
    busy, total = (("–" if each is None else each) for each in (figures.slots_busy, figures.slots_total))
    return f"{busy} of {total}"


def unknown_note(depths: Iterable[stats.Depth]) -> str:
    """Return what a dash for a number of jobs means, if a table has one."""
    has_dash = any(str(getattr(each, state)) == "–" for each in depths for state in STATES)
    return " A dash: counting stopped before it found such a job, so there can be some." if has_dash else ""


def note_of(change: stats.OverrideStats | stats.PauseStats) -> str:
    """Return who has made a change, until when it lasts, and why."""
    by = f" by {change.by}" if change.by else ""
    until = f" until {date_of(change.until)}" if change.until else ""
    return f"{by}{until}: {change.reason}" if change.reason else f"{by}{until}"


def _pause(queue: stats.QueueStats) -> str:
    return f"paused{note_of(queue.pause)}" if queue.pause else ""


COLUMNS: Final = (
    Column("queue", lambda queue: queue.name, is_flexible=True),
    Column("due", lambda queue: queue.due, is_number=True),
    Column("oldest due", lambda queue: span(queue.oldest_due_seconds), is_number=True),
    Column("held", lambda queue: queue.held, is_number=True),
    Column("scheduled", lambda queue: queue.scheduled, is_number=True),
    Column("retrying", lambda queue: queue.retrying, is_number=True),
    Column("unknown", lambda queue: queue.unknown, is_number=True),
    Column("paused", lambda queue: queue.paused, is_number=True),
    Column("running", lambda queue: queue.running, is_number=True),
    Column("prefetched", lambda queue: queue.prefetched, is_number=True),
    Column("lost", lambda queue: queue.lost, is_number=True),
    Column("dead", lambda queue: queue.dead, is_number=True),
    Column(
        "in/min", lambda queue: rate(queue.enqueued_per_minute, is_estimate=queue.enqueued_is_estimate), is_number=True
    ),
    Column("out/min", lambda queue: rate(queue.finished_per_minute), is_number=True),
    Column("workers", lambda queue: queue.workers, is_number=True),
    Column("slots", slots, is_number=True),
    Column("pause", _pause, is_flexible=True),
)
HEADINGS: Final = frozenset({"queue", "due", "oldest due", "running", "dead", "in/min", "out/min", "slots", "pause"})
"""The headings of the columns that fit 80 characters."""
SHORT_TABLE: Final = [column for column in COLUMNS if column.heading in HEADINGS]


def tiles(overview: stats.Overview, out: Output) -> list[str]:
    """Return a line for each group of figures. Figures that need attention have a colour."""
    oldest = overview.oldest_due_seconds
    in_and_out = f"{rate(overview.enqueued_per_minute, is_estimate=overview.enqueued_is_estimate)} in"
    if get_settings().STATS:
        in_and_out += f", {rate(overview.finished_per_minute)} out"
    prefetched = f", {overview.prefetched} claimed and waiting for a slot" if overview.prefetched.value else ""
    suspended = f"; steps suspend {overview.suspended} of them" if overview.suspended.value else ""
    lines = [
        ("due", f"{overview.due}{'' if oldest is None else f', the oldest for {span(oldest)}'}", ""),
        *([("held", f"{overview.held}, their limit admits none of them now", "")] if overview.held.value else []),
        ("later", f"{overview.scheduled} scheduled, {overview.retrying} retrying{suspended}", ""),
        *([("unknown", f"{overview.unknown}, workers release them", "lost")] if overview.unknown.value else []),
        *([("waiting", f"{overview.waiting} for other jobs", "")] if overview.waiting.value else []),
        ("paused", str(overview.paused), "paused" if overview.paused.value else ""),
        ("running", f"{overview.running}{prefetched}, and {overview.lost} lost", "lost" if overview.lost.value else ""),
        ("dead", f"{overview.dead}, {overview.dead_24h} of them in 24 h", "dead" if overview.dead_24h.value else ""),
        ("per minute", in_and_out, ""),
        ("workers", f"{'–' if overview.workers is None else overview.workers}, {slots(overview)} slots busy", ""),
    ]
    lines += [("not read", f"{name}: {in_line(reason)}", "lost") for name, reason in overview.unread.items()]
    return [f"{name:<12}{out.coloured(text, word) if word else text}" for name, text, word in lines]


def _add_status(parser: ArgumentParser) -> None:
    add_databases(parser)
    add_json(parser)


def _status(options: Options, out: Output) -> None:
    if options["all_databases"]:
        _print_all(options, out)
        return
    facts = current(database_alias(options), is_fresh=True)
    if out.is_json:
        out.json(document_of(facts, WORDS))
    else:
        _print(facts, out)


def _print(facts: Facts, out: Output) -> None:
    overview = facts.overview
    out.write_lines([*causes(facts, out), *tiles(overview, out), "", *out.table_lines(SHORT_TABLE, overview.queues)])


def causes(facts: Facts, out: Output, most: int = CAUSES_SHOWN) -> list[str]:
    """Return the lines with the first causes, the most important first, and an empty line behind them."""
    found, lines = causes_of(facts, WORDS), []
    for each in found[:most]:
        colour = "lost" if each.is_urgent else "paused"
        lines += [out.coloured(line, colour) for line in out.wrapped(f"! {in_line(each.sentence)}")]
    if len(found) > most:
        lines.append(f"and {len(found) - most} more: `pgqueue status --json` prints all")
    return [*lines, ""] if lines else []


def _print_all(options: Options, out: Output) -> None:
    """Print the figures of each database. Exit with 1 if one cannot be read, after the others are printed."""
    found: dict[str, Facts | str] = {}
    for alias in database_aliases(options):
        try:
            found[alias] = current(alias, is_fresh=True)
        except Error as error:
            found[alias] = " ".join(str(error).split())
    if out.is_json:
        documents = {
            alias: {"error": facts} if isinstance(facts, str) else document_of(facts, WORDS)
            for alias, facts in found.items()
        }
        out.json({"databases": documents})
    else:
        for number, (alias, facts) in enumerate(found.items()):
            out.write(f"{chr(10) if number else ''}Database {alias!r}")
            if isinstance(facts, str):
                out.write(f"cannot be read: {facts}")
            else:
                _print(facts, out)
    if any(isinstance(facts, str) for facts in found.values()):
        sys.exit(ExitCode.FAILED)


STATUS: Final = Subcommand(
    "status", "Print what is wrong, and the figures of all queues: jobs by state, rates, workers.", _add_status, _status
)


def _list(options: Options, out: Output) -> None:
    queues = stats.queues(database_alias(options))
    if out.is_json:
        out.json({"queues": queues})
        return
    out.table(COLUMNS, queues)
    out.summary(f"{counted(len(queues), 'queue')}.{unknown_note(queues)}")


QUEUES: Final = Subcommand("queues", "List queues: jobs by state, rates, workers and pauses.", add_reading, _list)
