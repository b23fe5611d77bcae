"""Late replies to claims, stops with a stuck completer, isolated processes (F108 to F112)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.tools.faults.catalogue import fault
from tests.tools.faults.failpoints import SECONDS
from tests.tools.faults.run import Run

from . import counted


@fault(
    "F108",
    "the reply to a claim arrives after three quarters of a lease",
    invariant="no other worker starts these jobs meanwhile; they run in the worker that claimed them",
    expected="1 start and 1 execution for each job",
)
def late_answer_of_claim(run: Run) -> str:
    jobs = run.enqueue("plain", 8, seconds=0.2)
    run.worker(failpoint="claim.committed:sleep", variables={SECONDS: "3"}, ready=False, LEASE=4.0)
    run.wait_for("failpoint")
    run.worker(LEASE=4.0)
    run.wait_until_done()
    assert len(run.journal("start")) == len(jobs)
    assert run.outcomes() == {"succeeded": len(jobs)}
    return f"{len(jobs)} jobs, {len(run.journal('start'))} starts, {counted(run.outcomes())}"


@fault(
    "F109",
    "SIGTERM while one job continues to run and the completion of another cannot be written",
    invariant="a running job is released only just before its process ends",
    expected="the job is released at most 1 s before the end of the process; the process exits within the grace + 12 s",
)
def stop_with_a_stuck_completer(run: Run) -> str:
    go, stays = run.where / "go", run.where / "stays"
    [stuck] = run.enqueue("plain", 1, until=str(go))
    worker = run.worker("--grace", "0.3", LEASE=60.0)
    run.wait_for("start")
    [left] = run.enqueue("in_c", 1, until=str(stays))
    run.wait_for("start", 2)
    child = worker.wait_for_child()
    began = time.monotonic()
    with run.connect() as session, session.transaction():
        session.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [stuck])
        go.touch()
        worker.send(signal.SIGTERM)
        run.wait_until(lambda: "released" in run.outcomes_of(left), 15)
        released_at = time.monotonic()
        run.wait_until(lambda: not os.path.exists(f"/proc/{child}/cwd"), 15)
        ended_at = time.monotonic()
    assert ended_at - released_at < 1, ended_at - released_at
    run.ended(worker)
    stays.touch()
    run.worker()
    run.wait_until_done()
    assert (run.job(left)["attempt"], run.job(left)["crashes"]) == (1, 0)
    return f"exit {ended_at - began:.1f} s after the signal, {ended_at - released_at:.2f} s after the release"


@fault(
    "F110",
    "SIGKILL of a worker process while the program of an isolated job runs",
    invariant="the program ends with the process; the job is released without counting the attempt",
    expected="the program is gone within 0.5 s",
)
def program_of_a_killed_worker(run: Run) -> str:
    path = run.where / "pid"
    [job] = run.enqueue("with_program", 1, path=str(path), seconds=60.0)
    worker = run.worker()
    run.wait_until(lambda: path.exists() and path.read_text())
    program = path.read_text()
    os.kill(worker.children[0], signal.SIGKILL)
    took = run.wait_until(lambda: not is_alive(program), 5)
    assert took < 0.5, took
    run.wait_until_done()
    assert (run.job(job)["attempt"], run.job(job)["crashes"]) == (1, 0)
    return f"gone after {took:.2f} s; {counted(run.outcomes())}"


@fault(
    "F112",
    "the server ends its session, or all sessions, while a process for isolated jobs is idle",
    invariant="the next job in that process is not charged",
    expected="0 more attempts than jobs",
)
def sessions_end_under_an_isolated_process(run: Run) -> str:
    worker = run.worker("--concurrency", "1", LEASE=30.0)
    jobs = []
    # First only the session of the isolated process, which the worker process does not notice. Then all sessions.
    for names in ("", "%", "%"):
        jobs += run.enqueue("alone")
        run.wait_until(lambda: not run.unfinished())
        run.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                " AND datname = current_database() AND application_name LIKE %s", [names])  # fmt: skip
    jobs += run.enqueue("alone")
    run.wait_until_done()
    assert {run.job(job)["attempt"] for job in jobs} == {1}
    assert run.outcomes() == {"succeeded": len(jobs)}
    assert len(worker.children) == 1
    return f"{len(jobs)} jobs, {counted(run.outcomes())}"


def is_alive(pid: str) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
