"""Measure many worker processes on one server: `python -m tests.tools.many_workers [--processes 1,10,50,200]`.

For each number of processes, the program starts a private server with `max_connections = 700` and supervisors with up
to 10 processes each. It measures the start, idle workers, a steady load, the loss of all sessions and a crash of the
server. It prints two tables. Nothing else should run on the machine. It needs about 5 minutes, and 12 GB of memory for
200 processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from example_project.embedded.server import SETTINGS
from tests.process.conftest import short_path
from tests.process.harness import descendants
from tests.process.server import Server

PER_SUPERVISOR = 10
JOBS_PER_SECOND = 100
READY_SECONDS = 240.0
SERVER = {
    **SETTINGS,
    "max_connections": "700",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.max": "5000",
}
LISTENS = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgqueue:%(listens)'"
OWN = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgqueue:%'"
STATEMENTS = """SELECT CASE
           WHEN query LIKE 'WITH RECURSIVE lane AS%' THEN 'lanes'
           WHEN query LIKE 'WITH lane AS%' THEN 'claim'
           WHEN query LIKE '%extended AS (%' THEN 'extend'
           WHEN query LIKE '%stale AS MATERIALIZED%' THEN 'rescue'
           ELSE 'other'
       END, sum(calls)::bigint
FROM pg_stat_statements GROUP BY 1"""
"""Recognizes a statement by its text, because PostgreSQL 18 cuts off the comment with its name."""
SESSIONS = "SELECT sum(sessions)::bigint FROM pg_stat_database"
END_ALL = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'pgqueue:%'"
ENQUEUE = (
    """INSERT INTO pgqueue_job (task_name, arguments) VALUES ('tests.app.tasks.noop', '{"args": [], "kwargs": {}}')"""
)
LATENCIES = (
    "SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM claimed_at - enqueued_at))"
    " FROM pgqueue_execution JOIN pgqueue_job job ON job.id = job_id WHERE claimed_at > now() - %s * interval '1 s'"
)
STEADY = (
    (
        "| processes | load | connections | server CPU % | worker CPU % | statements/s | claim/s | lanes/s | extend/s"
        " | rescue/s | p50 ms | p99 ms |"
    ),
    "|---|---|---|---|---|---|---|---|---|---|---|---|",
)
RECOVERIES = (
    (
        "| processes | start s | back after the end of all sessions s | new sessions | server CPU s"
        " | back after a crash s | server CPU s |"
    ),
    "|---|---|---|---|---|---|---|",
)
TICKS = os.sysconf("SC_CLK_TCK")


class Phase(NamedTuple):
    """What one phase has cost, per second."""

    server_cpu: float
    worker_cpu: float
    statements: dict[str, float]
    sessions: float
    most_connections: int


class Fleet:
    """The supervisors of one run, and the server that they use."""

    def __init__(self, server: Server, logs: Path, processes: int) -> None:
        self.server = server
        self.logs = logs
        self.processes = processes
        self.supervisors: list[subprocess.Popen[bytes]] = []

    def start(self) -> float:
        """Start all supervisors at once. Return the seconds until each process listens."""
        began, left = time.monotonic(), self.processes
        while left > 0:
            count = min(left, PER_SUPERVISOR)
            left -= count
            log = (self.logs / f"worker-{left}.log").open("wb")
            command = [sys.executable, "-m", "django", "runworker", "--processes", str(count), "--concurrency", "4"]
            self.supervisors.append(subprocess.Popen(command, stdout=log, stderr=log, env=self.environment()))
        self.wait_until_listening()
        return time.monotonic() - began

    def environment(self) -> dict[str, str]:
        """Return the environment of the workers, with the default settings."""
        return os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
            "PGQUEUE_TEST_LOG": "WARNING",
            "PGQUEUE_TEST_OPTIONS": "{}",
            "PGQUEUE_TEST_DATABASE": json.dumps(self.server.settings),
        }

    def wait_until_listening(self) -> float:
        """Wait until each process receives notifications. Return how long that took."""
        began = time.monotonic()
        while time.monotonic() - began < READY_SECONDS:
            with contextlib.suppress(psycopg.Error), self.server.connect() as connection:
                if scalar(connection, LISTENS) >= self.processes:
                    return time.monotonic() - began
            time.sleep(0.1)
        raise TimeoutError(f"not all of {self.processes} processes listen after {READY_SECONDS:.0f} s")

    def cpu_seconds(self) -> float:
        """Return the processor time of all workers until now."""
        pids = [pid for one in self.supervisors for pid in (one.pid, *descendants(one.pid))]
        return sum(own_ticks(pid) for pid in pids) / TICKS

    def stop(self) -> None:
        """Stop all workers."""
        for one in self.supervisors:
            one.send_signal(signal.SIGTERM)
        for one in self.supervisors:
            one.wait(60)


def scalar(connection: psycopg.Connection[Any], query: str) -> Any:
    """Return the one value of a query."""
    [[value]] = connection.execute(query).fetchall()
    return value


def stat_fields(pid: int) -> list[int]:
    """Return utime, stime, cutime and cstime of a process, in clock ticks."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [0, 0, 0, 0]
    return [int(field) for field in text.rpartition(")")[2].split()[11:15]]


def own_ticks(pid: int) -> int:
    """Return the processor time of one process."""
    return sum(stat_fields(pid)[:2])


def server_cpu_seconds(server: Server) -> float:
    """Return the processor time of a server, with its processes that have ended."""
    postmaster = server.cluster.pid
    return (sum(stat_fields(postmaster)) + sum(own_ticks(pid) for pid in descendants(postmaster))) / TICKS


@contextlib.contextmanager
def load(server: Server) -> Iterator[None]:
    """Enqueue jobs at a steady rate, by SQL and with a notification for each, as `enqueue()` does."""
    ended = threading.Event()

    def enqueue() -> None:
        with server.connect() as connection:
            began, sent = time.monotonic(), 0
            while not ended.wait(max(0.0, began + sent / JOBS_PER_SECOND - time.monotonic())):
                connection.execute(ENQUEUE)
                connection.execute("NOTIFY pgqueue")
                sent += 1

    thread = threading.Thread(target=enqueue)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measure(fleet: Fleet, seconds: float) -> Phase:
    """Let this many seconds pass, and return what they have cost."""
    with fleet.server.connect() as connection:
        connection.execute("SELECT pg_stat_statements_reset()")
        sessions, server_cpu, worker_cpu = (
            scalar(connection, SESSIONS),
            server_cpu_seconds(fleet.server),
            fleet.cpu_seconds(),
        )
        began, most = time.monotonic(), 0
        while time.monotonic() - began < seconds:
            most = max(most, scalar(connection, OWN))
            time.sleep(0.25)
        took = time.monotonic() - began
        statements = connection.execute(STATEMENTS).fetchall()
        return Phase(
            (server_cpu_seconds(fleet.server) - server_cpu) / took,
            (fleet.cpu_seconds() - worker_cpu) / took,
            {str(name): calls / took for name, calls in statements},
            (scalar(connection, SESSIONS) - sessions) / took,
            most,
        )


class Recovery(NamedTuple):
    """How a fleet has come back."""

    seconds: float
    sessions: int
    server_cpu_seconds: float


def recover(fleet: Fleet, lose: Callable[[], object]) -> Recovery:
    """Lose the sessions of all workers. Return what it takes until each process listens again."""
    with fleet.server.connect() as connection:
        sessions = scalar(connection, SESSIONS)
    lose()
    time.sleep(0.5)  # the sessions that end may still be listed
    before = server_cpu_seconds(fleet.server)
    seconds = fleet.wait_until_listening() + 0.5
    cpu_seconds = server_cpu_seconds(fleet.server) - before
    time.sleep(2.0)  # sessions are counted with a delay
    with fleet.server.connect() as connection:
        return Recovery(seconds, scalar(connection, SESSIONS) - sessions, cpu_seconds)


def end_sessions(server: Server) -> None:
    """Terminate the sessions of all workers."""
    with server.connect() as connection:
        connection.execute(END_ALL)


def crash(server: Server) -> None:
    """Stop the server as in a crash, and start it again. Its statistics begin anew."""
    server.cluster.stop("immediate")
    server.cluster.start()


def run(processes: int, seconds: float) -> tuple[list[str], list[str]]:
    """Measure one number of processes. Return its rows of the two tables."""
    with short_path() as home:
        server = Server(home, settings=SERVER)
        fleet = Fleet(server, home, processes)
        try:
            with server.connect() as connection:
                connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            started_in = fleet.start()
            time.sleep(40.0)  # until the connections of the start are closed
            idle = measure(fleet, seconds)
            with load(server):
                time.sleep(5.0)
                busy = measure(fleet, seconds)
                with server.connect() as connection:
                    [[[p50, p99]]] = connection.execute(LATENCIES, (seconds,)).fetchall()
            lost = recover(fleet, lambda: end_sessions(server))
            crashed = recover(fleet, lambda: crash(server))
        finally:
            fleet.stop()
            server.cluster.stop()
    figures = [processes, started_in, lost.seconds, lost.sessions, lost.server_cpu_seconds]
    return (
        [row(processes, "idle", idle, "", ""), row(processes, "busy", busy, f"{p50 * 1000:.1f}", f"{p99 * 1000:.1f}")],
        [cells(*figures, crashed.seconds, crashed.server_cpu_seconds)],
    )


def cells(*values: object) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(f'{value:,.1f}' if isinstance(value, float) else str(value) for value in values)} |"


def row(processes: int, name: str, phase: Phase, p50: str, p99: str) -> str:
    """Return a row of the first table."""
    rates = [phase.statements.get(statement, 0.0) for statement in ("claim", "lanes", "extend", "rescue")]
    figures = [f"{phase.server_cpu * 100:.1f}", f"{phase.worker_cpu * 100:.1f}", sum(phase.statements.values()), *rates]
    return cells(processes, name, phase.most_connections, *figures, p50, p99)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", default="1,10,50,200", help="numbers of worker processes")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each phase is measured")
    options = parser.parse_args()
    steady, recoveries = [], []
    for number in options.processes.split(","):
        rows, recovery = run(int(number), options.seconds)
        steady += rows
        recoveries += recovery
    print("", *STEADY, *steady, "", *RECOVERIES, *recoveries, sep="\n")  # noqa: T201 -- a program


if __name__ == "__main__":
    main()
