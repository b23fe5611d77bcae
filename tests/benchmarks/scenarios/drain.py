"""Scenarios 1, 2 and 11: no-op jobs that wait already are run, by one worker process or two; what that costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.benchmarks.place import Bench, cpu_seconds, wait_for
from tests.benchmarks.scenarios.scenario import Scenario
from tests.benchmarks.server import Counters
from tests.benchmarks.systems.system import Load, System
from tests.peers.place import Worker

STARTING_SECONDS = 60.0
DRAINING_SECONDS = 600.0


def drain(bench: Bench, system: System, load: Load, jobs: int, workers: int = 1, first: int = 0) -> dict[str, float]:
    """Enqueue, start the workers, and time from the first run until the system's books have finished the last."""
    bench.produce("bulk", load.task, first, jobs)
    return drained(bench, system, load, jobs, workers, first)


def drained(
    bench: Bench,
    system: System,
    load: Load,
    jobs: int,
    workers: int = 1,
    first: int = 0,
    look: Callable[[Worker], Mapping[str, float]] = lambda worker: {},
) -> dict[str, float]:
    """The same for jobs that wait already; `look` is one at the first worker before it is stopped."""
    last = first + jobs
    before = Counters.read(bench.connection)
    server_before = bench.server.cpu_seconds()
    started = [bench.start(system.worker(load)) for _ in range(workers)]
    began = wait_for(lambda: any(bench.runs[first:last]), STARTING_SECONDS, "no job has begun", pause=0.001)
    worker_before = cpu_seconds(started)
    wait_for(lambda: not bench.runs[first:last].count(0), DRAINING_SECONDS, "jobs that have not run", pause=0.01)
    ended = wait_for(lambda: not system.unfinished(bench), DRAINING_SECONDS, "jobs that are not finished")
    worker_cpu = cpu_seconds(started) - worker_before
    server_after = bench.server.cpu_seconds()
    seen = look(started[0])
    bench.stop(started)
    after = Counters.read(bench.connection)
    bench.check_each_ran_once(last)
    measured = {
        "jobs_per_second": jobs / (ended - began),
        "worker_cpu_us": worker_cpu / jobs * 1e6,
        "wal_bytes": (after.wal_bytes - before.wal_bytes) / jobs,
        "commits": (after.commits - before.commits) / jobs,
        "dead_tuples": (after.dead_tuples - before.dead_tuples) / jobs,
    }
    if server_before is not None and server_after is not None:
        measured["server_cpu_us"] = (server_after - server_before) / jobs * 1e6
    return measured | dict(seen)


def _takes_part(task: str) -> Callable[[System], bool]:
    return lambda system: task in system.tasks


def _drained(system: System) -> int:
    return system.drain_jobs


SYNC = Scenario(
    name="1",
    title="drain no-op jobs, one worker process",
    measure=lambda bench, system: drain(bench, system, Load("noop"), system.drain_jobs),
    takes_part=_takes_part("noop"),
    jobs=_drained,
    figure="jobs_per_second",
    targets=("≥ 2 × PgQueuer", "≥ 0.6 × limit", "stretch: ahead of graphile-worker"),
)
ASYNC = SYNC._replace(
    name="1a",
    title="drain no-op coroutine jobs, one worker process",
    measure=lambda bench, system: drain(bench, system, Load("anoop"), system.drain_jobs),
    takes_part=_takes_part("anoop"),
)
TWO = SYNC._replace(
    name="2",
    title="drain no-op jobs, two worker processes",
    measure=lambda bench, system: drain(bench, system, Load("noop", processes=2), system.drain_jobs),
    takes_part=lambda system: "noop" in system.tasks and system.name != "limit",
    targets=("≥ 1.5 × PgQueuer with two",),
)
