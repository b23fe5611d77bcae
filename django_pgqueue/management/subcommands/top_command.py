"""`manage.py pgqueue top`: show the status, the queues and the longest running jobs, and draw them again and again.

It draws on the terminal's alternate screen, so the lines above the command are there again when it ends.
"""

from __future__ import annotations

import shutil
import signal
import time
from argparse import ArgumentParser
from datetime import UTC, datetime
from typing import Final

from django.db import InterfaceError, OperationalError, connections

from django_pgqueue.display import visible
from django_pgqueue.job_search import Filters, find
from django_pgqueue.management.standard_streams import is_terminal
from django_pgqueue.stats.causes.current import current

from .job_rows import read_rows
from .jobs_command import IN_SHORT, WHEN
from .output import Output, date_of
from .status_command import SHORT_TABLE, causes, tiles
from .subcommand import Options, Subcommand, UsageError, add_database, database_alias

LONGEST: Final = 5
"""Running jobs that are shown."""
CAUSES_SHOWN: Final = 3
MIN_SECONDS: Final = 0.1
MAX_SECONDS: Final = 3600.0
ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Switch to the alternate screen, hide the cursor, and cut long lines instead of wrapping them."""
LEAVE: Final = "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME: Final = "\x1b[H"
TO_END_OF_LINE: Final = "\x1b[K"
TO_END_OF_SCREEN: Final = "\x1b[J"


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=float, default=2.0, metavar="SECONDS", help="Time between two drawings. Default: 2."
    )
    add_database(parser)


def _run(options: Options, out: Output) -> None:
    alias, seconds = database_alias(options), options["interval"]
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise UsageError(
            f"Invalid --interval {seconds:g}: use a number of seconds from {MIN_SECONDS:g} to {MAX_SECONDS:g}."
        )
    if not is_terminal(out.stdout):
        raise UsageError("`top` needs a terminal. Use `pgqueue status`, which prints the same figures once.")
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)  # otherwise it would leave the screen as it is
    try:
        out.stdout.write(ENTER, ending="")
        while True:
            _draw(_lines(alias, options, out), out)
            time.sleep(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, previous)
        out.stdout.write(LEAVE, ending="")
        out.stdout.flush()


def _draw(lines: list[str], out: Output) -> None:
    """Write the lines over the previous ones: a screen that is cleared first would flicker."""
    text = "\r\n".join(f"{line}{TO_END_OF_LINE}" for line in lines[: shutil.get_terminal_size().lines])
    out.stdout.write(f"{HOME}{text}{TO_END_OF_SCREEN}", ending="")
    out.stdout.flush()


def _lines(alias: str, options: Options, out: Output) -> list[str]:
    """Return the lines to draw. If the database cannot be reached, they say so, and the next drawing tries again."""
    heading = f"{date_of(datetime.now(UTC))}  database {alias}, every {options['interval']:g} s, Ctrl-C ends"
    try:
        lines = _figures(alias, out)
    except (InterfaceError, OperationalError) as error:
        connections[alias].close()
        lines = [visible(line) for line in str(error).splitlines()]
    return [out.coloured(heading), *lines]


def _figures(alias: str, out: Output) -> list[str]:
    facts = current(alias, is_fresh=True)
    overview = facts.overview
    rows = read_rows(alias, find(Filters(alias, ("running",)), LONGEST).ids)
    running = ["", *out.table_lines((*IN_SHORT, WHEN), rows)] if rows else []
    first = [*causes(facts, out, CAUSES_SHOWN), *tiles(overview, out)]
    # The longest queues come first, and there are as many as leave room for the running jobs.
    room = max(shutil.get_terminal_size().lines - len(first) - len(running) - 3, 1)
    queues = sorted(overview.queues, key=lambda queue: (-queue.due.value, -queue.running.value, queue.name))
    return [*first, "", *out.table_lines(SHORT_TABLE, queues[:room]), *running]


TOP: Final = Subcommand("top", "Show the status on a terminal, every two seconds.", _add_arguments, _run)
