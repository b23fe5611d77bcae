"""Measure one history beside the other: sizes, the rates of a worker and of enqueues, the SQL of the console."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from django.db import connection

from tests.tools.long_history.place import LONG, SMALL, run, scalar, use_database, worker

ROUNDS: Final = 3
JOBS: Final = 10_000
"""Jobs of a drain and of a bulk enqueue."""
SINGLES: Final = 500
MOVED: Final = 2_000
"""Jobs of a prune and of an archive. The small history has enough old jobs for all rounds."""
WAIT_SECONDS: Final = 120.0
NAMES: Final = (SMALL, LONG)
SIZES: Final = """
SELECT relname, relkind, pg_relation_size(oid) FROM pg_class
WHERE relname LIKE 'pgqueue_job%' OR relname LIKE 'pgqueue_execution%' ORDER BY relkind DESC, relname
"""
DRAINED: Final = """
SELECT count(*) / extract(epoch FROM max(finished_at) - min(claimed_at))::float8
FROM pgqueue_execution WHERE id > %s AND finished_at IS NOT NULL
"""
UNFINISHED: Final = """
SELECT EXISTS (SELECT FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL AND queue_name = 'default')
    OR EXISTS (SELECT FROM pgqueue_execution WHERE finished_at IS NULL)
"""
"""`limit_key IS NULL` is in the predicate of the ready index. Without it, the query reads the history for seconds."""
Measured = dict[str, dict[str, list[float]]]
"""The figures of each database, by name of the figure: one for each round."""


def measure(cluster: Any, home: Path, parts: list[str]) -> None:
    """Print the tables of these parts."""
    for part in parts:
        PARTS[part](cluster, home)


def sizes(cluster: Any, _home: Path) -> None:
    """Print the sizes of the tables and indexes of jobs and executions."""
    found = {}
    for name in NAMES:
        use_database(cluster, name)
        found[name] = {relation: size for relation, kind, size in run(SIZES) if kind in "ri"}
    report("| relation | small | long |\n|---|---|---|")
    for relation, size in found[LONG].items():
        report(f"| `{relation}` | {megabytes(found[SMALL].get(relation, 0))} | {megabytes(size)} |")


def rates(cluster: Any, home: Path) -> None:
    """Print the rates of enqueues and of a worker."""
    from tests.app.tasks import noop

    calls: list[Any] = [((), {})] * JOBS
    in_turns(
        cluster,
        {
            "single enqueues/s": lambda: rate_of(SINGLES, lambda: [noop.enqueue() for _ in range(SINGLES)]),
            "jobs/s of bulk enqueues": lambda: rate_of(JOBS, lambda: noop.enqueue_many(calls, returning=False)),
            "jobs/s of a worker": lambda: drain(home),
        },
    )


def drain(home: Path) -> float:
    """Let a worker run all due jobs. Return the jobs per second, from the first claim to the last completion."""
    last = scalar("SELECT coalesce(max(id), 0) FROM pgqueue_execution")
    with worker(home / "worker.log", "--queue", "default"):
        until = time.monotonic() + WAIT_SECONDS
        while scalar(UNFINISHED):
            if time.monotonic() > until:
                raise TimeoutError("the worker has not run all jobs")
            time.sleep(0.05)
    return float(scalar(DRAINED, [last]))


def moves(cluster: Any, _home: Path) -> None:
    """Print the rates of archiving and of pruning."""
    in_turns(cluster, {"jobs/s archived to the table": archive, "jobs/s pruned": prune})


def prune() -> float:
    """Prune the oldest jobs as a worker does. Return the jobs per second."""
    from django_pgqueue.db import engine_connection
    from django_pgqueue.lifecycle import pruning
    from django_pgqueue.lifecycle.pruning import FIRST_FINISHED
    from django_pgqueue.states import State

    with engine_connection.connect("default", "test") as engine:

        def remove() -> None:
            after, removed = FIRST_FINISHED, 0
            while removed < MOVED:
                pruned = pruning.prune(engine, State.SUCCEEDED, 86_400.0, after=after)
                if not pruned.removed:
                    raise RuntimeError("the history has no more old jobs: fill it again")
                after, removed = pruned.last, removed + pruned.removed

        return rate_of(MOVED, remove)


def archive() -> float:
    """Archive the oldest jobs. Return the jobs per second."""
    from django_pgqueue.history.finished_pages import Choice
    from django_pgqueue.lifecycle import history as lifecycle_history
    from django_pgqueue.states import State

    pages = Choice(states=(State.SUCCEEDED,), older_than_seconds=86_400.0).pages(connection, 1000)

    def move() -> None:
        moved = 0
        while moved < MOVED:
            moved += len(lifecycle_history.archive(connection, next(pages)))

    return rate_of(MOVED, move)


def stats(cluster: Any, _home: Path) -> None:
    """Print the SQL of the functions of `stats`, in milliseconds."""
    from django_pgqueue import stats as figures
    from tests.tools.sql_time import sql_time

    calls: dict[str, Callable[[], object]] = {
        "`overview()`": figures.overview,
        "`queues()`": figures.queues,
        "`tasks()`": figures.tasks,
        "`lanes()`": figures.lanes,
        "`throughput()` of a day": lambda: figures.throughput(since=now() - timedelta(days=1)),
    }

    def milliseconds(call: Callable[[], object]) -> Callable[[], float]:
        return lambda: 1000 * sql_time(connection, call).sql_seconds

    in_turns(cluster, {f"ms of {name}": milliseconds(call) for name, call in calls.items()}, rounds=7)


def now() -> Any:
    """Return the current time."""
    from django.utils import timezone

    return timezone.now()


def console(cluster: Any, _home: Path) -> None:
    """Print the slowest address of each page of the console, in both databases."""
    from django.contrib.auth.models import User

    from tests.tools import console_cost

    found: dict[str, dict[str, console_cost.Cost]] = {}
    for name in NAMES:
        use_database(cluster, name)
        User.objects.filter(username="root").delete()
        found[name] = {cost.url: cost for cost in console_cost.measure(connection)}
    routes: dict[str, console_cost.Cost] = {}
    for cost in sorted(found[LONG].values(), key=lambda cost: -cost.sql_ms):
        routes.setdefault(cost.route, cost)
    report("| page | slowest address | small, ms | long, ms |\n|---|---|---|---|")
    for cost in routes.values():
        small = max((one.sql_ms for one in found[SMALL].values() if one.route == cost.route), default=0.0)
        report(f"| `{cost.route}` | `{cost.url.partition('?')[2]}` | {small:.1f} | {cost.sql_ms:.1f} |")
    for cost in found[LONG].values():
        if cost.sql_ms > console_cost.BOUND_MS:
            sys.stderr.write(f"\n{cost.url}: {cost.slowest[1]:.1f} ms\n{cost.slowest[0]}\n")


def in_turns(cluster: Any, figures: dict[str, Callable[[], float]], rounds: int = ROUNDS) -> None:
    """Measure each figure in both databases in turns. Print the medians, and the share of the small one's rate."""
    found: Measured = {name: {figure: [] for figure in figures} for name in NAMES}
    for number in range(rounds + 1):
        for name in NAMES:
            use_database(cluster, name)
            for figure, call in figures.items():
                value = call()
                if number:  # the first round fills the caches
                    found[name][figure].append(value)
    report("| figure | small | long | long / small |\n|---|---|---|---|")
    for figure in figures:
        small, long = (statistics.median(found[name][figure]) for name in NAMES)
        report(f"| {figure} | {small:,.1f} | {long:,.1f} | {long / small:.2f} |")


def rate_of(number: int, call: Callable[[], object]) -> float:
    """Run a function. Return how many of its items it does in a second."""
    began = time.perf_counter()
    call()
    return number / (time.perf_counter() - began)


def megabytes(size: int) -> str:
    """Return a size in MB, or in kB if it is small."""
    return f"{size / 2**20:,.1f} MB" if size >= 2**20 else f"{size / 1024:,.0f} kB"


def report(line: str) -> None:
    """Print lines of a table."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


PARTS: Final = {"sizes": sizes, "rates": rates, "moves": moves, "stats": stats, "console": console}
