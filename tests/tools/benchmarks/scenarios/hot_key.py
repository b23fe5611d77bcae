"""Scenario 15c: one key with 5,000 starts a second, and one key whose ten slots are used by jobs that take no time."""

from __future__ import annotations

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.scenarios.snapshot import snapshot_held
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import Load, System

RATE, BURST = 5000, 500
"""As in the task."""
RATED, CROWDED = 30_000, 20_000


def measure(bench: Bench, system: System) -> Figures:
    bench.write(limited.FILES)
    figures: dict[str, float] = {}
    first = 0
    for task, load in LOADS.items():
        count = jobs(RATED if load.task == "rated" else CROWDED)
        free = drained(bench, system, load, range(first, first + count))
        bench.connection.execute("VACUUM ANALYZE")
        with snapshot_held(bench):
            held = drained(bench, system, load, range(first + count, first + 2 * count))
        first += 2 * count
        figures |= {f"{task}_per_second": free.jobs_per_second, f"{task}_held_per_second": held.jobs_per_second}
        figures |= {f"{task}_server_cpu_us": free.figures["server_cpu_us"]}
        if load.task == "rated":
            figures[f"{task}_of_rate"] = (free.jobs_per_second - BURST / free.seconds) / RATE
            figures[f"{task}_held_of_rate"] = (held.jobs_per_second - BURST / held.seconds) / RATE
    return figures


LOADS = {
    "rated": Load("rated"),
    "rated_two": Load("rated", processes=2),
    "rated_50": Load("rated", concurrency=50),
    "crowded": Load("crowded"),
    "crowded_two": Load("crowded", processes=2),
}
HOT_KEY = Scenario(
    name="15c",
    title="one key at 5,000 jobs a second by its rate; one key of ten slots with no-op jobs; "
    "then with a snapshot held elsewhere",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 2 * sum(jobs(RATED if load.task == "rated" else CROWDED) for load in LOADS.values()),
    figure="rated_of_rate",
    targets=("the rate is reached, also with the snapshot",),
)
