"""Scenario 15a: a million jobs wait for a key whose only slot is in use. What that takes from other jobs."""

from __future__ import annotations

import statistics
from contextlib import nullcontext

from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.scenarios.snapshot import snapshot_held
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import Load, System

WAITING = 1_000_000
DRAINS = 3
DRAINED = {"noop": 50_000, "of_tenant": 20_000}
PHASES = ("free", "free_held", "waiting", "waiting_held")
HOLDING = 0
"""The number of the job that holds the slot."""

UNFINISHED = """
SELECT (SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL)
     + (SELECT count(*) FROM pgqueue_job
        WHERE state = 'ready' AND queue_name = 'default' AND priority = 0
          AND limit_key > 'tenant:' AND limit_key < 'tenant;')
     + (SELECT count(*) FROM pgqueue_execution WHERE finished_at IS NULL) - 1
"""
"""Without the waiting jobs and the one that holds the slot; by indexes."""


def measure(bench: Bench, system: System) -> Figures:
    system = system._replace(unfinished=lambda bench: bench.count(UNFINISHED))
    bench.write(limited.FILES)
    bench.produce("bulk", "hold", HOLDING, 1)
    bench.start(limited.worker("--queues", limited.HOLDER, "--concurrency", "1"))
    wait_for(lambda: bench.runs[HOLDING], 60, "no job holds the slot")
    first = HOLDING + 1
    rates: dict[str, dict[str, float]] = {}
    for phase in PHASES:
        if phase == "waiting":
            bench.connection.execute(limited.FILL.encode(), {"jobs": jobs(WAITING)})
        bench.connection.execute("VACUUM (ANALYZE) pgqueue_job, pgqueue_execution")
        bench.connection.execute("CHECKPOINT")
        with snapshot_held(bench) if phase.endswith("held") else nullcontext():
            rates[phase] = {}
            for task in DRAINED:
                rates[phase][task], first = rate(bench, system, task, first)
    shares = {
        f"share_{task}{held}": rates[f"waiting{held}"][task] / rates[f"free{held}"][task]
        for task in DRAINED
        for held in ("", "_held")
    }
    return shares | {f"{task}_{phase}_per_second": rates[phase][task] for task in DRAINED for phase in rates}


def rate(bench: Bench, system: System, task: str, first: int) -> tuple[float, int]:
    """The median of a few drains, one after the other, and the next free number."""
    count = jobs(DRAINED[task])
    firsts = range(first, first + DRAINS * count, count)
    rates = [drained(bench, system, Load(task), range(start, start + count)).jobs_per_second for start in firsts]
    return statistics.median(rates), firsts.stop


SATURATED = Scenario(
    name="15a",
    title="1,000,000 jobs wait under a key without a free slot: drains of plain jobs and of 1,000 other keys, "
    "against the same without; both also with a snapshot held elsewhere",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 1 + len(PHASES) * DRAINS * sum(map(jobs, DRAINED.values())),
    figure="share_noop",
    targets=("each share ≥ 0.9",),
)
