"""Workflows and batches: workers killed between a completion and what follows from it (F138, F139)."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from tests.tools.faults.catalogue import fault
from tests.tools.faults.failpoints import SECONDS
from tests.tools.faults.run import Run

SWEEP_SECONDS: Final = 10.0
UNUSED_SECONDS: Final = 60.0
SLACK_SECONDS: Final = 5.0
WAITING: Final = "SELECT count(*) FROM pgqueue_job WHERE state = 'waiting'"
LAST: Final = "last"
"""The queue of the member of a fan-in that ends last."""


def ran_once(run: Run, jobs: list[int]) -> None:
    """Assert that these jobs have succeeded, each in one execution."""
    for job in jobs:
        assert run.outcomes_of(job) == ["succeeded"], (job, run.outcomes_of(job))


def swept(run: Run, jobs: list[int], since: float, bound: float) -> float:
    """Wait until these jobs have succeeded; return how long that took from a time of the monotonic clock on."""
    run.wait_until(
        lambda: all(run.job(job)["state"] == "succeeded" for job in jobs), bound + SLACK_SECONDS, "the sweep"
    )
    return time.monotonic() - since


def kill_at_the_last_member(run: Run, failpoint: str) -> tuple[list[int], float]:
    """Kill a worker at the advance after the last of 20 jobs that one job needs. Return the jobs, and when."""
    go = run.where / "go"
    jobs = run.flow("fan_in", members=20, last={"until": str(go)}, queue=LAST)
    run.worker("--queues", "default", "--until-empty").exit_code()
    worker = run.worker("--queues", LAST, failpoint=failpoint)
    run.wait_for("start", job=jobs[19])
    go.touch()
    run.wait_for("failpoint")
    worker.exit_code()
    assert run.job(jobs[20])["state"] == "waiting"
    assert run.outcomes() == {"succeeded": 20}, "the last completion was not committed"
    return jobs, time.monotonic()


def found_by_the_sweep(run: Run, jobs: list[int], since: float, bound: float = SWEEP_SECONDS) -> str:
    """Wait until another worker has found and run what the killed one has left behind."""
    run.worker()
    took = swept(run, jobs, since, bound)
    ran_once(run, jobs)
    run.wait_until_done()
    return f"all {len(jobs)} jobs ended {took:.1f} s after the kill, each in 1 execution"


@fault(
    "F138",
    "a worker is killed between the commit of a completion and the advance of its dependents, in a chain of 4",
    invariant="the sweep of another worker finds the next job; each job runs exactly once, after those that it needs",
    expected="the whole chain has run within 10 s + 5 s; 0 executions more",
)
def killed_before_the_advance(run: Run) -> str:
    chain = run.flow("chain", length=4)
    run.worker(failpoint="advance.sent:killall", ready=False).exit_code()
    assert (run.scalar(WAITING), run.outcomes()) == (3, {"succeeded": 1})
    return found_by_the_sweep(run, chain, time.monotonic())


@fault(
    "F138b",
    "as F138, after the last of 20 jobs that one job needs",
    invariant="as F138",
    expected="as F138",
)
def killed_before_the_advance_of_a_fan_in(run: Run) -> str:
    jobs, since = kill_at_the_last_member(run, "advance.sent:killall")
    return found_by_the_sweep(run, jobs, since)


@fault(
    "F138c",
    "as F138, and the only other worker had found no waiting job before",
    invariant="as F138",
    expected="the next job is ready within a minute + 5 s",
)
def killed_before_the_advance_of_the_first(run: Run) -> str:
    run.worker("--queues", "elsewhere", failpoint="sweep.done:sleep", variables={SECONDS: "0"})
    run.wait_for("failpoint", within=UNUSED_SECONDS + SLACK_SECONDS)  # it has found no waiting job
    chain = run.flow("chain", length=2)
    run.worker(failpoint="advance.sent:killall", ready=False).exit_code()
    killed = time.monotonic()
    assert run.scalar(WAITING) == 1
    run.wait_until(lambda: not run.scalar(WAITING), UNUSED_SECONDS + SLACK_SECONDS, "the sweep")
    took = time.monotonic() - killed
    run.worker()
    run.wait_until_done()
    ran_once(run, chain)
    return f"ready {took:.1f} s after the kill; each job ran once"


@fault(
    "F139",
    "a worker is killed inside the advance of dependents, before its commit",
    invariant="the advance is rolled back, and the sweep of another worker repeats it; each job runs exactly once",
    expected="as F138",
)
def killed_inside_the_advance(run: Run) -> str:
    jobs, since = kill_at_the_last_member(run, "advance.done:killall")
    return found_by_the_sweep(run, jobs, since)


@fault(
    "F139b",
    "the server ends the session of a worker inside its advance, between the statement and the commit",
    invariant="the worker repeats the advance itself, on a new connection; each job runs exactly once",
    expected="the dependents run within 5 s: without the sweep",
)
def session_ended_inside_the_advance(run: Run) -> str:
    chain = run.flow("chain", length=3)
    worker = run.worker(failpoint="advance.done:stop", LEASE=30.0)
    pid = run.wait_until_stopped(worker)
    ended = run.scalar(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE state = 'idle in transaction' AND query LIKE '%pgqueue:advance%'"
    )
    assert ended == 1, ended
    began = time.monotonic()
    os.kill(pid, signal.SIGCONT)
    took = swept(run, chain, began, SLACK_SECONDS)
    assert took < SLACK_SECONDS, f"only the sweep has found the jobs, after {took:.1f} s"
    run.wait_until_done()
    ran_once(run, chain)
    return f"the chain went on, and ended after {took:.1f} s; each job ran once"
