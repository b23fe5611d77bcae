"""Scenario 8: a long drain while a transaction elsewhere holds a snapshot, and no dead row can be removed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.peers.brokers import connect

TIMES = 5
"""As many jobs as in a plain drain: 250,000, fewer for who takes minutes over 50,000."""
ENQUEUED = 1000


def compared(bench: Bench, system: System) -> Figures:
    """Drain, vacuum, and drain as many again while a snapshot is held; enqueue some one by one after each."""
    task = "noop" if "noop" in system.tasks else "anoop"
    jobs = TIMES * system.drain_jobs
    free = drained(bench, system, Load(task), range(jobs))
    free_enqueue = bench.produce("single", task, 2 * jobs, ENQUEUED)
    drained(bench, system, Load(task), range(2 * jobs, 2 * jobs + ENQUEUED), enqueue=False)
    bench.connection.execute("VACUUM ANALYZE")
    with snapshot_held(bench):
        held = drained(bench, system, Load(task), range(jobs, 2 * jobs))
        held_enqueue = bench.produce("single", task, 2 * jobs + ENQUEUED, ENQUEUED)
    return {
        "share": held.jobs_per_second / free.jobs_per_second,
        "held_per_second": held.jobs_per_second,
        "free_per_second": free.jobs_per_second,
        "held_last_tenth": held.last_tenth,
        "free_last_tenth": free.last_tenth,
        "enqueue_share": free_enqueue["seconds"] / held_enqueue["seconds"],
    }


@contextmanager
def snapshot_held(bench: Bench) -> Iterator[None]:
    """Keep a transaction open in the same database that still sees everything as it is now."""
    with connect(bench.variables, bench.variables["PGDATABASE"]) as holder:
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pg_class")
        yield
        holder.execute("COMMIT")


def _takes_part(system: System) -> bool:
    drains = bool({"noop", "anoop"} & system.tasks) and system.runs
    return drains and system.broker == "postgresql" and system.name != "limit"


HELD = Scenario(
    name="8",
    title="drain 250,000 jobs with a snapshot held elsewhere, against the same without",
    measure=compared,
    takes_part=_takes_part,
    jobs=lambda system: 2 * TIMES * system.drain_jobs + 2 * ENQUEUED,
    figure="share",
    targets=(
        "share ≥ 0.85",
        "held_last_tenth ≥ 0.85: the rate over the last tenth against that over the first",
        "peers on PostgreSQL fall in the same run",
        "enqueue_share: producers are not slowed down",
    ),
)
