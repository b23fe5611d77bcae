"""Scenario 4: how soon an idle worker begins a job: from its commit, and from the time it is due at."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import Load, System

JOBS = 200
PER_SECOND = 20.0
DUE_JOBS = 100
DUE_SECONDS = 2.0
PATIENCE_SECONDS = 60.0
STAMPED = frozenset({"began", "abegan"})


def timed(bench: Bench, system: System, way: str, jobs: int, number: float) -> Figures:
    """Let a worker run a first job, then time the others; milliseconds from the stamp of each to its first line."""
    task = "began" if "began" in system.tasks else "abegan"
    worker = bench.start(system.worker(Load(task)))
    bench.produce("single", task, 0, 1)
    wait_for(lambda: bench.runs[0], PATIENCE_SECONDS, "no first job has begun")
    bench.produce(way, task, 1, jobs, number)
    wait_for(lambda: not bench.runs[: jobs + 1].count(0), PATIENCE_SECONDS, "jobs that have not run")
    bench.stop([worker])
    bench.check_each_ran_once(range(jobs + 1))
    starts, stamps = bench.instants(record.STARTS), bench.instants(record.COMMITS)
    return milliseconds([starts[job] - stamps[job] for job in range(1, jobs + 1)])


def milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    """The percentiles of these durations, in milliseconds."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50_ms": cuts[49] * 1000, "p99_ms": cuts[98] * 1000, "most_ms": max(seconds) * 1000}


def _takes_part(system: System) -> bool:
    return system.runs and bool(system.tasks & STAMPED)


PICK_UP = Scenario(
    name="4",
    title=f"from a commit to the first line of the task: {JOBS} jobs, {PER_SECOND:.0f} a second, an idle worker",
    measure=lambda bench, system: timed(bench, system, "paced", JOBS, PER_SECOND),
    takes_part=_takes_part,
    jobs=lambda system: JOBS + 1,
    figure="p50_ms",
    bigger_is_better=False,
    targets=("p50 ≤ 1.2 ms, p99 ≤ 5 ms", "at most 1.2 of the best durable peer on PostgreSQL"),
)
DUE = Scenario(
    name="4a",
    title=f"from the time a job is due at to the first line of its task, due {DUE_SECONDS:.0f} s after the enqueue",
    measure=lambda bench, system: timed(bench, system, "later", DUE_JOBS, DUE_SECONDS),
    takes_part=lambda system: _takes_part(system) and "later" in system.ways,
    jobs=lambda system: DUE_JOBS + 1,
    figure="p50_ms",
    bigger_is_better=False,
    targets=("within 10 ms",),
)
