"""`manage.py pgqueue queues`: the queues with their jobs by state, their rates, their workers and their pauses.

`status` and `top` print some columns of the same table.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from django_pgqueue import stats
from django_pgqueue.display import duration

from .output import Column, Output, counted, date_of
from .subcommand import Options, Subcommand, add_reading, database_alias


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


COLUMNS: Final = (
    Column("queue", lambda queue: queue.name, is_flexible=True),
    Column("due", lambda queue: queue.due, is_number=True),
    Column("oldest due", lambda queue: span(queue.oldest_due_seconds), is_number=True),
    Column("scheduled", lambda queue: queue.scheduled, is_number=True),
    Column("retrying", lambda queue: queue.retrying, is_number=True),
    Column("paused", lambda queue: queue.paused, is_number=True),
    Column("running", lambda queue: queue.running, is_number=True),
    Column("lost", lambda queue: queue.lost, is_number=True),
    Column("dead", lambda queue: queue.dead, is_number=True),
    Column("in/min", lambda queue: rate(queue.enqueued_per_minute), is_number=True),
    Column("out/min", lambda queue: rate(queue.finished_per_minute), is_number=True),
    Column("workers", lambda queue: queue.workers, is_number=True),
    Column("slots", lambda queue: f"{queue.slots_busy} of {queue.slots_total}", is_number=True),
    Column("pause", _pause, is_flexible=True),
)


def _run(options: Options, out: Output) -> None:
    queues = stats.queues(database_alias(options))
    if out.is_json:
        out.json({"queues": queues})
        return
    out.table(COLUMNS, queues)
    out.summary(f"{counted(len(queues), 'queue')}.")


QUEUES: Final = Subcommand("queues", "List queues: jobs by state, rates, workers and pauses.", add_reading, _run)
