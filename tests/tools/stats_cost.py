"""Measure the functions of `stats` on a large queue: `python -m tests.tools.stats_cost`.

It makes a database of its own beside the one of the tests' settings, with 1,000,000 finished, 100,000 ready and 50,000
dead jobs and a rollup of a day, prints a table of milliseconds, and removes the database.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
ROUNDS: Final = 15
NAME: Final = "pgqueue_stats_cost"
JOB: Final = (
    "INSERT INTO pgqueue_job "
    "(task_name, queue_name, priority, arguments, state, attempt, enqueued_at, run_after, finished_at) "
)
NOW: Final = "statement_timestamp()"
FILL: Final = {
    "finished jobs": f"{JOB} SELECT 'shop.task' || n % 20, 'queue' || n % 5, 0, '{{}}', 'succeeded', 1, "
    f"{NOW} - n * interval '80 ms', {NOW} - n * interval '80 ms', {NOW} - n * interval '80 ms' "
    "FROM generate_series(1000000, 1, -1) AS n",
    "dead jobs": f"{JOB} SELECT 'shop.task' || n % 20, 'queue' || n % 5, 0, '{{}}', 'dead', 10, "
    f"{NOW} - n * interval '4 s', {NOW} - n * interval '4 s', {NOW} - n * interval '4 s' "
    "FROM generate_series(50000, 1, -1) AS n",
    # Of the ready jobs, 70,000 are due, 20,000 scheduled, and 10,000 wait for another attempt.
    "ready jobs": f"{JOB} SELECT 'shop.task' || n % 20, 'queue' || n % 5, n % 2, '{{}}', 'ready', "
    f"CASE WHEN n > 90000 THEN 1 ELSE 0 END, {NOW} - n * interval '5 ms', "
    f"{NOW} + CASE WHEN n > 70000 THEN interval '1 h' ELSE interval '0' END "
    "- n * interval '5 ms', NULL FROM generate_series(100000, 1, -1) AS n",
    "running jobs": "WITH job AS ("
    f"{JOB} SELECT 'shop.task' || n % 20, 'queue' || n % 5, 0, '{{}}', 'running', 1, {NOW}, {NOW}, NULL "
    "FROM generate_series(1, 1000) AS n RETURNING id) "
    "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at) "
    f"SELECT id, 1, 1 + id % 20, {NOW}, {NOW}, {NOW} + interval '60 s' FROM job",
    "workers": "INSERT INTO pgqueue_worker (id, hostname, pid, version, queue_names, concurrency) "
    "SELECT n, 'vm', n, '1', '', 50 FROM generate_series(1, 20) AS n",
    # A day of 20 tasks: 2 hours by the minute, 22 by the hour, with 12 buckets in each histogram.
    "rollup": "INSERT INTO pgqueue_rollup "
    "(span, starts_at, queue_name, task_name, exception_class, succeeded, retried, "
    "wait_buckets, wait_counts, run_buckets, run_counts) "
    "SELECT CASE WHEN n < 120 THEN 'minute' ELSE 'hour' END, "
    f"date_trunc('minute', {NOW}) - CASE WHEN n < 120 THEN n * interval '1 min' ELSE (n - 117) * interval '1 h' END, "
    "'queue' || task % 5, 'shop.task' || task, CASE WHEN failed THEN 'ValueError' ELSE '' END, "
    "CASE WHEN failed THEN 0 ELSE 50 END, CASE WHEN failed THEN 1 ELSE 0 END, "
    "array(SELECT generate_series(20, 31)), array_fill(4, ARRAY[12]), "
    "array(SELECT generate_series(30, 41)), array_fill(4, ARRAY[12]) "
    "FROM generate_series(0, 141) AS n, generate_series(0, 19) AS task, unnest(ARRAY[true, false]) AS failed",
}


def main() -> None:
    """Print the table."""
    django.setup()
    from django.core.management import call_command
    from django.db import connection

    settings = connection.settings_dict
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {NAME}")
        cursor.execute(f"CREATE DATABASE {NAME}")
    connection.close()
    name, settings["NAME"] = settings["NAME"], NAME
    try:
        call_command("migrate", verbosity=0)
        with connection.cursor() as cursor:
            for statement in FILL.values():
                cursor.execute(statement)
            cursor.execute("VACUUM ANALYZE")
        measure(connection)
    finally:
        connection.close()
        settings["NAME"] = name
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {NAME}")


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
    of_sql: list[float] = []
    of_call: list[float] = []
    for _ in range(ROUNDS):
        spent: list[float] = []

        def timed(execute: Any, *arguments: Any, spent: list[float] = spent) -> Any:
            began = time.perf_counter()
            try:
                return execute(*arguments)
            finally:
                spent.append(time.perf_counter() - began)

        began = time.perf_counter()
        with connection.execute_wrapper(timed):
            call()
        of_call.append(time.perf_counter() - began)
        of_sql.append(sum(spent))
    sql_ms, call_ms = 1000 * min(of_sql), 1000 * min(of_call)
    sys.stdout.write(f"| {name} | {sql_ms:.1f} | {call_ms:.1f} |\n")


if __name__ == "__main__":
    main()
