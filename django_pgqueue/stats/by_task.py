"""Sum up the attempts of a period by task. The admin's overview and the page of tasks call this module."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import datetime
from typing import Final

from django_pgqueue.db.statements import execute

from . import rollup_queries
from .alias import connection_of
from .figures import TaskThroughput
from .history import COUNTS, counts_of, durations_of, period

TASKS_LIMIT: Final = 1000


def throughput_by_task(
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    queue: str | None = None,
    waits: bool = True,
    database: str | None = None,
) -> list[TaskThroughput]:
    """Return how many attempts of each task ended in a period, and how long they waited and ran.

    The counts are those of `throughput()`. Runs two or three read-only statements.

    Args:
        since: Beginning of the period, an aware datetime. By default an hour before `until`.
        until: End of the period, an aware datetime. By default now.
        queue: Only this queue.
        waits: Whether to read the waits. Without them, `wait` is empty, and the call takes half the time.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Returns:
        The tasks with the most attempts first, at most 1,000.

    Raises:
        ValueError: A datetime has no time zone, or `since` is not before `until`.

    Example:
        >>> slowest = max(stats.throughput_by_task(), key=lambda task: task.run.p95 or 0)
    """
    connection = connection_of(database)
    since, until = period(connection, since, until)
    params = {"since": since, "until": until, "queue_name": queue, "waits": waits}
    histograms: defaultdict[tuple[str, str], Counter[int]] = defaultdict(Counter)
    for name, kind, bucket, count in execute(connection, rollup_queries.DURATIONS_BY_TASK, params):
        histograms[name, kind][bucket] += count
    found = []
    for name, *values in execute(connection, rollup_queries.COUNTS_BY_TASK, {**params, "limit": TASKS_LIMIT}):
        row = dict(zip((*COUNTS, "wait_seconds", "run_seconds"), values, strict=True))
        wait = durations_of(histograms[name, "wait"], row["wait_seconds"])
        run = durations_of(histograms[name, "run"], row["run_seconds"])
        found.append(TaskThroughput(name=name, counts=counts_of(row), wait=wait, run=run))
    return found
