"""Scenario 3: jobs of one read and one write by Django's ORM. Each system at the best it has."""

from __future__ import annotations

from collections.abc import Sequence

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.drain import drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import Load, System
from tests.tools.benchmarks.telling import say

JOBS = 10_000
TRIED = 0.2
"""Of a round's jobs: how many each load is tried with before the first round."""
SHOWN = ("jobs_per_second", "worker_cpu_us", "server_cpu_us")
_best: dict[str, Load] = {}
"""By system: found in its first round, and used in all."""


def measure(bench: Bench, system: System) -> Figures:
    """Find the best load if it is not known yet, then drain with it."""
    jobs, tried = _jobs(system), 0
    if system.name not in _best:
        _best[system.name], tried = _find_best(bench, system, _loads(system))
    load = _best[system.name]
    measured = drained(bench, system, load, range(tried, tried + jobs)).figures
    check_rows(bench, tried + jobs)
    figures = {name: measured[name] for name in SHOWN}
    return figures | {"processes": load.processes, "concurrency": load.concurrency or 1}


def _find_best(bench: Bench, system: System, loads: Sequence[Load]) -> tuple[Load, int]:
    """The fastest of these loads, and how many jobs were run to find it."""
    few, speeds = _few(system), dict.fromkeys(loads, 0.0)
    if len(loads) == 1:
        return loads[0], 0
    for place, load in enumerate(loads):
        speeds[load] = drained(bench, system, load, range(place * few, (place + 1) * few)).jobs_per_second
        say(f"3 {system.name}, {load.processes} processes, {load.concurrency} at a time: {speeds[load]:,.0f} jobs/s")
    return max(loads, key=speeds.__getitem__), few * len(loads)


def check_rows(bench: Bench, jobs: int) -> None:
    """Raise if not every job has written its row, once."""
    written = bench.count("SELECT count(*) FROM app_visit")
    if written != jobs or bench.count("SELECT count(DISTINCT number) FROM app_visit") != jobs:
        raise RuntimeError(f"{jobs} jobs wrote {written} rows")


def _loads(system: System) -> list[Load]:
    at_a_time: list[int | None] = [*system.sweep] or [None]
    return [Load("touch", processes, number) for processes in system.processes for number in at_a_time]


def _jobs(system: System) -> int:
    return min(JOBS, system.drain_jobs)


def _few(system: System) -> int:
    return int(_jobs(system) * TRIED)


ORM = Scenario(
    name="3",
    title="drain jobs of one read and one write by the ORM, the best of one or two processes and of jobs at a time",
    measure=measure,
    takes_part=lambda system: "touch" in system.tasks,
    jobs=lambda system: _jobs(system) + len(_loads(system)) * _few(system),
    figure="jobs_per_second",
    targets=("≥ 4 times the best of django-tasks-db, django-ox and dj-queue",),
)
