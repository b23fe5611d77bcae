"""Scenarios 6 and 7: how fast jobs are enqueued: one by one, in one transaction, in one call. No worker runs."""

from __future__ import annotations

from collections.abc import Callable

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import System

ONE_BY_ONE = 3000
AT_ONCE = 100_000


def enqueue(bench: Bench, system: System, way: str, jobs: int) -> Figures:
    """Enqueue so many jobs; the system's own books must then have them all."""
    task = next(name for name in ("noop", "anoop") if name in system.tasks)
    measured = bench.produce(way, task, 0, jobs)
    if (there := system.unfinished(bench)) != jobs:
        raise RuntimeError(f"{jobs} jobs were enqueued, and {there} are there")
    return {"jobs_per_second": jobs / measured["seconds"], "grown_kib": measured["grown_kib"]}


def _by(way: str, jobs: int) -> Callable[[Bench, System], Figures]:
    return lambda bench, system: enqueue(bench, system, way, jobs)


def _knows(way: str) -> Callable[[System], bool]:
    return lambda system: way in system.ways and bool(system.tasks & {"noop", "anoop"})


SINGLE = Scenario(
    name="6",
    title=f"enqueue {ONE_BY_ONE:,} jobs one by one, each its own commit",
    measure=_by("single", ONE_BY_ONE),
    takes_part=_knows("single"),
    jobs=lambda system: ONE_BY_ONE,
    figure="jobs_per_second",
    targets=("≥ 0.9 × create", "ahead of every Django peer"),
)
TRANSACTION = SINGLE._replace(
    name="6a",
    title=f"enqueue {ONE_BY_ONE:,} jobs one by one inside one transaction",
    measure=_by("transaction", ONE_BY_ONE),
    takes_part=_knows("transaction"),
)
BULK = SINGLE._replace(
    name="7",
    title=f"enqueue {AT_ONCE:,} jobs in one call",
    measure=_by("bulk", AT_ONCE),
    takes_part=_knows("bulk"),
    jobs=lambda system: AT_ONCE,
    targets=("≥ the best peer's bulk", "memory flat"),
)
