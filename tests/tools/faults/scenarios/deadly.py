"""Deadly and endless jobs, with a timeout or in isolated processes (F12b, F62b, F65, F66, F79)."""

from __future__ import annotations

import os
import time

from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

from .machine import cgroup, inside

WAYS = ("segfault", "exit 0", "exit 1", "abort", "kill", "close everything")
GOOD = 199
TIMEOUT_SECONDS = 1.0
"""The timeout of the tasks in `app/tasks/deadly.py`."""


def assert_spared(run: Run, jobs: list[int]) -> None:
    """Assert that the neighbours have succeeded at the first attempt and were not charged."""
    rows = run.sql("SELECT DISTINCT state, attempt, crashes FROM pgqueue_job WHERE id = ANY (%s)", [jobs])
    assert rows == [("succeeded", 1, 0)], rows


def seconds_of(run: Run, jobs: list[int]) -> list[float]:
    """Return the seconds from start to end of each execution of these jobs, shortest first."""
    query = """
        SELECT extract(epoch FROM finished_at - started_at)::float8 FROM pgqueue_execution
        WHERE job_id = ANY (%s) ORDER BY 1
    """
    return [row[0] for row in run.sql(query, [jobs])]


@fault(
    "F12b",
    "the kernel kills the process of an isolated job that uses too much memory",
    invariant="only that job is charged; the worker process survives",
    expected="3 crashes, then dead; 60 of 60 others succeed, not charged",
    needs=("root", "memory cgroup"),
)
def out_of_memory_alone(run: Run) -> str:
    with cgroup("memory", run.name, limit_in_bytes="300M") as home:
        worker = run.worker(prefix=inside(home))
        child = worker.children[0]
        [poison] = run.enqueue("deadly.swallow_memory")
        others = run.enqueue("plain", 60, seconds=0.05)
        run.wait_until_done(60)
        assert run.outcomes_of(poison) == ["crashed"] * 3
        assert worker.children == [child]
        assert_spared(run, others)
        run.stop(worker)
    return "3 crashes, then dead; 60 of 60 others succeeded, not charged"


@fault(
    "F62b",
    "isolated jobs end their process in six ways, among 199 others",
    invariant="only that job is charged; the end of the process is noticed at once",
    expected="3 crashes each, then dead; 199 of 199 others succeed, not charged; each noticed in less than 1 s",
    quick=True,
)
def deadly_alone(run: Run) -> str:
    worker = run.worker()
    child = worker.children[0]
    others = run.enqueue("plain", GOOD - 20) + run.enqueue("atomic", 20)
    poison = [run.enqueue("deadly.die", how=how)[0] for how in WAYS]
    run.wait_until_done(60)
    for job in poison:
        assert run.outcomes_of(job) == ["crashed"] * 3
    assert_spared(run, others)
    assert worker.children == [child]
    quick = seconds_of(run, poison[:-1])  # the last one closes its files only: noticed after two seconds
    assert quick[-1] < 1, quick
    return f"3 crashes each, then dead; {GOOD} of {GOOD} others succeeded; noticed in {quick[-1] * 1000:.0f} ms at most"


@fault(
    "F65",
    "endless isolated jobs with a timeout of 1 s, also in C code that keeps the GIL",
    invariant="the worker kills them at their timeout, and records their stack",
    expected="the attempts fail within 1 s after their timeout",
    quick=True,
)
def endless_alone(run: Run) -> str:
    ways = ("a loop", "one call in C", "a sleep", "C that keeps the interpreter")
    run.worker()
    jobs = [run.enqueue("deadly.endless_alone", how=how, max_attempts=1)[0] for how in ways]
    others = run.enqueue("plain", 20)
    run.wait_until_done()
    rows = run.sql(
        "SELECT outcome, exception_class, traceback LIKE '%%in never_end%%' FROM pgqueue_execution "
        "WHERE job_id = ANY (%s)",
        [jobs],
    )
    assert set(rows) == {("failed", "django_pgqueue.exceptions.TaskTimeout", True)}, rows
    assert_spared(run, others)
    late = seconds_of(run, jobs)[-1] - TIMEOUT_SECONDS
    assert late < 1, late
    return f"4 of 4 failed, {late:.2f} s after their timeout at most"


@fault(
    "F65b",
    "endless jobs in threads with a timeout of 1 s: a loop, a sleep",
    invariant="jobs that can be interrupted are stopped; the executions of the others are closed; the slots work again",
    expected="the loop ends within 1 s of its timeout, the sleep 5 s after it",
)
def endless_in_threads(run: Run) -> str:
    worker = run.worker("--concurrency", "2")
    child = worker.children[0]
    [loop] = run.enqueue("deadly.endless", how="a loop", max_attempts=1)
    [sleep] = run.enqueue("deadly.endless", how="a sleep", max_attempts=1)
    others = run.enqueue("plain", 20)
    run.wait_until_done()
    assert_spared(run, others)
    assert (run.outcomes_of(loop), run.outcomes_of(sleep)) == (["failed"], ["failed"])
    assert worker.children == [child]
    [loop_took], [sleep_took] = seconds_of(run, [loop]), seconds_of(run, [sleep])
    assert loop_took < TIMEOUT_SECONDS + 1
    assert sleep_took < TIMEOUT_SECONDS + 6
    loop_late, sleep_late = loop_took - TIMEOUT_SECONDS, sleep_took - TIMEOUT_SECONDS
    return f"the loop ended {loop_late:.2f} s after its timeout, the sleep {sleep_late:.2f} s"


@fault(
    "F66",
    "C code in a thread keeps the GIL beyond the job's timeout of 1 s",
    invariant="the supervisor extends the lease until it ends the process; only that job is charged",
    expected=(
        "the job counts as crashed 10 s after its timeout; its neighbours are released without counting the attempt"
    ),
)
def deaf(run: Run) -> str:
    go = run.where / "go"
    run.worker()
    [neighbour] = run.enqueue("plain", until=str(go))
    run.wait_for("start", job=neighbour)
    [job] = run.enqueue("deadly.endless", how="C that keeps the interpreter", max_attempts=1)
    run.wait_until(lambda: run.outcomes_of(job) == ["crashed"])
    go.touch()
    run.wait_until_done()
    assert_spared(run, [neighbour])
    [took] = seconds_of(run, [job])
    outcomes = ", then ".join(run.outcomes_of(neighbour))
    return f"crashed {took - TIMEOUT_SECONDS:.1f} s after its timeout; the neighbour: {outcomes}"


@fault(
    "F79",
    "jobs swallow every exception, in a thread and in an isolated process, while the worker is stopped",
    invariant="both jobs are released without counting the attempt; no process remains",
    expected="exit within the grace of 2 s + 3 s",
)
def unmoved(run: Run) -> str:
    worker = run.worker()
    jobs = run.enqueue("deadly.unmoved") + run.enqueue("deadly.unmoved_alone")
    run.wait_for("start", 2)
    pids = {int(line["pid"]) for line in run.journal("start")}
    began = time.monotonic()
    run.stop(worker)
    took = time.monotonic() - began
    assert took < 5, took
    rows = run.sql("SELECT DISTINCT state, attempt, crashes FROM pgqueue_job WHERE id = ANY (%s)", [jobs])
    assert rows == [("ready", 0, 0)], rows
    assert len(pids) == 2
    run.wait_until(lambda: not any(_is_there(pid) for pid in pids), 5)
    return f"exit after {took:.1f} s; both released; no process left"


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
