"""Scenario 15e: from the end of a job that holds the only slot of its key to the start of the next one.

The end is the last line of the task, so the time includes the completion and its commit, the claim, and its commit.
"""

from __future__ import annotations

import itertools

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.percentiles import percentile
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import System

SAME = 500
OTHER = 40
BACKGROUND_SECONDS = 60.0
BACKGROUND_PER_SECOND = 1000.0


def measure(bench: Bench, system: System) -> Figures:
    bench.write(limited.FILES)
    same, other = jobs(SAME), jobs(OTHER)
    figures: dict[str, float] = {}
    for name, per_second in (("idle", 0.0), ("busy", BACKGROUND_PER_SECOND)):
        first = 0 if name == "idle" else same
        worker = bench.start(limited.worker())
        background = round(per_second * BACKGROUND_SECONDS)
        producer = (
            bench.start_producer("stream", "noop", 2 * same + 2 * other, background, per_second) if background else None
        )
        bench.produce("bulk", "one_by_one", first, same)
        wait_for(lambda: not bench.runs[first : first + same].count(0), 120, "jobs that have not run")  # noqa: B023 -- called at once
        bench.stop([worker])
        if producer is not None:
            producer.kill()
            producer.wait()
        figures |= waits(bench, f"same_{name}", [range(first, first + same)])
    figures |= on_another(bench, 2 * same, other)
    return figures


def on_another(bench: Bench, first: int, pairs: int) -> Figures:
    """Pairs of jobs of one key in two queues, each with a worker of its own."""
    workers = [bench.start(limited.worker("--queues", queue)) for queue in ("left", "right")]
    numbers = [range(first + 2 * pair, first + 2 * pair + 2) for pair in range(pairs)]
    for pair in numbers:
        bench.produce("single", "pair_left", pair[0], 1)
        bench.produce("single", "pair_right", pair[1], 1)
        wait_for(lambda: bench.runs[pair[1]], 60, "the second job of a pair")  # noqa: B023 -- called at once
    bench.stop(workers)
    return waits(bench, "other", numbers)


def waits(bench: Bench, name: str, series: list[range]) -> Figures:
    """The time from each end to the next start, in milliseconds. An end is noted as a commit."""
    starts, ends = bench.instants(record.STARTS), bench.instants(record.COMMITS)
    times = []
    for numbers in series:
        ordered = sorted(numbers, key=starts.__getitem__)
        times += [(starts[later] - ends[earlier]) * 1000 for earlier, later in itertools.pairwise(ordered)]
    if min(times) < 0:
        raise RuntimeError("two jobs of the key ran at the same time")
    return {f"{name}_p50_ms": percentile(times, 0.5), f"{name}_p99_ms": percentile(times, 0.99)}


FREED = Scenario(
    name="15e",
    title="from the end of the only job of a key that may run to the start of the next: on the same worker, "
    "idle and with 1,000 other jobs a second, and on another worker",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 2 * jobs(SAME) + 2 * jobs(OTHER) + round(BACKGROUND_PER_SECOND * BACKGROUND_SECONDS),
    figure="same_busy_p50_ms",
    bigger_is_better=False,
    targets=("same: median ≤ 5 ms", "other: ≤ 1 s"),
)
