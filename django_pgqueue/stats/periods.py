"""Sum up the attempts of a period: how many ended in which way, how long they took, and why they failed.

Worker processes count the attempts (`worker.completion.attempt_counter`) and write the counts into `pgqueue_rollup`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import timezone

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.ground import histogram
from django_pgqueue.stats import rollup_queries
from django_pgqueue.tasks import registry

from .alias import connection_of
from .figures import AttemptCounts, Durations, FailureCount, Point, TaskThroughput, Throughput

FAILURES_LIMIT: Final = 100
MINUTE: Final = timedelta(minutes=1)
SPANS_OF_TOTALS: Final = ["part", "minute_total", "hour_total"]
"""The rows of the rollup that have all attempts, in one row for each ended minute or hour."""
SPANS_OF_GROUPS: Final = ["part", "minute", "hour"]
"""The rows of the rollup that have all attempts, by queue, task and exception class."""
COUNTS: Final = tuple(field.name for field in fields(AttemptCounts))
Slice = tuple[datetime, int]
"""The beginning and the seconds of a point."""
Histograms = Mapping[tuple[Slice, str], Counter[int]]
TASKS_LIMIT: Final = 1000


def throughput(
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    queue: str | None = None,
    task: Any = None,
    hourly: bool = False,
    with_failures: bool = True,
    database: str | None = None,
) -> Throughput:
    """Return how many attempts ended in a period, how long they waited and ran, and why they failed.

    Workers write the counts every 10 s, so those of the last seconds are missing. Counts older than two hours are
    kept by the hour: an hour belongs to the period if it begins in it. Runs two to four read-only statements.

    Args:
        since: Beginning of the period, an aware datetime. By default an hour before `until`.
        until: End of the period, an aware datetime. By default now.
        queue: Only this queue.
        task: Only this task: a task, or its name. The jobs under its former names count too.
        hourly: Whether every point is an hour, also where the counts of minutes exist.
        with_failures: Whether to read `failures`, with one statement more.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Raises:
        ValueError: A datetime has no time zone, or `since` is not before `until`.

    Example:
        >>> last_hour = stats.throughput(task="shop.tasks.charge")
        >>> last_hour.counts.failed, last_hour.run.p95
        (3, 0.84)
    """
    connection = connection_of(database)
    since, until = period(connection, since, until)
    params = {**_params(since, until, queue, task), "hourly": hourly}
    histograms = _histograms(connection, params)
    points, totals = _points(connection, params, histograms)
    failures_by_class = _failures(connection, params) if with_failures else ()
    return Throughput(
        since=since,
        until=until,
        points=points,
        counts=counts_of(totals),
        wait=durations_of(_together(histograms, "wait"), totals["wait_seconds"]),
        run=durations_of(_together(histograms, "run"), totals["run_seconds"]),
        failures=failures_by_class,
    )


def failures(
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    queue: str | None = None,
    task: Any = None,
    database: str | None = None,
) -> tuple[FailureCount, ...]:
    """Return the field `failures` of `throughput()`, with one or two statements.

    Args:
        since: Beginning of the period, an aware datetime. By default an hour before `until`.
        until: End of the period, an aware datetime. By default now.
        queue: Only this queue.
        task: Only this task: a task, or its name. The jobs under its former names count too.
        database: Alias of the database of the jobs. By default the database routers choose it.

    Raises:
        ValueError: A datetime has no time zone, or `since` is not before `until`.
    """
    connection = connection_of(database)
    return _failures(connection, _params(*period(connection, since, until), queue, task))


def _params(since: datetime, until: datetime, queue: str | None, task: Any) -> dict[str, Any]:
    name = getattr(task, "name", task)
    task_names = None if name is None else list(registry.names_of(name))
    spans = SPANS_OF_TOTALS if queue is None and name is None else SPANS_OF_GROUPS
    return {"since": since, "until": until, "queue_name": queue, "task_names": task_names, "spans": spans}


def _failures(connection: Connection, params: Mapping[str, Any]) -> tuple[FailureCount, ...]:
    rows = execute(connection, rollup_queries.FAILURES_BY_CLASS, {**params, "limit": FAILURES_LIMIT})
    return tuple(
        FailureCount(task_name=task_name, exception_class=name, retried=retried, dead=dead, last_at=last_at)
        for task_name, name, retried, dead, last_at in rows
    )


def period(connection: Connection, since: datetime | None, until: datetime | None) -> tuple[datetime, datetime]:
    """Return the beginning and the end of a period, widened to whole minutes. By default it is the last hour."""
    _check_aware(since=since, until=until)
    until = execute(connection, rollup_queries.DATABASE_TIME, {})[0][0] if until is None else until
    since = until - timedelta(hours=1) if since is None else since
    if since >= until:
        raise ValueError(f"since must be before until, got {since} and {until}.")
    return _minute(since), _minute(until + MINUTE - timedelta(microseconds=1))


def _check_aware(**values: datetime | None) -> None:
    for name, value in values.items():
        if value is not None and not timezone.is_aware(value):
            raise ValueError(f"{name} needs a time zone, got {value!r}: pass an aware datetime.")


def _minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0)


def _histograms(connection: Connection, params: Mapping[str, Any]) -> Histograms:
    return {
        ((starts_at, seconds), kind): Counter(dict(zip(buckets, counts, strict=True)))
        for starts_at, seconds, kind, buckets, counts in execute(connection, rollup_queries.DURATIONS_OVER_TIME, params)
    }


def _together(histograms: Histograms, kind: str) -> Counter[int]:
    together: Counter[int] = Counter()
    for (_, of_kind), counts in histograms.items():
        if of_kind == kind:
            together.update(counts)
    return together


def _points(
    connection: Connection, params: Mapping[str, Any], histograms: Histograms
) -> tuple[tuple[Point, ...], Counter[str]]:
    """Return the points of a period and the sums of their columns."""
    totals: Counter[str] = Counter()
    points = []
    for starts_at, seconds, *values in execute(connection, rollup_queries.COUNTS_OVER_TIME, params):
        row = dict(zip((*COUNTS, "wait_seconds", "run_seconds"), values, strict=True))
        totals.update(row)
        empty: Counter[int] = Counter()
        wait = histograms.get(((starts_at, seconds), "wait"), empty)
        run = histograms.get(((starts_at, seconds), "run"), empty)
        points.append(
            Point(
                starts_at=starts_at,
                seconds=seconds,
                counts=counts_of(row),
                wait=durations_of(wait, row["wait_seconds"]),
                run=durations_of(run, row["run_seconds"]),
            )
        )
    return tuple(points), totals


def counts_of(row: Mapping[str, Any]) -> AttemptCounts:
    """Return the counts in the columns of a statement."""
    return AttemptCounts(**{name: int(row.get(name, 0)) for name in COUNTS})


def durations_of(counts: Counter[int], seconds: float) -> Durations:
    """Return the percentiles of a histogram. `seconds` is the sum of the durations."""
    count = counts.total()
    if not count:
        return Durations()
    p50, p95, p99 = (histogram.percentile(counts, fraction) for fraction in (0.5, 0.95, 0.99))
    return Durations(count=count, mean=seconds / count, p50=p50, p95=p95, p99=p99)


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
