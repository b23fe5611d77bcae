"""Scenario 31: a million jobs wait. The articles' pattern beside our worker: commit the claim first, then work."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from tests.tools.benchmarks.place import Bench, cpu_seconds, wait_for
from tests.tools.benchmarks.scale import jobs, seconds
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario, grouped
from tests.tools.benchmarks.server import Counters
from tests.tools.benchmarks.systems import commit_first, ours
from tests.tools.benchmarks.systems.system import Load, System

WAITING = 1_000_000
LEAST = 1_000
LASTING_SECONDS = 10.0
"""So short that most of the jobs still wait at the end: our worker can run 25,000 of them in a second."""
SLOTS = {"noop": (1, 10), "nap": (1, 10, 50, 100)}
TAKING_PART = (ours.SYSTEM.name, commit_first.SYSTEM.name)


def measure(bench: Bench, system: System, task: str) -> Figures:
    """Let one worker after another run for a time, each with more slots, while the rest of the jobs wait."""
    count = jobs(WAITING, LEAST)
    bench.produce("bulk", task, 0, count)
    bench.settle()
    return grouped({f"{slots} slots": _rate(bench, system, Load(task, concurrency=slots)) for slots in SLOTS[task]})


def _rate(bench: Bench, system: System, load: Load) -> Figures:
    first = _ran(bench)
    before = Counters.read(bench.connection)
    worker = bench.start(system.worker(load))
    wait_for(lambda: _ran(bench) > first, 60, "no job has begun", pause=0.001)
    cpu, server, ran, began = cpu_seconds([worker]), bench.server.cpu_seconds(), _ran(bench), time.monotonic()
    end = began + seconds(LASTING_SECONDS)
    wait_for(lambda: time.monotonic() >= end or not bench.runs.count(0), 2 * LASTING_SECONDS, "the time", pause=0.05)
    done, lasted = _ran(bench) - ran, time.monotonic() - began
    cpu, server = cpu_seconds([worker]) - cpu, bench.server.cpu_seconds() - server
    bench.stop([worker])
    all_done = _ran(bench) - first
    counted = Counters.read(bench.connection).since(before)
    if any(times > 1 for times in bench.runs):
        raise RuntimeError("a job ran twice")
    return {
        "jobs_per_second": done / lasted,
        "worker_cpu_us": cpu / max(1, done) * 1e6,
        "server_cpu_us": server / max(1, done) * 1e6,
        "wal_bytes": counted.wal_bytes / all_done,
        "commits": counted.commits / all_done,
        "row_versions": counted.row_versions / all_done,
    }


def _ran(bench: Bench) -> int:
    runs = bench.runs
    return len(runs) - runs.count(0)


def _measured(task: str) -> Callable[[Bench, System], Figures]:
    return partial(measure, task=task)


NO_OPS = Scenario(
    name="31a",
    title="no-op jobs while a million wait, in 1 and 10 slots of one process, beside the pattern of articles",
    measure=_measured("noop"),
    takes_part=lambda system: system.name in TAKING_PART,
    jobs=lambda system: jobs(WAITING, LEAST),
    figure="10 slots: jobs_per_second",
    targets=("us: more jobs a second, and fewer commits for each",),
    by_group=True,
)
NAPS = NO_OPS._replace(
    name="31b",
    title="jobs of 50 ms while a million wait, in 1 to 100 slots of one process, beside the pattern of articles",
    measure=_measured("nap"),
    figure="100 slots: jobs_per_second",
    targets=("both: near 20 for each slot", "us: no session for each slot"),
)
