"""Scenario 14: large arguments and results, no two bytes of which can be compressed away."""

from __future__ import annotations

from tests.tools.benchmarks.memory import child, peak_mb
from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Worker


def peak(worker: Worker) -> Figures:
    return {"peak_rss_mb": peak_mb(child(worker))}


def payload(name: str, title: str, task: str, size: int, count: int) -> Scenario:
    """So many jobs with arguments of that size (task carry), or results of it (task fruit)."""

    def measure(bench: Bench, system: System) -> dict[str, float]:
        many = jobs(count)
        way = "payload" if task == "carry" else "bulk"
        produced = bench.produce(way, task, 0, many, size)
        drain = drained(bench, system, Load(task), range(many), enqueue=False, look=peak)
        return {
            "jobs_per_second": drain.jobs_per_second,
            "mb_per_second": drain.jobs_per_second * size / 1e6,
            **drain.seen,
            "worker_cpu_us": drain.figures["worker_cpu_us"],
            "wal_bytes": drain.figures["wal_bytes"],
            "enqueued_per_second": many / produced["seconds"],
            "producer_grown_mb": produced["grown_kib"] / 1024,
        }

    return Scenario(
        name=name,
        title=title,
        measure=measure,
        takes_part=lambda system: system.name == "us",
        jobs=lambda system: jobs(count),
        figure="jobs_per_second",
    )


PAYLOADS = (
    payload("14a", "arguments of 1 kB, 50,000 jobs", "carry", 1_000, 50_000),
    payload("14b", "arguments of 50 kB, 5,000 jobs", "carry", 50_000, 5_000),
    payload("14c", "arguments of 250 kB, 1,000 jobs", "carry", 250_000, 1_000),
    payload("14d", "results of 10 kB, 20,000 jobs", "fruit", 10_000, 20_000),
)
