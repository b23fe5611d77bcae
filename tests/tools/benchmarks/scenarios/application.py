"""Scenario 24: an application's own transactions beside 1,000 jobs a second, and beside a drain.

pgbench is the application, at a third of the rate that the machine can reach. Jobs use processor time and the disk, and
other programs that used as much would slow the application too. Two controls show this part: the same jobs on another
server of the machine, and processes that only compute, with as much processor time as the jobs and their part of the
server. The remaining difference is the cost of sharing the database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

from tests.tools.benchmarks.beside import JOBS_A_SECOND, PRODUCERS, Beginning, Beside, Jobs, burning, nothing
from tests.tools.benchmarks.pgbench import SCALE, Pgbench
from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.server import server
from tests.tools.benchmarks.systems.system import System
from tests.tools.peers.place import ending

SETTLING_SECONDS = 60.0
"""The disk of a virtual machine can be slow for so long after the tables were written: commits took 15 ms, then 1.3."""
WARMING_SECONDS = 3.0
COUNTED_SECONDS = 15.0
SPARE_SECONDS = 10.0
PART_OF_MOST = 3
DRAINED = 1_000_000
LEAST_DRAINED = 150_000
LEAST_CORES = 0.01
"""What jobs use on the application's server is a difference of two measurements, so it can be less than nothing."""
SERVER_CPU, OTHER_CPU = "% of a core, application's server", "% of a core, jobs or computing"


def steady_jobs() -> int:
    """More jobs than are enqueued while the application runs."""
    lasting = seconds(WARMING_SECONDS) + seconds(COUNTED_SECONDS) + SPARE_SECONDS
    return PRODUCERS * round(lasting * JOBS_A_SECOND / PRODUCERS)


def drained_jobs() -> int:
    """More jobs than one worker process runs meanwhile."""
    return jobs(DRAINED, LEAST_DRAINED)


def record_size(_: System) -> int:
    """The jobs of all parts."""
    return 2 * steady_jobs() + drained_jobs()


LOADS: dict[str, Callable[[Jobs], AbstractContextManager[Beside]]] = {
    "1,000 jobs/s one by one": lambda jobs: jobs.steady("paced", range(steady_jobs())),
    "1,000 jobs/s in hundreds": lambda jobs: jobs.steady("stream", range(steady_jobs(), 2 * steady_jobs())),
    "a drain": lambda jobs: jobs.drain(range(2 * steady_jobs(), 2 * steady_jobs() + drained_jobs())),
}
"""The drain is the last one, because it leaves jobs."""


class Seen(NamedTuple):
    """What was used and done until an instant."""

    at: float
    server_cpu: float
    beside_cpu: float
    done: int


class Trial:
    """Runs the application beside one thing after another."""

    def __init__(self, bench: Bench, per_second: float) -> None:
        self._bench, self._per_second = bench, per_second
        self.measured: dict[str, Figures] = {}

    def run(self, name: str, beside: Beginning) -> Figures:
        """Run the application beside this, and keep the figures by that name."""
        warming, counted = seconds(WARMING_SECONDS), seconds(COUNTED_SECONDS)
        with beside() as it:
            os.sync()  # otherwise what was written before the part is flushed during it, and commits wait
            run = Pgbench(self._bench).start(f"log{len(self.measured)}", self._per_second, warming + counted + 1)
            time.sleep(warming)
            began, before = time.time(), self._see(it)
            time.sleep(counted)
            ended, after = time.time(), self._see(it)
            if not it.lasts():
                raise RuntimeError(f"{name} ended before the application: more jobs are needed")
            latencies = run.latencies(began, ended)
        took = after.at - before.at
        self.measured[name] = {
            **latencies,
            "jobs_per_second": (after.done - before.done) / took,
            SERVER_CPU: 100 * (after.server_cpu - before.server_cpu) / took,
            OTHER_CPU: 100 * (after.beside_cpu - before.beside_cpu) / took,
        }
        return self.measured[name]

    def _see(self, beside: Beside) -> Seen:
        return Seen(time.monotonic(), self._bench.server.cpu_seconds(), beside.cpu_seconds(), beside.done())


def measure(bench: Bench, system: System) -> Figures:
    """Measure the application alone, beside jobs, and beside each control."""
    application = Pgbench(bench)
    application.fill(jobs(SCALE, least=1))
    bench.connection.execute("CHECKPOINT")
    os.sync()
    time.sleep(seconds(SETTLING_SECONDS))
    most = application.most_per_second(seconds(COUNTED_SECONDS / 2))
    trial = Trial(bench, most / PART_OF_MOST)
    with _another_server(bench, system) as other:
        alone = trial.run("alone", nothing)
        here, elsewhere = Jobs(bench, system), Jobs(other, system, is_elsewhere=True)
        for name, load in LOADS.items():
            beside = trial.run(name, partial(load, here))
            trial.run(f"{name}, on another server", partial(load, elsewhere))
            cores = max(LEAST_CORES, _cores(beside) - _cores(alone))
            trial.run(f"computing as much as {name}", partial(burning, bench, cores))
    trial.run("alone again", nothing)
    return grouped({"without a limit": {"tps": most}, **trial.measured})


def _cores(figures: Figures) -> float:
    return (figures[SERVER_CPU] + figures[OTHER_CPU]) / 100


@contextmanager
def _another_server(bench: Bench, system: System) -> Iterator[Bench]:
    """Start another server on this machine, with the tables of the project."""
    if "DATABASE_URL" in os.environ:
        raise RuntimeError("scenario 24 starts both servers itself: unset DATABASE_URL")
    with server() as second, ExitStack() as stack:
        directory = bench.directory / "other"
        directory.mkdir()
        variables = second.make_database(bench.variables["PGDATABASE"])
        other = Bench(directory, bench.python, variables, system.path, second)
        stack.enter_context(ending(other))
        other.lay_out(system.files, record_size(system))
        for command in system.prepare:
            other.run(command)
        yield other


APPLICATION = Scenario(
    name="24",
    title="an application's transactions (pgbench, TPC-B-like, a third of the possible rate): alone, beside jobs on "
    "its server and on another one, and beside processes that compute as much",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=record_size,
    figure="1,000 jobs/s one by one: p95_ms",
    bigger_is_better=False,
    targets=("beside jobs, the application is hardly slower than beside the same jobs on another server",),
    by_group=True,
    rounds=1,
)
