"""Work that must stay bounded and fair: recycling, paused backlogs, locked rows, shared polls (F104 to F107)."""

from __future__ import annotations

import os
import signal
import time
from itertools import accumulate

from django_pgqueue.lifecycle import pauses
from django_pgqueue.states import Pausable
from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import TASKS, Run

from . import counted


@fault(
    "F104",
    "processes are recycled every few jobs while some of their jobs are long, and retiring ones are killed",
    invariant="at most CONCURRENCY x PROCESSES jobs run at a time, in at most twice PROCESSES processes",
    expected="at most 6 jobs and 4 processes",
)
def recycled_beside_long_jobs(run: Run) -> str:
    go = run.where / "go"
    for _ in range(8):
        run.enqueue("plain", 1, until=str(go))
        run.enqueue("plain", 25, seconds=0.01)
    worker = run.worker("--max-jobs", "4", "--processes", "2", "--concurrency", "3")
    seen: list[int] = []

    def has_recycled(times: int) -> bool:
        seen.append(len(worker.children))
        return worker.said.count("will be replaced: it finishes") >= times

    run.wait_until(lambda: has_recycled(2), 20)
    os.kill(worker.children[0], signal.SIGKILL)
    until = time.monotonic() + 3
    run.wait_until(lambda: has_recycled(0) and time.monotonic() > until, 5)
    assert max(seen) <= 4, seen
    go.touch()
    run.wait_until_done()
    most = _most_at_a_time(run)
    assert most <= 6, most
    return f"at most {most} jobs and {max(seen)} processes; {run.outcomes().get('crashed', 0)} charged for the kill"


def _most_at_a_time(run: Run) -> int:
    """Return how many bodies ran at a time at most, except those that a kill left without an end."""
    ended = {event["execution"] for event in run.journal("end")}
    begins = [(event["at"], 1) for event in run.journal("start") if event["execution"] in ended]
    ends = [(event["at"], -1) for event in run.journal("end")]
    return max(accumulate(step for _, step in sorted(begins + ends)))


@fault(
    "F105",
    "a task with 1,000 waiting jobs is paused, and resumed, beside another queue",
    invariant=(
        "the paused jobs do not slow down the other queue; no paused job starts before the resume, and each ends "
        "after it"
    ),
    expected="the other queue has at least half of its speed without the paused jobs",
)
def paused_backlog(run: Run) -> str:
    worker = run.worker("--queues", "other,backlog")
    run.enqueue("plain", 300, queue_name="other")
    alone = run.wait_until(lambda: run.unfinished() == 0)
    run.stop(worker)
    paused = f"{TASKS}atomic"
    pauses.pause(run.connection, Pausable.TASK, paused)
    backlog = run.enqueue("atomic", 1000, queue_name="backlog")
    run.worker("--queues", "backlog,other")
    run.enqueue("plain", 300, queue_name="other")
    beside = run.wait_until(lambda: run.scalar(_LEFT, ["other"]) == 0)
    assert run.states() == {"succeeded": 600, "ready": 1000}
    run.act("cancel", backlog[100:])
    pauses.resume(run.connection, Pausable.TASK, paused)
    run.connection.execute("NOTIFY pgqueue")
    run.wait_until_done()
    assert {run.job(job)["state"] for job in backlog[:100]} == {"succeeded"}
    assert beside < 2 * alone + 1.0, (alone, beside)
    return f"300 jobs of the other queue took {alone:.2f} s without the backlog, {beside:.2f} s beside it"


_LEFT = "SELECT count(*) FROM pgqueue_job WHERE queue_name = %s AND finished_at IS NULL"


@fault(
    "F106",
    "another session locks 150 stale executions and the jobs of 150 others",
    invariant="unlocked jobs are rescued at once, and locked jobs after the lock is released",
    expected="the unlocked jobs run within lease + rescue + poll = 2.5 s",
)
def locked_stale_rows(run: Run) -> str:
    jobs = run.enqueue("plain", 320)
    claimed = helpers.claim_all(run.connection, worker_id=10_000, lease_seconds=0.1)
    assert len(claimed) == len(jobs)
    locker = run.connect()
    execution_ids = [one.execution_id for one in claimed[:150]]
    job_ids = [one.job_id for one in claimed[150:300]]
    with helpers.transaction(locker):
        locker.execute("SELECT 1 FROM pgqueue_execution WHERE id = ANY(%s) FOR UPDATE", [execution_ids])
        locker.execute("SELECT 1 FROM pgqueue_job WHERE id = ANY(%s) FOR UPDATE", [job_ids])
        run.worker()
        took = run.wait_until(lambda: run.states().get("succeeded", 0) >= 20, 10)
        assert run.states() == {"succeeded": 20, "running": 300}
    run.wait_until_done()
    return f"20 of 20 unlocked jobs rescued and run within {took:.2f} s; 300 of 300 after the lock was released"


@fault(
    "F107",
    "processes that poll for their siblings are frozen and killed",
    invariant="a process that relied on the polls of such a process starts due jobs by itself",
    expected="a scheduled job starts within the poll of 0.2 s + a tolerance of 1 s",
)
def siblings_that_die(run: Run) -> str:
    worker = run.worker("--processes", "4", POLL_INTERVAL=30.0, LEASE=20.0)
    run.wait_until(lambda: worker.said.count("is ready") == 4, 20)
    latest = 0.0
    for round_number in range(4):
        run.enqueue("plain", 1)
        [scheduled] = run.enqueue("plain", 1, delay_seconds=1.0)
        due_at = time.monotonic() + 1.0
        run.wait_until(lambda: run.states().get("succeeded", 0) > 2 * round_number)  # noqa: B023 -- called at once
        for child in worker.children[:3]:
            os.kill(child, signal.SIGSTOP)
        run.wait_for("start", job=scheduled)
        latest = max(latest, time.monotonic() - due_at)
        for child in worker.children[:3]:
            os.kill(child, signal.SIGCONT)
        run.wait_until(lambda: run.unfinished() == 0)
        os.kill(worker.children[round_number % 4], signal.SIGKILL)
        run.wait_until(lambda: worker.said.count("is ready") == 5 + round_number, 20)  # noqa: B023 -- the same
    assert latest < 1.2, latest
    return f"started at most {latest:.2f} s after it was due; {counted(run.outcomes())}"
