"""`manage.py pgqueue queues`: the queues with their jobs by state, their rates, their workers and their pauses.

`status` and `top` print some columns of the same table.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any, Final

from django_pgqueue import stats
from django_pgqueue.display import duration

from .output import Column, Output, add_json, counted, date_of
from .subcommand import Options, Subcommand, add_database, database_alias


def span(seconds: float | None) -> str:
    """Return a duration as text, or an empty string for None."""
    return "" if seconds is None else duration(timedelta(seconds=seconds), brief=True)


def rate(per_minute: float | None) -> str:
    """Return a rate as text, or an empty string for None."""
    return "" if per_minute is None else f"{per_minute:,.0f}"


def _pause(queue: stats.QueueStats) -> str:
    pause = queue.pause
    if pause is None:
        return ""
    by = f" by {pause.by}" if pause.by else ""
    until = f" until {date_of(pause.until)}" if pause.until else ""
    reason = f": {pause.reason}" if pause.reason else ""
    return f"paused{by}{until}{reason}"


COLUMNS: Final[Sequence[tuple[Column, Callable[[stats.QueueStats], Any]]]] = (
    (Column("queue", is_flexible=True), lambda queue: queue.name),
    (Column("due", is_number=True), lambda queue: queue.due),
    (Column("oldest due", is_number=True), lambda queue: span(queue.oldest_due_seconds)),
    (Column("scheduled", is_number=True), lambda queue: queue.scheduled),
    (Column("retrying", is_number=True), lambda queue: queue.retrying),
    (Column("paused", is_number=True), lambda queue: queue.paused),
    (Column("running", is_number=True), lambda queue: queue.running),
    (Column("lost", is_number=True), lambda queue: queue.lost),
    (Column("dead", is_number=True), lambda queue: queue.dead),
    (Column("in/min", is_number=True), lambda queue: rate(queue.enqueued_per_minute)),
    (Column("out/min", is_number=True), lambda queue: rate(queue.finished_per_minute)),
    (Column("workers", is_number=True), lambda queue: queue.workers),
    (Column("slots", is_number=True), lambda queue: f"{queue.slots_busy} of {queue.slots_total}"),
    (Column("pause", is_flexible=True), _pause),
)


def queue_lines(
    out: Output,
    options: Options,
    queues: Sequence[stats.QueueStats],
    headings: Collection[str] | None = None,
) -> list[str]:
    """Return the lines of the table of queues, with the columns that have these headings. Without headings: all."""
    shown = [(column, cell) for column, cell in COLUMNS if headings is None or column.heading in headings]
    rows = [[cell(queue) for _, cell in shown] for queue in queues]
    return out.table_lines([column for column, _ in shown], rows)


def _add_arguments(parser: ArgumentParser) -> None:
    add_database(parser)
    add_json(parser)


def _run(options: Options, out: Output) -> None:
    queues = stats.queues(database_alias(options))
    if options["json"]:
        out.json({"queues": queues})
        return
    out.write_lines(queue_lines(out, queues))
    out.summary(f"{counted(len(queues), 'queue')}.")


QUEUES: Final = Subcommand("queues", "List queues: jobs by state, rates, workers and pauses.", _add_arguments, _run)
