"""Scenario 17: rows that Django's ORM inserts, one in each job, and a hundred in each call of a task with `chunk`."""

from __future__ import annotations

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.drain import Drained, drained
from tests.tools.benchmarks.scenarios.orm import check_rows
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import Load, System

CONCURRENCY = 4


def measure(bench: Bench, system: System) -> Figures:
    """Drain jobs that insert one by one, then as many jobs in chunks."""
    jobs = system.drain_jobs
    singly = _drained(bench, system, "insert", range(jobs))
    in_chunks = _drained(bench, system, "insert_chunk", range(jobs, 2 * jobs))
    check_rows(bench, 2 * jobs)
    return {
        "times_faster": in_chunks.jobs_per_second / singly.jobs_per_second,
        "jobs_per_second": in_chunks.jobs_per_second,
        "jobs_per_second_singly": singly.jobs_per_second,
        "worker_cpu_us": in_chunks.figures["worker_cpu_us"],
        "worker_cpu_us_singly": singly.figures["worker_cpu_us"],
    }


def _drained(bench: Bench, system: System, task: str, numbers: range) -> Drained:
    return drained(bench, system, Load(task, concurrency=CONCURRENCY), numbers)


CHUNKS = Scenario(
    name="17",
    title="insert 10,000 rows by the ORM, one in each job, and in chunks of 100",
    measure=measure,
    takes_part=lambda system: "insert_chunk" in system.tasks,
    jobs=lambda system: 2 * system.drain_jobs,
    figure="times_faster",
    targets=("≥ 10 times as many jobs/s in chunks",),
)
