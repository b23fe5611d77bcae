"""Scenario 10: jobs of 50 ms in 1, 10, 50 and 100 slots of one process. A slot cannot do more than 20 a second."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import seconds
from tests.tools.benchmarks.scenarios.scenario import Scenario
from tests.tools.benchmarks.systems import naive
from tests.tools.benchmarks.systems.system import Load, System

SLOTS = (1, 10, 50, 100)
NAP_SECONDS = 0.05
A_SECOND = round(1 / NAP_SECONDS)
"""Jobs that one slot can do in a second."""
FULL_SECONDS = 8.0


def jobs_for(system: System, slots: int) -> int:
    """As many as keep all slots busy for the time. FOR UPDATE does as many as one slot does, with any number."""
    busy = 1 if system.name == naive.FOR_UPDATE.name else slots
    return round(seconds(FULL_SECONDS) * A_SECOND * busy)


def measure(bench: Bench, system: System) -> dict[str, float]:
    measured: dict[str, float] = {}
    first = 0
    for slots in SLOTS:
        jobs = jobs_for(system, slots)
        rate = nap(bench, system, slots, first, jobs)
        measured |= {f"jobs_per_second_{slots}": rate, f"share_of_linear_{slots}": rate / (slots * A_SECOND)}
        first += jobs
    bench.check_each_ran_once(range(first))
    return measured


def nap(
    bench: Bench,
    system: System,
    slots: int,
    first: int,
    jobs: int,
    during: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> float:
    """Jobs per second, from the beginning of the first until the books have finished the last.

    The context `during` is open from the end of the first job to that of the last one.
    """
    bench.produce("bulk", "nap", first, jobs)
    worker = bench.start(system.worker(Load("nap", concurrency=slots)))
    last = first + jobs
    noted = wait_for(lambda: any(bench.runs[first:last]), 60, "no job has run", pause=0.001)
    limit = 60 + 5 * jobs / A_SECOND
    with during():
        wait_for(lambda: not bench.runs[first:last].count(0), limit, "jobs that have not run", pause=0.005)
    ended = wait_for(lambda: not system.unfinished(bench), limit, "jobs that are not finished")
    bench.stop([worker])
    return jobs / (ended - noted + NAP_SECONDS)  # a nap is noted at its end


SCALING = Scenario(
    name="10",
    title="jobs of 50 ms in 1, 10, 50 and 100 slots, one process",
    measure=measure,
    takes_part=lambda system: "nap" in system.tasks,
    jobs=lambda system: sum(jobs_for(system, slots) for slots in SLOTS),
    figure="share_of_linear_100",
    targets=("us: ≥ 0.98 of linear with 100 slots", "for-update: flat, whatever the slots"),
)
