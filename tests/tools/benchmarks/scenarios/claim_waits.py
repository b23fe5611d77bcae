"""Scenario 10a: what sessions wait for that claim with FOR UPDATE, with SKIP LOCKED, and in our worker."""

from __future__ import annotations

from functools import partial

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.scaling import A_SECOND, jobs_for, nap
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.systems import naive
from tests.tools.benchmarks.systems.system import System
from tests.tools.benchmarks.waits import Waits, sampled_waits

SLOTS = (10, 100)


def measure(bench: Bench, system: System) -> Figures:
    """Run jobs of 50 ms, and sample the sessions meanwhile."""
    measured: dict[str, Figures] = {}
    first = 0
    for slots in SLOTS:
        jobs, waits = jobs_for(system, slots), Waits()
        rate = nap(bench, system, slots, first, jobs, partial(sampled_waits, bench, waits))
        of_linear = rate / (slots * A_SECOND)
        measured[f"{slots} slots"] = {"jobs_per_second": rate, "share_of_linear": of_linear, **waits.percent}
        first += jobs
    bench.check_each_ran_once(range(first))
    return grouped(measured)


CLAIM_WAITS = Scenario(
    name="10a",
    title="jobs of 50 ms in 10 and 100 slots: the waits of the sessions, in % of all samples",
    measure=measure,
    takes_part=lambda system: system.name in ("us", naive.FOR_UPDATE.name, naive.SKIP_LOCKED.name),
    jobs=lambda system: sum(jobs_for(system, slots) for slots in SLOTS),
    figure="100 slots: jobs_per_second",
    targets=("for-update: the sessions wait for a lock", "skip-locked: no session waits for a lock"),
    by_group=True,
    rounds=1,
)
