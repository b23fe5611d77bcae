"""Scenarios 27, 28, 29 and 29a: workflows. A fan-out with its fan-in, a graph in layers, chains, and one long chain.

Each job notes its start and its end. The measurement fails if a job has started before one that it depends on had
ended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from tests.tools.benchmarks.files import record, shapes
from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.latency import milliseconds
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.brokers import connect

SIZES = (1_000, 10_000)
ONE_CHAIN = (shapes.LENGTH, *SIZES)
ENDS = 2
"""The first job of a fan and the last one. Between them are as many as the size says."""
LINKS = 200
"""Jobs of the long chain."""
FIRST_LINKS = 20
"""These are not counted. A worker that has just started runs each statement for the first time."""
TASK = "node"
LOOK_SECONDS = 0.01


def measure(bench: Bench, system: System, way: str) -> Figures:
    """Enqueue and run the shape in each size that the system takes, each beside the finished jobs of those before."""
    return grouped({size: _measured(bench, system, way, numbers) for size, numbers in _parts(system, way).items()})


def _parts(system: System, way: str) -> Mapping[str, range]:
    """The numbers of the jobs of each size."""
    parts: dict[str, range] = {}
    first = 0
    for size in ONE_CHAIN if way == "chains" else SIZES:
        if jobs(size) <= system.drain_jobs:
            parts[f"{size:,} jobs"] = range(first, first + jobs(size) + (ENDS if way == "fan" else 0))
            first = parts[f"{size:,} jobs"].stop
    return parts


def _measured(bench: Bench, system: System, way: str, numbers: range) -> Figures:
    enqueued = bench.produce(way, TASK, numbers.start, len(numbers))
    bench.settle()
    with ExitStack() as stack:
        released = stack.enter_context(seen_released(bench, system)) if way == "fan" else ()
        run = drained(bench, system, Load(TASK), numbers, enqueue=False)
    starts, ends = (bench.instants(name)[numbers.start : numbers.stop] for name in (record.STARTS, record.COMMITS))
    check_order(shapes.SHAPES[way](len(numbers)), starts, ends)
    its = fan_figures(starts, ends, released) if way == "fan" else {"seconds": run.seconds}
    cost = {name: run.figures[name] for name in ("worker_cpu_us", "server_cpu_us", "wal_bytes", "commits")}
    return {**its, "jobs_per_second": run.jobs_per_second, "enqueue_seconds": enqueued["seconds"], **cost}


def linked(bench: Bench, system: System) -> Figures:
    """Run one chain; milliseconds from the end of each job to the start of the next one."""
    numbers = range(jobs(LINKS))
    bench.produce("chain", TASK, numbers.start, len(numbers))
    bench.settle()
    drained(bench, system, Load(TASK), numbers, enqueue=False)
    starts, ends = (bench.instants(name)[numbers.start : numbers.stop] for name in (record.STARTS, record.COMMITS))
    check_order(shapes.chain(len(numbers)), starts, ends)
    return milliseconds([start - end for end, start in zip(ends, starts[1:], strict=False)][FIRST_LINKS:])


def check_order(shape: shapes.Shape, starts: Sequence[float], ends: Sequence[float]) -> None:
    """Raise if a job has started before the end of a job that it depends on."""
    early = [place for place, needs in enumerate(shape) if any(ends[needed] > starts[place] for needed in needs)]
    if early:
        raise RuntimeError(f"{len(early)} of {len(shape)} jobs started too early, the first of them is {early[0]}")


def fan_figures(starts: Sequence[float], ends: Sequence[float], released: Sequence[tuple[float, int]]) -> Figures:
    """Return when the first job's end had released all jobs but the last, and when the last one started."""
    [first, *_], [*_, last] = ends, starts
    all_released = next(instant for instant, waiting in released if instant > first and waiting <= 1)
    return {
        "fan_out_seconds": all_released - first,
        "fan_in_seconds": last - first,
        "last_end_to_fan_in_ms": (last - max(ends[:-1])) * 1000,
    }


@contextmanager
def seen_released(bench: Bench, system: System) -> Iterator[Sequence[tuple[float, int]]]:
    """Look how many jobs wait for others, until the end; yield the instants after each look with its number.

    One transaction has all looks, so that they do not count as commits. At READ COMMITTED, it keeps no snapshot.
    """
    looks: list[tuple[float, int]] = []
    ended = threading.Event()
    with connect(bench.variables, bench.variables["PGDATABASE"]) as connection:
        connection.execute("BEGIN")

        def look() -> None:
            while not ended.wait(LOOK_SECONDS):
                row = connection.execute(system.waiting.encode()).fetchone()
                looks.append((time.monotonic(), int(str(row[0])) if row else 0))

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield looks
        finally:
            ended.set()
            thread.join()


def _measured_with(way: str) -> Callable[[Bench, System], Figures]:
    return partial(measure, way=way)


FAN = Scenario(
    name="27",
    title="a job that releases 1,000 and 10,000 others, and one that these release",
    measure=_measured_with("fan"),
    takes_part=lambda system: bool(system.waiting),
    jobs=lambda system: max(max(numbers.stop for numbers in _parts(system, way).values()) for way in shapes.SHAPES),
    figure="10,000 jobs: fan_out_seconds",
    bigger_is_better=False,
    targets=("a fan-out of 10,000 in at most 0.9 s, as pg-boss",),
    by_group=True,
)
GRAPH = FAN._replace(
    name="28",
    title="graphs of 1,000 and 10,000 jobs, each of which needs two or three of the layer before",
    measure=_measured_with("graph"),
    figure="10,000 jobs: jobs_per_second",
    bigger_is_better=True,
    targets=(),
)
CHAINS = GRAPH._replace(
    name="29",
    title=f"1, 100 and 1,000 chains of {shapes.LENGTH} jobs, each chain enqueued on its own",
    measure=_measured_with("chains"),
)
LINK = CHAINS._replace(
    name="29a",
    title=f"one chain of {LINKS} jobs: from the end of a job to the start of the next one, an idle worker",
    measure=linked,
    jobs=lambda system: jobs(LINKS),
    figure="p50_ms",
    bigger_is_better=False,
    by_group=False,
)
