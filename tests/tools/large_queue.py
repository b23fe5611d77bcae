"""A database with the queue of a large installation, for the programs that measure what reading it costs.

It has 1,000,000 finished, 100,000 ready and 50,000 dead jobs, the rollup of 7 days, and 20 workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from django.core.management import call_command

from django_pgqueue.lifecycle import rollups

JOB: Final = (
    "INSERT INTO pgqueue_job "
    "(task_name, queue_name, priority, arguments, state, attempt, enqueued_at, run_after, finished_at) "
)
JOB_THAT_RUNS: Final = JOB.replace("finished_at", "finished_at, execution_id, worker_id")
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
    f"{JOB_THAT_RUNS} SELECT 'shop.task' || n % 20, 'queue' || n % 5, 0, '{{}}', 'running', 1, {NOW}, {NOW}, NULL, "
    "nextval('pgqueue_execution_id_seq'), 1 + n % 20 "
    "FROM generate_series(1, 1000) AS n RETURNING id, execution_id, worker_id) "
    "INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, claimed_at, started_at, lease_expires_at) "
    f"SELECT execution_id, id, 1, worker_id, {NOW}, {NOW}, {NOW} + interval '60 s' FROM job",
    "workers": "INSERT INTO pgqueue_worker (id, hostname, pid, version, queue_names, concurrency) "
    "SELECT n, 'vm', n, '1', '', 50 FROM generate_series(1, 20) AS n",
    # 7 days of 20 tasks: 2 hours by the minute, the others by the hour. Each task has failures in each minute, and 12
    # buckets in each histogram, with other counts each time. Workers append parts, which are merged below.
    "rollup": "INSERT INTO pgqueue_rollup "
    "(span, starts_at, queue_name, task_name, exception_class, succeeded, retried, "
    "wait_buckets, wait_counts, run_buckets, run_counts) "
    f"SELECT 'part', date_trunc('minute', {NOW}) "
    "- CASE WHEN n < 120 THEN n * interval '1 min' ELSE (n - 117) * interval '1 h' END, "
    "'queue' || task % 5, 'shop.task' || task, failure.class, "
    "CASE failure.class WHEN '' THEN 60 ELSE 0 END, CASE failure.class WHEN '' THEN 0 ELSE 1 END, "
    "failure.buckets, failure.counts, failure.buckets, failure.counts "
    "FROM generate_series(0, 285) AS n, generate_series(0, 19) AS task, LATERAL ("
    "SELECT '' AS class, array_agg(20 + task % 9 + i) AS buckets, array_agg(1 + (n * 7 + task * 5 + i * i) % 9) AS "
    "counts FROM generate_series(0, 11) AS i UNION ALL SELECT 'ValueError', '{}', '{}') AS failure",
}
EXECUTIONS: Final = (
    # Half of the dead jobs of each task died of one error, and the other half of another one.
    "INSERT INTO pgqueue_execution (job_id, attempt, worker_id, outcome, claimed_at, started_at, finished_at, "
    "lease_expires_at, exception_class, error, traceback) "
    "SELECT id, attempt, 1, CASE state WHEN 'dead' THEN 'failed' ELSE 'succeeded' END, finished_at, finished_at, "
    "finished_at, finished_at, CASE WHEN state <> 'dead' THEN '' WHEN id % 40 < 20 THEN 'builtins.ValueError' "
    "ELSE 'builtins.OSError' END, CASE state WHEN 'dead' THEN 'invalid value ' || id ELSE '' END, "
    "CASE state WHEN 'dead' THEN repeat('  File \"/srv/shop.py\", line 12, in charge' || chr(10), 10) ELSE '' END "
    "FROM pgqueue_job WHERE finished_at IS NOT NULL ORDER BY finished_at"
)
"""The last execution of each finished job, with a traceback of 500 bytes if the job is dead."""


@contextmanager
def large_queue(connection: Any, name: str, more: Iterable[str] = ()) -> Iterator[None]:
    """Make a database beside the one of this connection, connect to it, and remove it at the end.

    Args:
        connection: Django's connection.
        name: Name of the new database.
        more: Statements that run after `FILL`.
    """
    settings = connection.settings_dict
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name}")
    connection.close()
    former, settings["NAME"] = settings["NAME"], name
    try:
        call_command("migrate", verbosity=0)
        with connection.cursor() as cursor:
            for statement in (*FILL.values(), *more):
                cursor.execute(statement)
            while rollups.merge_rollups(connection):
                pass
            cursor.execute("VACUUM ANALYZE")
        yield
    finally:
        connection.close()
        settings["NAME"] = former
        with connection.cursor() as cursor:
            cursor.execute(f"DROP DATABASE {name}")
