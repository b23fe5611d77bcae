"""`manage.py pgqueue status`: the figures of all queues together, the queues, and the queues that nobody serves."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Final

from django.db import Error

from django_pgqueue import stats
from django_pgqueue.display import in_line

from .output import Output
from .queues_command import COLUMNS, rate, span
from .subcommand import ExitCode, Options, Subcommand, add_databases, add_json, database_alias, database_aliases

HEADINGS: Final = frozenset({"queue", "due", "oldest due", "running", "dead", "in/min", "out/min", "slots", "pause"})
SHORT_TABLE: Final = [column for column in COLUMNS if column.heading in HEADINGS]
"""The columns of the table of queues that fit 80 characters."""


def tiles(overview: stats.Overview, out: Output) -> list[str]:
    """Return a line for each group of figures. Figures that need attention have a colour."""
    oldest = overview.oldest_due_seconds
    in_and_out = f"{rate(overview.enqueued_per_minute)} in"
    if overview.finished_per_minute is not None:
        in_and_out += f", {rate(overview.finished_per_minute)} out"
    suspended = f"; steps suspend {overview.suspended} of them" if overview.suspended.value else ""
    lines = [
        ("due", f"{overview.due}{'' if oldest is None else f', the oldest for {span(oldest)}'}", ""),
        ("later", f"{overview.scheduled} scheduled, {overview.retrying} retrying{suspended}", ""),
        *([("waiting", f"{overview.waiting} for other jobs", "")] if overview.waiting.value else []),
        ("paused", str(overview.paused), "paused" if overview.paused.value else ""),
        ("running", f"{overview.running}, and {overview.lost} lost", "lost" if overview.lost.value else ""),
        ("dead", f"{overview.dead}, {overview.dead_24h} of them in 24 h", "dead" if overview.dead_24h.value else ""),
        ("per minute", in_and_out, ""),
        ("workers", f"{overview.workers}, {overview.slots_busy} of {overview.slots_total} slots busy", ""),
    ]
    if overview.unserved_queues:
        lines.append(("unserved", f"no worker serves {in_line(', '.join(overview.unserved_queues))}", "lost"))
    lines += [("not read", f"{name}: {in_line(reason)}", "lost") for name, reason in overview.unread.items()]
    return [f"{name:<12}{out.coloured(text, word) if word else text}" for name, text, word in lines]


def _add_arguments(parser: ArgumentParser) -> None:
    add_databases(parser)
    add_json(parser)


def _run(options: Options, out: Output) -> None:
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
    "status", "Print the figures of all queues: jobs by state, rates, workers.", _add_arguments, _run
)
