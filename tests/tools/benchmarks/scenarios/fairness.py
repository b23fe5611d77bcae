"""Scenario 15d: a customer with three jobs behind one with 100,000. How many jobs of the others start before the three.

Two customers share a limit that has a key and no number, so the key decides only in which order jobs start.
"""

from __future__ import annotations

from tests.tools.benchmarks.percentiles import pick_up_ms
from tests.tools.benchmarks.place import Bench, wait_for
from tests.tools.benchmarks.scale import jobs
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems import limited
from tests.tools.benchmarks.systems.system import Load, System

LARGE = 100_000
SMALL = 3
WARM = 2_000
"""Jobs of the large customer that have run before the small one comes."""

BEFORE = """
WITH small AS (
    SELECT min(job.enqueued_at) AS enqueued_at, max(execution.claimed_at) AS claimed_at
    FROM pgqueue_execution AS execution JOIN pgqueue_job AS job ON job.id = execution.job_id
    WHERE (job.arguments -> 'args' ->> 0)::int >= {first}
)
SELECT {counted} FROM pgqueue_execution AS execution, small
WHERE execution.claimed_at > small.enqueued_at AND execution.claimed_at <= small.claimed_at
"""
"""Of the time in which the three jobs waited for their claims."""


def measure(bench: Bench, system: System) -> Figures:
    bench.write(limited.FILES)
    figures: dict[str, float] = {}
    first = 0
    for task in ("began", "fair"):
        count = jobs(LARGE) - jobs(LARGE) % 2  # `fair` has two keys: those of odd and even numbers
        bench.produce("bulk", "fair_large" if task == "fair" else task, first, count)
        small = first + count
        worker = bench.start(system.worker(Load(task)))
        warm = min(WARM, count // 4)
        wait_for(lambda: count - bench.runs[first:small].count(0) > warm, 60, "no jobs run", pause=0.001)  # noqa: B023 -- called at once
        bench.produce("stream", "fair_small" if task == "fair" else task, small, SMALL, 1e9)
        wait_for(lambda: not bench.runs[small : small + SMALL].count(0), 300, "the three jobs")  # noqa: B023 -- as above
        wait_for(lambda: not system.unfinished(bench), 300, "jobs that are not finished")
        bench.stop([worker])
        bench.check_each_ran_once(range(first, small + SMALL))
        rounds = bench.count(BEFORE.format(first=small, counted="count(DISTINCT execution.claimed_at)"))
        others = bench.count(BEFORE.format(first=small, counted="count(*)")) - SMALL
        figures |= {
            f"{task}_rounds": rounds,
            f"{task}_jobs_before": others,
            f"{task}_ms": max(pick_up_ms(bench, small, small + SMALL)),
        }
        first = small + SMALL
    return figures


FAIRNESS = Scenario(
    name="15d",
    title="three jobs of one customer behind 100,000 of another, without a limit (began) and in turns (fair)",
    measure=measure,
    takes_part=lambda system: system.name == "us",
    jobs=lambda system: 2 * (jobs(LARGE) + SMALL),
    figure="fair_rounds",
    bigger_is_better=False,
    targets=("the three are claimed within one round of the keys after the one under way",),
)
