"""Scenario 30: plain jobs beside 100,000 suspended ones, half of which sleep for days and half wait for an event.

One worker runs everything. The drains with suspended jobs have drains without them before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean

from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import DRAINING_SECONDS, STARTING_SECONDS, Runs
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.systems.system import Load, Suspension, System

SIZES = (10_000, 100_000)
DRAINS = 2
"""With each number of suspended jobs. The figure is their mean rate."""
TASKS = ("sleeps", "waits")
TASK = "noop"
BEFORE = 100
"""Jobs that are run first, so that the worker is known to work."""


class Turns:
    """The measurements of one system. Its jobs are numbered through."""

    def __init__(self, bench: Bench, system: System, suspension: Suspension) -> None:
        self._bench, self._system, self._suspension = bench, system, suspension
        self.next = 0

    def drain(self, count: int, task: str = TASK) -> float:
        """Enqueue jobs in one transaction beside the running worker, and return the rate from the first run on."""
        numbers = self._numbers(count)
        runs = Runs(self._bench, numbers)
        producer = self._bench.start_producer("bulk", task, numbers.start, count)
        began = wait_for(lambda: runs.done() > 0, STARTING_SECONDS + DRAINING_SECONDS, "no job has begun")
        wait_for(lambda: runs.done() == count, DRAINING_SECONDS, "jobs that have not run", pause=0.01)
        ended = wait_for(
            lambda: not self._system.unfinished(self._bench), DRAINING_SECONDS, "jobs that are not finished"
        )
        self._bench.produced(producer)
        return count / (ended - began)

    def rate(self, suspended: int) -> float:
        """Return the mean rate of plain jobs beside so many suspended ones, which must stay as they are."""
        self.check(suspended)
        rates = [self.drain(jobs(self._suspension.plain_jobs)) for _ in range(DRAINS)]
        self.check(suspended)
        return mean(rates)

    def suspend(self, count: int) -> float:
        """Run jobs until all of them are suspended, and return the rate."""
        per_task = count // len(TASKS)
        rates = [self.drain(per_task, task) for task in TASKS]
        self._settle()
        return mean(rates)

    def remove(self) -> None:
        """Remove the suspended jobs."""
        for statement in self._suspension.remove:
            self._bench.connection.execute(statement.encode())
        self._settle()

    def check(self, suspended: int) -> None:
        """Raise unless so many jobs are suspended."""
        found = self._bench.count(self._suspension.count_query)
        if found != suspended:
            raise RuntimeError(f"{found} jobs are suspended, and should be {suspended}")

    def _is_busy(self) -> bool:
        return self._system.unfinished(self._bench) > 0

    def _settle(self) -> None:
        self._bench.connection.execute("VACUUM (ANALYZE)")
        self._bench.settle()

    def _numbers(self, count: int) -> range:
        numbers = range(self.next, self.next + count)
        self.next = numbers.stop
        return numbers


def measure(bench: Bench, system: System) -> Figures:
    """Measure each number of suspended jobs that the system takes."""
    assert system.suspension
    turns = Turns(bench, system, system.suspension)
    worker = bench.start(system.worker(Load(TASK)))
    turns.drain(BEFORE)
    measured: dict[str, Figures] = {}
    without = turns.rate(0)
    for name, size in _sizes(system).items():
        suspended_per_second = turns.suspend(size)
        beside = turns.rate(size)
        turns.remove()
        after = turns.rate(0)
        measured[name] = {
            "share": beside / mean((without, after)),
            "beside_per_second": beside,
            "before_per_second": without,
            "after_per_second": after,
            "suspended_per_second": suspended_per_second,
        }
        without = after
    bench.stop([worker])
    bench.check_each_ran_once(range(turns.next))
    return grouped(measured)


def _sizes(system: System) -> Mapping[str, int]:
    """How many jobs are suspended, by the name of the part: an even number."""
    most = system.suspension.most if system.suspension else 0
    return {f"{size:,} suspended": 2 * (jobs(size) // 2) for size in SIZES if size <= most}


def _jobs(system: System) -> int:
    plain = system.suspension.plain_jobs if system.suspension else 0
    sizes = _sizes(system).values()
    return BEFORE + sum(sizes) + (2 * len(sizes) + 1) * DRAINS * jobs(plain)


SUSPENDED = Scenario(
    name="30",
    title="plain jobs beside 10,000 and 100,000 suspended ones, against the same without, before and after",
    measure=measure,
    takes_part=lambda system: system.suspension is not None,
    jobs=_jobs,
    figure="100,000 suspended: share",
    targets=("share ≥ 0.9",),
    by_group=True,
)
