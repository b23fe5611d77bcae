"""Scenario 17: rows that Django's ORM inserts, one in each job, and in chunks of several sizes."""

from __future__ import annotations

from collections.abc import Iterable

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.drain import Drained, drained
from tests.tools.benchmarks.scenarios.orm import check_rows
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.systems.chunked import SIZES
from tests.tools.benchmarks.systems.system import Load, System

CONCURRENCY = 4


def measure(bench: Bench, system: System) -> Figures:
    """Drain jobs that insert one by one, then as many jobs in chunks."""
    jobs = system.drain_jobs
    runs = {size: _drained(bench, system, size, range(turn * jobs, (turn + 1) * jobs)) for turn, size in _turns()}
    check_rows(bench, len(runs) * jobs)
    singly = runs[1].jobs_per_second
    return grouped({_name(size): _figures(run, singly) for size, run in runs.items()})


def _turns() -> Iterable[tuple[int, int]]:
    return enumerate((1, *SIZES))


def _drained(bench: Bench, system: System, size: int, numbers: range) -> Drained:
    task = "insert" if size == 1 else f"insert_{size}"
    return drained(bench, system, Load(task, concurrency=CONCURRENCY), numbers)


def _figures(run: Drained, singly: float) -> Figures:
    return {
        "times_faster": run.jobs_per_second / singly,
        "jobs_per_second": run.jobs_per_second,
        "worker_cpu_us": run.figures["worker_cpu_us"],
    }


def _name(size: int) -> str:
    return "single jobs" if size == 1 else f"chunks of {size}"


CHUNKS = Scenario(
    name="17",
    title="insert 10,000 rows by the ORM, one in each job, and in chunks of 10, 100 and 500",
    measure=measure,
    takes_part=lambda system: "insert_100" in system.tasks,
    jobs=lambda system: (1 + len(SIZES)) * system.drain_jobs,
    figure="chunks of 100: times_faster",
    targets=("≥ 10 times as many jobs/s in chunks of 100",),
    by_group=True,
)
