"""Scenarios 1, 2 and 11: no-op jobs that wait already are run, by one worker process or two; what that costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.tools.benchmarks.place import Bench, cpu_seconds, wait_for
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.server import Counters
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.place import Worker

STARTING_SECONDS = 60.0
DRAINING_SECONDS = 900.0
LOOK_SECONDS = 0.01


class Drained(NamedTuple):
    """How a drain went, from the first run until the system's books had finished the last job."""

    jobs: int
    seconds: float
    tenths: Sequence[float]
    """The jobs per second over each tenth of the runs."""
    worker_cpu_seconds: float
    """From the first run on: what it takes to start is not in it."""
    server_cpu_seconds: float
    counted: Counters
    seen: Figures

    @property
    def last_tenth(self) -> float:
        """The rate over the last tenth of the runs, as a share of that over the first."""
        return self.tenths[-1] / self.tenths[0]

    @property
    def jobs_per_second(self) -> float:
        return self.jobs / self.seconds

    @property
    def figures(self) -> Figures:
        """The rate, and what each job cost."""
        return {
            "jobs_per_second": self.jobs_per_second,
            "worker_cpu_us": self.worker_cpu_seconds / self.jobs * 1e6,
            "server_cpu_us": self.server_cpu_seconds / self.jobs * 1e6,
            "wal_bytes": self.counted.wal_bytes / self.jobs,
            "commits": self.counted.commits / self.jobs,
            "row_versions": self.counted.row_versions / self.jobs,
        }


def drained(
    bench: Bench,
    system: System,
    load: Load,
    numbers: range,
    *,
    enqueue: bool = True,
    look: Callable[[Worker], Figures] = lambda worker: {},
    pause: float = LOOK_SECONDS,
) -> Drained:
    """Enqueue these jobs, unless they are there, start a worker, wait until all are done, and look at it."""
    if enqueue:
        bench.produce("bulk", load.task, numbers.start, len(numbers))
        bench.settle()
    before, server_before = Counters.read(bench.connection), bench.server.cpu_seconds()
    worker = bench.start(system.worker(load))
    runs = Runs(bench, numbers)
    began = wait_for(lambda: runs.done() > 0, STARTING_SECONDS, "no job has begun", pause=0.001)
    worker_before = cpu_seconds([worker])
    wait_for(lambda: runs.done() == len(numbers), DRAINING_SECONDS, "jobs that have not run", pause=pause)
    ended = wait_for(lambda: not system.unfinished(bench), DRAINING_SECONDS, "jobs that are not finished")
    worker_cpu, server_after = cpu_seconds([worker]) - worker_before, bench.server.cpu_seconds()
    seen = look(worker)
    bench.stop([worker])
    after = Counters.read(bench.connection)
    bench.check_each_ran_once(numbers)
    return Drained(
        jobs=len(numbers),
        seconds=ended - began,
        tenths=runs.tenths(),
        worker_cpu_seconds=worker_cpu,
        server_cpu_seconds=server_after - server_before,
        counted=after.since(before),
        seen=seen,
    )


class Runs:
    """How many of these jobs have run, and when that was seen."""

    def __init__(self, bench: Bench, numbers: range) -> None:
        self._bench, self._numbers = bench, numbers
        self._seen: list[tuple[float, int]] = []

    def done(self) -> int:
        done = len(self._numbers) - self._bench.runs[self._numbers.start : self._numbers.stop].count(0)
        self._seen.append((time.monotonic(), done))
        return done

    def tenths(self) -> list[float]:
        """The jobs per second of each tenth. A tenth that fits between two looks has the rate of what they saw."""
        return [self._rate(len(self._numbers) * tenth / 10, len(self._numbers) / 10) for tenth in range(10)]

    def _rate(self, first: float, jobs: float) -> float:
        began = next(place for place, (_, done) in enumerate(self._seen) if done >= max(1.0, first))
        ended = next(place for place, (_, done) in enumerate(self._seen) if done >= first + jobs)
        began = min(began, ended - 1)
        (before, done_before), (after, done_after) = self._seen[began], self._seen[ended]
        return (done_after - done_before) / (after - before)


def _drain(task: str, processes: int = 1, times: int = 1) -> Callable[[Bench, System], Figures]:
    load = Load(task, processes=processes)
    return lambda bench, system: drained(bench, system, load, range(times * system.drain_jobs)).figures


def _runs(task: str) -> Callable[[System], bool]:
    return lambda system: task in system.tasks and system.runs


SYNC = Scenario(
    name="1",
    title="drain no-op jobs, one worker process",
    measure=_drain("noop"),
    takes_part=_runs("noop"),
    jobs=lambda system: system.drain_jobs,
    figure="jobs_per_second",
    targets=(
        "≥ 2 × PgQueuer",
        "≥ 0.6 × limit",
        "stretch: ahead of graphile-worker",
        "11: CPU below PgQueuer's; WAL ≤ 1.5 kB; commits ≤ 0.02",
    ),
)
ASYNC = SYNC._replace(
    name="1a",
    title="drain no-op coroutine jobs, one worker process",
    measure=_drain("anoop"),
    takes_part=_runs("anoop"),
)
TWO = SYNC._replace(
    name="2",
    title="drain no-op jobs, two worker processes",
    measure=_drain("noop", processes=2),
    takes_part=lambda system: _runs("noop")(system) and system.name != "limit",
    targets=("≥ 1.5 × PgQueuer with two",),
)
SYNC_TWICE = SYNC._replace(
    name="1b",
    title="drain twice as many no-op jobs, one worker process",
    measure=_drain("noop", times=2),
    jobs=lambda system: 2 * system.drain_jobs,
    targets=("ahead of graphile-worker", "the rate of scenario 1"),
)
TWO_TWICE = TWO._replace(
    name="2b",
    title="drain twice as many no-op jobs, two worker processes",
    measure=_drain("noop", processes=2, times=2),
    jobs=lambda system: 2 * system.drain_jobs,
    targets=("ahead of graphile-worker", "the rate of scenario 2"),
)
