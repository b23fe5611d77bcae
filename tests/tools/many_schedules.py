"""Measure how many schedules one worker fires: `python -m tests.tools.many_schedules [--schedules 1000]`.

The program starts a private server with this many schedules of one interval, and one worker, whose first rounds are
not counted. It prints a row: ticks fired in each second, how late they were, and the processor time of the worker and
of the server. The last column is how long a lost execution waited for its rescue, because maintenance and schedules
share a connection. Without `--run-jobs`, the worker does not serve the queue of the jobs, so only the schedules cost
time.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from tests.process.conftest import short_path
from tests.process.harness import descendants
from tests.process.server import Server
from tests.tools.many_workers import SERVER, TICKS, own_ticks, scalar, server_cpu_seconds

FIRST_SECONDS: Final = 36.0
"""Time until the worker has started, fired the ticks that were due then, and rescues. It waits for two heartbeats."""
SCHEDULES: Final = """
INSERT INTO pgqueue_schedule (name, task_name, arguments, expression, queue_name, next_run_at)
SELECT 'schedule-' || n, 'tests.app.tasks.noop', '{"args": [], "kwargs": {}}', %s, 'scheduled',
       date_trunc('second', statement_timestamp() + interval '4 s')
FROM generate_series(1, %s) AS n
"""
FIRED: Final = """
SELECT count(*), percentile_cont(ARRAY[0.5, 0.99, 1]) WITHIN GROUP (ORDER BY extract(epoch FROM fired_at - tick_at))
FROM pgqueue_schedulerun
WHERE fired_at >= to_timestamp(%s) AND fired_at < to_timestamp(%s)
"""
LOST: Final = """
WITH job AS (
    INSERT INTO pgqueue_job (task_name, queue_name, arguments, state, attempt, worker_id, execution_id)
    VALUES (
        'tests.app.tasks.noop', 'lost', '{"args": [], "kwargs": {}}', 'running', 1, 1000000,
        nextval('pgqueue_execution_id_seq')
    )
    RETURNING id, execution_id, worker_id
)
INSERT INTO pgqueue_execution (id, job_id, attempt, worker_id, claimed_at, lease_expires_at)
SELECT execution_id, id, 1, worker_id, statement_timestamp() - interval '1 h', statement_timestamp() FROM job
RETURNING id
"""
RESCUED: Final = """
SELECT extract(epoch FROM finished_at - lease_expires_at)::float8 FROM pgqueue_execution WHERE id = %s
"""
SLOWEST: Final = """
SELECT calls, round(total_exec_time) AS ms, round((total_exec_time / calls)::numeric, 3) AS mean, left(query, 60)
FROM pg_stat_statements ORDER BY total_exec_time DESC LIMIT 6
"""


def main() -> None:
    """Print one row for each number of schedules."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", default="1000", help="numbers of schedules, by commas")
    parser.add_argument("--every", default="every 1 second", help="their expression")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to measure")
    parser.add_argument("--run-jobs", action="store_true", help="let the worker run the jobs too")
    parser.add_argument("--workers", type=int, default=1, help="number of workers")
    parser.add_argument("--statements", action="store_true", help="print the statements that took most time")
    options = parser.parse_args()
    print("| schedules | fired/s | late p50 ms | p99 ms | most ms | worker CPU % | server CPU % | rescue s |")  # noqa: T201 -- a program
    print("|---|---|---|---|---|---|---|---|")  # noqa: T201 -- a program
    for number in options.schedules.split(","):
        print(measure(int(number), options), flush=True)  # noqa: T201 -- a program


def measure(schedules: int, options: argparse.Namespace) -> str:
    """Measure one number of schedules. Return the row."""
    with short_path() as home:
        server = Server(home, settings=SERVER)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            with server.connect() as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
                connection.execute(SCHEDULES, (options.every, schedules))
                workers += [start(server, home, options.run_jobs) for _ in range(options.workers)]
                time.sleep(FIRST_SECONDS)
                return observed(connection, server, workers, schedules, options)
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait(60)
            server.cluster.stop()


def start(server: Server, home: Path, runs_jobs: bool) -> subprocess.Popen[bytes]:
    """Start a worker with one process."""
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
        "PGQUEUE_TEST_LOG": "WARNING",
        "PGQUEUE_TEST_OPTIONS": "{}",
        "PGQUEUE_TEST_DATABASE": json.dumps(server.settings),
    }
    queue = "scheduled" if runs_jobs else "other"
    with (home / "worker.log").open("ab") as log:
        command = [sys.executable, "-m", "django", "runworker", "--queue", queue]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment)


def observed(
    connection: Any, server: Server, workers: list[subprocess.Popen[bytes]], schedules: int, options: argparse.Namespace
) -> str:
    """Observe the workers for some seconds. Return the row."""
    connection.execute("SELECT pg_stat_statements_reset()")
    worker_cpu, server_cpu = cpu_seconds(workers), server_cpu_seconds(server)
    began = scalar(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
    lost = scalar(connection, LOST)
    time.sleep(options.seconds)
    ended = scalar(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
    took = ended - began
    worker_cpu, server_cpu = cpu_seconds(workers) - worker_cpu, server_cpu_seconds(server) - server_cpu
    if options.statements:
        for row in connection.execute(SLOWEST).fetchall():
            print(*row, file=sys.stderr)  # noqa: T201 -- a program
    [(fired, late)] = connection.execute(FIRED, (began, ended)).fetchall()
    p50, p99, most = (f"{1000 * value:,.0f}" for value in late or (0, 0, 0))
    [(rescued,)] = connection.execute(RESCUED, (lost,)).fetchall()
    cpu = f"{100 * worker_cpu / took:.0f} | {100 * server_cpu / took:.0f} | {rescued or math.nan:.1f}"
    return f"| {schedules:,} | {fired / took:,.0f} | {p50} | {p99} | {most} | {cpu} |"


def cpu_seconds(workers: list[subprocess.Popen[bytes]]) -> float:
    """Return the processor time of the workers until now."""
    return sum(own_ticks(pid) for worker in workers for pid in (worker.pid, *descendants(worker.pid))) / TICKS


if __name__ == "__main__":
    main()
