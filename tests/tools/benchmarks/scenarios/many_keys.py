"""Scenario 15b: 100,000 keys with ten jobs each, one at a time for each key."""

from __future__ import annotations

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.scenarios.snapshot import snapshot_held
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import Load, System

KEYS = 100_000
"""As in the task."""
JOBS_OF_KEY = 10


def measure(bench: Bench, system: System) -> Figures:
    """Drain all, and as many again while a snapshot is held."""
    bench.write(limited.FILES)
    count = jobs(KEYS * JOBS_OF_KEY)
    plain = drained(bench, system, Load("noop"), range(2 * count, 2 * count + system.drain_jobs))
    bench.produce("bulk", "of_customer", 0, count)
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution")
    free = drained(bench, system, Load("of_customer"), range(count), enqueue=False)
    bench.produce("bulk", "of_customer", count, count)
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution")
    with snapshot_held(bench):
        held = drained(bench, system, Load("of_customer"), range(count, 2 * count), enqueue=False)
    return {
        "jobs_per_second": free.jobs_per_second,
        "held_per_second": held.jobs_per_second,
        "share_held": held.jobs_per_second / free.jobs_per_second,
        "plain_per_second": plain.jobs_per_second,
        "last_tenth": free.last_tenth,
        "held_last_tenth": held.last_tenth,
        "worker_cpu_us": free.figures["worker_cpu_us"],
        "server_cpu_us": free.figures["server_cpu_us"],
    }


MANY_KEYS = Scenario(
    name="15b",
    title="100,000 keys with ten jobs each, one at a time for each key; then with a snapshot held elsewhere",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 2 * jobs(KEYS * JOBS_OF_KEY) + system.drain_jobs,
    figure="jobs_per_second",
    targets=("share_held ≥ 0.9",),
    rounds=1,
)
