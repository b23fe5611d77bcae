"""Scenario 26: durable steps. Jobs of one step and jobs of eleven; the difference is the cost of ten steps."""

from __future__ import annotations

from tests.tools.benchmarks.place import Bench
from tests.tools.benchmarks.scenarios.drain import Drained, drained
from tests.tools.benchmarks.scenarios.scenario import Figures, Scenario
from tests.tools.benchmarks.systems.system import Load, System

MORE_STEPS = 10


def measure(bench: Bench, system: System) -> Figures:
    """Drain jobs of one step one after another, then as many jobs of eleven steps."""
    jobs = system.drain_jobs
    short = _drained(bench, system, "one_step", range(jobs))
    long = _drained(bench, system, "eleven_steps", range(jobs, 2 * jobs))
    return {
        "step_ms": (1 / long.jobs_per_second - 1 / short.jobs_per_second) / MORE_STEPS * 1000,
        "commits_per_step": (long.figures["commits"] - short.figures["commits"]) / MORE_STEPS,
        "worker_cpu_us": (long.figures["worker_cpu_us"] - short.figures["worker_cpu_us"]) / MORE_STEPS,
        "server_cpu_us": (long.figures["server_cpu_us"] - short.figures["server_cpu_us"]) / MORE_STEPS,
        "wal_bytes": (long.figures["wal_bytes"] - short.figures["wal_bytes"]) / MORE_STEPS,
    }


def _drained(bench: Bench, system: System, task: str, numbers: range) -> Drained:
    return drained(bench, system, Load(task, concurrency=1), numbers)


STEPS = Scenario(
    name="26",
    title="durable steps, one after another",
    measure=measure,
    takes_part=lambda system: "eleven_steps" in system.tasks,
    jobs=lambda system: 2 * system.drain_jobs,
    figure="step_ms",
    bigger_is_better=False,
    targets=("< 0.6 ms for each step", "one commit for each step"),
)
