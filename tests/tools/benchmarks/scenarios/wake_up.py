"""Scenario 15f: how late an idle fleet starts a job whose token has come back, and what it asks while it waits."""

from __future__ import annotations

import time

from tests.tools.benchmarks.files import record
from tests.tools.benchmarks.percentiles import percentile
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.idle import counted, log_statements
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import System

PACED = 100
INTERVAL_SECONDS = 0.5
"""As in the task."""
SETTLING_SECONDS = 10.0
WAITING_SECONDS = 120.0
CLAIMED = """
SELECT extract(epoch FROM execution.claimed_at)::float8
FROM pgqueue_execution AS execution JOIN pgqueue_job AS job ON job.id = execution.job_id
WHERE job.task_name = 'app.tasks.paced'
ORDER BY execution.id
"""


def measure(bench: Bench, system: System) -> Figures:
    bench.write(limited.FILES)
    count = jobs(PACED)
    workers = [bench.start(limited.worker("--processes", "2")) for _ in range(2)]
    bench.produce("bulk", "paced", 0, count)
    wait_for(lambda: not bench.runs[:count].count(0), 60 + INTERVAL_SECONDS * count, "jobs that have not run")
    clock = time.time() - time.monotonic()
    bench.stop(workers)
    bench.check_each_ran_once(range(count))
    claims = [instant for (instant,) in bench.connection.execute(CLAIMED).fetchall()]
    starts = sorted(start + clock for start in bench.instants(record.STARTS)[:count])
    late = [(start - claim - INTERVAL_SECONDS) * 1000 for claim, start in zip(claims[:-1], starts[1:], strict=True)]
    return {"late_p50_ms": percentile(late, 0.5), "late_p99_ms": percentile(late, 0.99), **waiting(bench, count)}


def waiting(bench: Bench, first: int) -> Figures:
    """Statements a minute of a worker whose only ready job waits for a token that is an hour away."""
    log_statements(bench)
    bench.produce("bulk", "hourly", first, 2)
    worker = bench.start(limited.worker())
    wait_for(lambda: any(bench.runs[first : first + 2]), 60, "the first job")
    time.sleep(seconds(SETTLING_SECONDS))
    figures = counted(bench, worker, seconds(WAITING_SECONDS))
    bench.stop([worker])
    if bench.runs[first : first + 2].count(0) != 1:
        raise RuntimeError("both jobs ran within the hour")
    return figures


WAKE_UP = Scenario(
    name="15f",
    title="from the time a token is due to the first line of its job, two workers of two processes; statements of "
    "one worker in a minute while a job waits for a token that is an hour away",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: jobs(PACED) + 2,
    figure="late_p50_ms",
    bigger_is_better=False,
    targets=("no more statements than an idle worker's: see 12a",),
)
