"""Scenario 25: what a job costs at a steady rate, from its enqueue to its end, at four rates."""

from __future__ import annotations

from tests.tools.benchmarks.place import Bench, cpu_seconds, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.server import Counters
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Worker

WAYS = {10: "paced", 100: "paced", 1_000: "paced", 10_000: "stream"}
"""Jobs a second. 10,000 come in transactions of 100, because one producer cannot commit so often."""
LASTING_SECONDS = 20.0
BEFORE = 100
"""Jobs that are run first, so that the worker is known to work."""


def measure(bench: Bench, system: System) -> Figures:
    """Run jobs at each rate by one worker."""
    worker = bench.start(system.worker(Load("noop")))
    bench.produce("bulk", "noop", 0, BEFORE)
    wait_for(lambda: not system.unfinished(bench) and not bench.runs[:BEFORE].count(0), 60, "jobs that have not run")
    measured, first = {}, BEFORE
    for rate, way in WAYS.items():
        numbers = range(first, first + _jobs(rate))
        measured[f"{rate:,} jobs/s"] = _at_rate(bench, system, worker, way, rate, numbers)
        first = numbers.stop
    bench.stop([worker])
    bench.check_each_ran_once(range(first))
    return grouped(measured)


def _at_rate(bench: Bench, system: System, worker: Worker, way: str, rate: int, numbers: range) -> Figures:
    before = Counters.read(bench.connection)
    server_before, worker_before = bench.server.cpu_seconds(), cpu_seconds([worker])
    produced = bench.produce(way, "noop", numbers.start, len(numbers), float(rate))
    wait_for(lambda: not system.unfinished(bench), 60, "jobs that are not finished", pause=0.1)
    server, own = bench.server.cpu_seconds() - server_before, cpu_seconds([worker]) - worker_before
    counted = Counters.read(bench.connection).since(before)
    return {
        "enqueued_per_second": len(numbers) / produced["seconds"],
        "server_cpu_us": server / len(numbers) * 1e6,
        "worker_cpu_us": own / len(numbers) * 1e6,
        "wal_bytes": counted.wal_bytes / len(numbers),
        "commits": counted.commits / len(numbers),
    }


def _jobs(rate: int) -> int:
    return jobs(round(rate * seconds(LASTING_SECONDS)), 10)


RATES = Scenario(
    name="25",
    title="a job at 10 to 10,000 jobs a second: processor time of server and worker, WAL and commits, enqueue included",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: BEFORE + sum(_jobs(rate) for rate in WAYS),
    figure="1,000 jobs/s: server_cpu_us",
    bigger_is_better=False,
    by_group=True,
)
