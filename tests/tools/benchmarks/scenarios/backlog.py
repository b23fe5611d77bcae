"""Scenarios 22a and 22b: whether the rate falls in a backlog of 1,000,000 due jobs, by one worker process and two."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.tools.benchmarks.memory import children, peak_mb
from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import LOOK_SECONDS, drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Worker

BACKLOGS = (50_000, 100_000, 1_000_000)
LEAST = 100
LOOKS = 200
"""The record of 1,000,000 jobs is read this often, because to read it takes as long as to run some jobs."""


def measure(bench: Bench, system: System, processes: int) -> Figures:
    """Drain each backlog, beside the finished jobs of those before."""
    measured: dict[str, Figures] = {}
    first = 0
    for size in BACKLOGS:
        numbers = range(first, first + jobs(size, LEAST))
        measured[f"{size:,} jobs"] = _drain(bench, system, processes, numbers)
        first = numbers.stop
    return grouped(measured)


def _drain(bench: Bench, system: System, processes: int, numbers: range) -> Figures:
    bench.connection.execute("CHECKPOINT")
    pause = max(LOOK_SECONDS, len(numbers) / 30_000 / LOOKS)
    drain = drained(bench, system, Load("noop", processes=processes), numbers, look=_memory, pause=pause)
    tenths = {f"tenth {place}": rate for place, rate in enumerate(drain.tenths, 1)}
    return {**drain.figures, **drain.seen, "last_tenth": drain.last_tenth, **tenths}


def _memory(worker: Worker) -> Figures:
    return {"peak_mb_of_a_process": max(peak_mb(pid) for pid in children(worker))}


def _measured_with(processes: int) -> Callable[[Bench, System], Figures]:
    return partial(measure, processes=processes)


ONE = Scenario(
    name="22a",
    title="drain 50,000, 100,000 and 1,000,000 no-op jobs, one worker process; jobs/s of each tenth of the runs",
    measure=_measured_with(1),
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: sum(jobs(size, LEAST) for size in BACKLOGS),
    figure="1,000,000 jobs: jobs_per_second",
    targets=("the last tenth of 1,000,000 at ≥ 0.9 of the rate of the first",),
    by_group=True,
)
TWO = ONE._replace(
    name="22b",
    title="drain 50,000, 100,000 and 1,000,000 no-op jobs, two worker processes; jobs/s of each tenth of the runs",
    measure=_measured_with(2),
)
