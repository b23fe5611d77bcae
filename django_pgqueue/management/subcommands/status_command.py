"""`manage.py pgqueue status`: the figures of all queues together, the queues, and the queues that nobody serves."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Final

from django.core.management.base import OutputWrapper

from django_pgqueue import stats
from django_pgqueue.display import visible

from .output import add_json, coloured, write_json
from .queues_command import queue_lines, rate, span
from .subcommand import Options, Subcommand, add_database, database_alias

HEADINGS: Final = frozenset({"queue", "due", "oldest due", "running", "dead", "in/min", "out/min", "slots", "pause"})
"""The columns of the table of queues that fit 80 characters."""


def tiles(overview: stats.Overview, stdout: OutputWrapper, options: Options) -> list[str]:
    """Return a line for each group of figures. Figures that need attention have a colour."""
    oldest = overview.oldest_due_seconds
    in_and_out = f"{rate(overview.enqueued_per_minute)} in"
    if overview.finished_per_minute is not None:
        in_and_out += f", {rate(overview.finished_per_minute)} out"
    lines = [
        ("due", f"{overview.due}{'' if oldest is None else f', the oldest for {span(oldest)}'}", ""),
        ("later", f"{overview.scheduled} scheduled, {overview.retrying} retrying", ""),
        ("paused", str(overview.paused), "paused" if overview.paused.value else ""),
        ("running", f"{overview.running}, and {overview.lost} lost", "lost" if overview.lost.value else ""),
        ("dead", f"{overview.dead}, {overview.dead_24h} of them in 24 h", "dead" if overview.dead_24h.value else ""),
        ("per minute", in_and_out, ""),
        ("workers", f"{overview.workers}, {overview.slots_busy} of {overview.slots_total} slots busy", ""),
    ]
    if overview.unserved_queues:
        lines.append(("unserved", f"no worker serves {visible(', '.join(overview.unserved_queues))}", "lost"))
    return [f"{name:<12}{coloured(stdout, options, text, word) if word else text}" for name, text, word in lines]


def table(queues: Sequence[stats.QueueStats], stdout: OutputWrapper, options: Options) -> list[str]:
    """Return the lines of a table of queues that fits most terminals."""
    return queue_lines(stdout, options, queues, HEADINGS)


def _add_arguments(parser: ArgumentParser) -> None:
    add_database(parser)
    add_json(parser)


def _run(options: Options, stdout: OutputWrapper, stderr: OutputWrapper) -> None:
    overview = stats.overview(database_alias(options))
    if options["json"]:
        write_json(stdout, overview)
        return
    for line in (*tiles(overview, stdout, options), "", *table(overview.queues, stdout, options)):
        stdout.write(line)


STATUS: Final = Subcommand(
    "status", "Print the figures of all queues: jobs by state, rates, workers.", _add_arguments, _run
)
