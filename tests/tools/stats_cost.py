"""Measure the functions of `stats` on a large queue: `python -m tests.tools.stats_cost`.

It makes a database of its own beside the one of the tests' settings, with 1,000,000 finished, 100,000 ready and 50,000
dead jobs and a rollup of a day, prints a table of milliseconds, and removes the database.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
ROUNDS: Final = 15
NAME: Final = "pgqueue_stats_cost"


def main() -> None:
    """Print the table."""
    django.setup()
    from django.db import connection

    from tests.tools.large_queue import large_queue

    with large_queue(connection, NAME):
        measure(connection)


def measure(connection: Any) -> None:
    """Print the milliseconds of SQL and of the whole call, for each function."""
    from django.utils import timezone

    from django_pgqueue import control, stats
    from django_pgqueue.models import Job

    last = Job.objects.filter(queue_name="queue3", priority=1).due().order_by("-run_after")[0]
    day = timezone.now() - timedelta(days=1)
    calls: dict[str, Callable[[], object]] = {
        "`overview()`": stats.overview,
        "`queues()`": stats.queues,
        "`tasks()`": stats.tasks,
        "`lanes()`": stats.lanes,
        "`workers()`": stats.workers,
        "`why()` of a running job": lambda: stats.why(Job.objects.running()[0]),
        "`why()` of the last due job of a queue": lambda: stats.why(last),
        "`throughput()` of an hour": stats.throughput,
        "`throughput()` of a day": lambda: stats.throughput(since=day),
    }
    sys.stdout.write("| function | SQL, ms | whole call, ms |\n|---|---|---|\n")
    for name, call in calls.items():
        print_row(connection, name, call)
    control.pause(task="shop.task7")
    print_row(connection, "`queues()` while a task is paused", stats.queues)


def print_row(connection: Any, name: str, call: Callable[[], object]) -> None:
    """Print the fastest of `ROUNDS` calls, because other programs may use the machine."""
    from tests.tools.sql_time import sql_time

    found = [sql_time(connection, call) for _ in range(ROUNDS)]
    sql_ms, call_ms = min(1000 * one.sql_seconds for one in found), min(1000 * one.seconds for one in found)
    sys.stdout.write(f"| {name} | {sql_ms:.1f} | {call_ms:.1f} |\n")


if __name__ == "__main__":
    main()
