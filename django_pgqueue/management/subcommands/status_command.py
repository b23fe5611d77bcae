"""`manage.py pgqueue status|queues`: the figures of all queues together, and the queues: jobs, rates, workers, pauses.

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
    if overview.unserved_queues:
        lines.append(("unserved", f"no worker serves {in_line(', '.join(overview.unserved_queues))}", "lost"))
    lines += [("not read", f"{name}: {in_line(reason)}", "lost") for name, reason in overview.unread.items()]
    return [f"{name:<12}{out.coloured(text, word) if word else text}" for name, text, word in lines]


def _add_status(parser: ArgumentParser) -> None:
    add_databases(parser)
    add_json(parser)


def _status(options: Options, out: Output) -> None:
    if options["all_databases"]:
        _print_all(options, out)
        return
    overview = stats.overview(database_alias(options))
    if out.is_json:
        out.json(overview)
    else:
        _print(overview, out)


def _print(overview: stats.Overview, out: Output) -> None:
    out.write_lines([*tiles(overview, out), "", *out.table_lines(SHORT_TABLE, overview.queues)])


def _print_all(options: Options, out: Output) -> None:
    """Print the figures of each database. Exit with 1 if one cannot be read, after the others are printed."""
    found: dict[str, stats.Overview | dict[str, str]] = {}
    for alias in database_aliases(options):
        try:
            found[alias] = stats.overview(alias)
        except Error as error:
            found[alias] = {"error": " ".join(str(error).split())}
    if out.is_json:
        out.json({"databases": found})
    else:
        for number, (alias, overview) in enumerate(found.items()):
            out.write(f"{chr(10) if number else ''}Database {alias!r}")
            if isinstance(overview, dict):
                out.write(f"cannot be read: {overview['error']}")
            else:
                _print(overview, out)
    if any(isinstance(overview, dict) for overview in found.values()):
        sys.exit(ExitCode.FAILED)


STATUS: Final = Subcommand(
    "status", "Print the figures of all queues: jobs by state, rates, workers.", _add_status, _status
)


def _list(options: Options, out: Output) -> None:
    queues = stats.queues(database_alias(options))
    if out.is_json:
        out.json({"queues": queues})
        return
    out.table(COLUMNS, queues)
    out.summary(f"{counted(len(queues), 'queue')}.{unknown_note(queues)}")


QUEUES: Final = Subcommand("queues", "List queues: jobs by state, rates, workers and pauses.", add_reading, _list)
