"""Scenario 15b: 100,000 keys with ten jobs each, one at a time for each key; plain jobs while all keys must wait."""

from __future__ import annotations

import statistics
import time

from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.scenarios.snapshot import snapshot_held
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import Load, System

KEYS = 100_000
"""As in the task."""
JOBS_OF_KEY = 10
DRAINS = 3
FIRST_VISITS_SECONDS = 30.0
RATE = """
SELECT round(count(*) / extract(epoch FROM max(finished_at) - min(claimed_at))) FROM pgqueue_execution
WHERE id > {last_id}
"""
HOLD = """
INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until)
SELECT DISTINCT limit_key, now() + interval '1 day', now() + interval '1 day' FROM pgqueue_job WHERE state = 'ready'
"""
END_HOLDS = "DELETE FROM pgqueue_limit_state"
UNFINISHED = """
SELECT (SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL)
     + (SELECT count(*) FROM pgqueue_execution WHERE finished_at IS NULL)
"""
"""Without the jobs that wait; by indexes."""


def measure(bench: Bench, system: System) -> Figures:
    """Drain plain jobs, and again while all keys are held. Then drain the keys, and again while a snapshot is held."""
    bench.write(limited.FILES)
    count = jobs(KEYS * JOBS_OF_KEY)
    plain = plain_rate(bench, system, 2 * count)
    bench.produce("bulk", "of_customer", 0, count)
    bench.connection.execute(HOLD)
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution, pgqueue_limit_state")
    beside = plain_rate(bench, system, 2 * count + DRAINS * system.drain_jobs)
    bench.connection.execute(END_HOLDS)
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution, pgqueue_limit_state")
    free = drained(bench, system, Load("of_customer"), range(count), enqueue=False)
    bench.produce("bulk", "of_customer", count, count)
    bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution")
    with snapshot_held(bench):
        held = drained(bench, system, Load("of_customer"), range(count, 2 * count), enqueue=False)
    return {
        "jobs_per_second": free.jobs_per_second,
        "held_per_second": held.jobs_per_second,
        "share_held": held.jobs_per_second / free.jobs_per_second,
        "plain_per_second": plain,
        "plain_beside_per_second": beside,
        "share_plain": beside / plain,
        "last_tenth": free.last_tenth,
        "held_last_tenth": held.last_tenth,
        "worker_cpu_us": free.figures["worker_cpu_us"],
        "server_cpu_us": free.figures["server_cpu_us"],
    }


def plain_rate(bench: Bench, system: System, first: int) -> float:
    """The median of a few drains of jobs without a limit, by one worker that has visited all keys before."""
    worker = bench.start(system.worker(Load("noop")))
    time.sleep(seconds(FIRST_VISITS_SECONDS))
    firsts = range(first, first + DRAINS * system.drain_jobs, system.drain_jobs)
    rates = [warm_drain(bench, each, system.drain_jobs) for each in firsts]
    bench.stop([worker])
    return statistics.median(rates)


def warm_drain(bench: Bench, first: int, count: int) -> float:
    """How many jobs a second a running worker runs of those that one transaction enqueues."""
    last_id = bench.count("SELECT coalesce(max(id), 0) FROM pgqueue_execution")
    bench.produce("bulk", "noop", first, count)
    wait_for(lambda: not bench.count(UNFINISHED), 300, "jobs that are not finished")
    return bench.count(RATE.format(last_id=last_id))


MANY_KEYS = Scenario(
    name="15b",
    title="100,000 keys with ten jobs each, one at a time for each key; then with a snapshot held elsewhere; "
    "plain jobs beside these keys while all are held",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 2 * jobs(KEYS * JOBS_OF_KEY) + 2 * DRAINS * system.drain_jobs,
    figure="jobs_per_second",
    targets=("share_held ≥ 0.9", "share_plain ≥ 0.9"),
    rounds=1,
)
