"""Scenario 20: no-op jobs on one server with two worker processes, and on two servers with one process for each.

The second server is started for the measurement. Both worker processes belong to one `runworker`. On a machine whose
cores are all busy with one server, the rate of two servers is not higher: then only the CPU per job says something.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.tools.benchmarks.place import Bench, cpu_seconds, wait_for
from tests.tools.benchmarks.scenarios.drain import DRAINING_SECONDS, LOOK_SECONDS, STARTING_SECONDS, Runs
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.server import Server, server
from tests.tools.benchmarks.systems import ours
from tests.tools.benchmarks.systems.system import System
from tests.tools.peers.brokers import connect

SECOND = """
DATABASES["second"] = DATABASES["default"] | {
    "HOST": os.environ["SECOND_PGHOST"],
    "PORT": os.environ["SECOND_PGPORT"],
}
"""
ADAPTER = """
import os

ALIASES = os.environ["ALIASES"].split(",")


def enqueue_many(task, numbers):
    for place, alias in enumerate(ALIASES):
        calls = (((number,), {}) for number in numbers[place :: len(ALIASES)])
        getattr(tasks, task).using(database=alias).enqueue_many(calls, returning=False)
"""
NAME = "second"


@contextmanager
def _second_server(bench: Bench) -> Iterator[tuple[Server, psycopg.Connection[Any]]]:
    """Start another server, with the tables of the project."""
    if "DATABASE_URL" in os.environ:
        raise RuntimeError("scenario 20 starts both servers itself: unset DATABASE_URL")
    with server() as second:
        name = bench.variables["PGDATABASE"]
        second.make_database(name)
        bench.variables |= {f"SECOND_{variable}": value for variable, value in second.variables.items()}
        for file, more in (("settings.py", SECOND), ("adapter.py", ADAPTER)):
            bench.write({file: (bench.directory / file).read_text() + more})
        bench.run(("-m", "django", "migrate", "-v0", "--database", NAME))
        with connect(second.variables, name) as connection:
            yield second, connection


class _Part:
    """One of the two measurements: these jobs, on these aliases."""

    def __init__(self, bench: Bench, numbers: range, aliases: Sequence[str], servers: Sequence[Server]) -> None:
        self._bench, self._numbers, self._aliases, self._servers = bench, numbers, aliases, servers

    def drained(self, connections: Sequence[psycopg.Connection[Any]]) -> Figures:
        """Enqueue the jobs, run them with two worker processes in all, and return what that took."""
        bench, numbers = self._bench, self._numbers
        bench.variables["ALIASES"] = ",".join(self._aliases)
        bench.produce("bulk", "noop", numbers.start, len(numbers))
        before = [each.cpu_seconds() for each in self._servers]
        chosen = [word for alias in self._aliases for word in ("--database", alias)]
        worker = bench.start(("-m", "django", "runworker", "--processes", str(2 // len(self._aliases)), *chosen))
        runs = Runs(bench, numbers)
        began = wait_for(lambda: runs.done() > 0, STARTING_SECONDS, "no job has begun", pause=0.001)
        worker_before = cpu_seconds([worker])
        wait_for(lambda: runs.done() == len(numbers), DRAINING_SECONDS, "jobs that have not run", pause=LOOK_SECONDS)
        ended = wait_for(lambda: not _unfinished(connections), DRAINING_SECONDS, "jobs that are not finished")
        worker_cpu = cpu_seconds([worker]) - worker_before
        server_cpu = [each.cpu_seconds() - used for each, used in zip(self._servers, before, strict=True)]
        bench.stop([worker])
        bench.check_each_ran_once(numbers)
        jobs = len(numbers)
        figures = {"jobs_per_second": jobs / (ended - began), "worker_cpu_us": worker_cpu / jobs * 1e6}
        for alias, used in zip(self._aliases, server_cpu, strict=True):
            figures[f"server_cpu_us_{alias}"] = used / (jobs / len(self._aliases)) * 1e6
        return figures


def _unfinished(connections: Sequence[psycopg.Connection[Any]]) -> int:
    return sum(int(row[0]) for each in connections for row in each.execute(ours.UNFINISHED.encode()))


def _measure(bench: Bench, system: System) -> Figures:
    jobs = system.drain_jobs
    with _second_server(bench) as (second, connection):
        both, aliases = [bench.connection, connection], ["default", NAME]
        one = _Part(bench, range(jobs), aliases[:1], [bench.server]).drained(both[:1])
        two = _Part(bench, range(jobs, 2 * jobs), aliases, [bench.server, second]).drained(both)
    figures = {f"one_{name}": value for name, value in one.items()}
    figures |= {f"two_{name}": value for name, value in two.items()}
    return {"two_to_one": two["jobs_per_second"] / one["jobs_per_second"], **figures}


TWO_SERVERS = Scenario(
    name="20",
    title="drain no-op jobs by two worker processes: on one server, and on two servers",
    measure=_measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 2 * system.drain_jobs,
    figure="two_to_one",
    targets=("the rate of two servers, if the cores allow; CPU per job on each as on one",),
)
