"""Requests of applications and operators under faults (F83 to F86): unique keys, cancellation, pauses, expiry."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from django_pgqueue.db.notifications import CANCEL_REQUESTED, CHANNEL, PAUSES_CHANGED
from django_pgqueue.lifecycle import operator as lifecycle_operator
from django_pgqueue.lifecycle import pauses
from django_pgqueue.states import Pausable
from django_pgqueue.worker.execution.report import EXPIRED
from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import TASKS, Run

from .database import end_sessions

KEYED, DEBOUNCED = f"{TASKS}keyed.keyed", f"{TASKS}keyed.debounced"


def enqueue_keyed(run: Run, task_name: str, key: str, **kwargs: Any) -> int | None:
    """Enqueue a job with a key without recording the enqueue; return its id, or `None` if another job has the key."""
    arguments = json.dumps({"args": [], "kwargs": {"key": key, **kwargs}})
    ready_only = task_name == DEBOUNCED
    made = helpers.enqueue_unique(run.connection, key, ready_only=ready_only, task_name=task_name, arguments=arguments)
    run.connection.execute("NOTIFY pgqueue")
    return made.job_id if made else None


@fault(
    "F83",
    "the host is lost while jobs with unique keys run; other enqueues request the same keys all the time",
    invariant=(
        "A key that lasts until the end of the job still blocks other jobs after a crash, a rescue and a backoff. A "
        "key that lasts until the start is free then, and the rescued job returns without it."
    ),
    expected="0 jobs added with the first kind of key, 4 of 4 with the second; all jobs end",
)
def host_with_keys_lost(run: Run) -> str:
    go = str(run.where / "go")
    keys = [f"key {number}" for number in range(4)]
    for task_name in (KEYED, DEBOUNCED):
        assert all(enqueue_keyed(run, task_name, key, until=go) for key in keys)
    lost = run.worker("--concurrency", "8")
    run.wait_for("start", 8)
    again = [enqueue_keyed(run, DEBOUNCED, key) for key in keys]
    assert all(again), "a key is not free"
    refused: list[int] = []
    lost.send_all(signal.SIGKILL)
    run.worker("--concurrency", "16")  # slots for the 8 lost jobs and the 4 new ones
    run.wait_until(lambda: _refuses(run, keys, refused) and run.outcomes().get("crashed", 0) >= 8, what="a rescue")
    run.wait_until(lambda: _refuses(run, keys, refused) and len(run.journal("start")) >= 20, what="all jobs to begin")
    (run.where / "go").touch()
    run.wait_until_done()
    assert run.states() == {"succeeded": 12}, run.states()
    assert run.scalar("SELECT sum(crashes) FROM pgqueue_job") == 8
    rescued = "SELECT count(unique_key) FROM pgqueue_job WHERE task_name = %s AND crashes > 0"
    assert (run.scalar(rescued, [KEYED]), run.scalar(rescued, [DEBOUNCED])) == (4, 0)
    assert all(enqueue_keyed(run, KEYED, key) for key in keys), "a key is not free at the end"
    run.wait_until_done()
    return f"0 of {sum(refused)} jobs added with the first kind of key, 4 of 4 with the second; 8 rescued; all 16 ended"


def _refuses(run: Run, keys: list[str], refused: list[int]) -> bool:
    """Try to enqueue a job for each key, assert that all are refused, and count the attempts."""
    assert [enqueue_keyed(run, KEYED, key) for key in keys] == [None] * 4
    refused.append(len(keys))
    return True


@fault(
    "F84",
    "running jobs are cancelled twice, while sessions of the operator and of the worker are cut",
    invariant="a request that is not committed stops no job; a committed request ends its job once and finally",
    expected="0 jobs stopped by the first request; 6 of 6 cancelled by the second, none retried",
)
def cut_while_cancelling(run: Run) -> str:
    """Run the jobs in threads, on the event loop, in an atomic transaction and in isolated processes."""
    kinds = {"plain": 2, "coroutine": 1, "atomic": 1, "alone": 2}
    jobs = [job for task, count in kinds.items() for job in run.enqueue(task, count, seconds=60)]
    worker = run.worker("--concurrency", "6", failpoint="finish.committed:close", CANCEL_GRACE=1.0)
    run.wait_for("start", 6)
    operator = run.connect()
    operator.execute("BEGIN")
    assert len(lifecycle_operator.cancel(operator, jobs)) == 6
    operator.execute("SELECT pg_notify(%s, %s)", [CHANNEL, CANCEL_REQUESTED])
    run.sql("SELECT pg_terminate_backend(%s)", [operator.info.backend_pid])
    operator.close()
    time.sleep(2)  # two polls for requests to cancel
    assert run.states() == {"running": 6}, run.states()
    began = time.monotonic()
    run.act("cancel", jobs)
    run.sql("SELECT pg_notify(%s, %s)", [CHANNEL, CANCEL_REQUESTED])
    end_sessions(run, "listener", "fetcher", "lease-monitor", "completer", "supervisor")
    run.wait_until_done()
    took = time.monotonic() - began
    assert run.states() == {"cancelled": 6}, run.states()
    assert run.scalar("SELECT count(*) FROM pgqueue_execution") == 6
    assert not run.scalar("SELECT count(*) FROM fault_effect WHERE kind = 'atomic'")
    assert run.journal("failpoint"), "no reply was lost"
    assert worker.process.poll() is None
    return f"0 stopped by the first request; 6 of 6 cancelled {took:.1f} s after the second, in 6 executions"


@fault(
    "F85",
    "a queue is paused while one worker is frozen by SIGSTOP and another is lost",
    invariant=(
        "the frozen worker claims no job of the queue when it continues; lost jobs are rescued and wait for the "
        "resume; a job that did not run is not charged"
    ),
    expected=(
        "only jobs of a claim that was already running may start after the pause; all jobs succeed after the resume"
    ),
)
def paused_while_frozen(run: Run) -> str:
    run.rules = run.rules._replace(obey_seconds=4.0)
    jobs = run.enqueue("plain", 60, seconds=0.1)
    frozen, lost = run.worker("--concurrency", "2", LEASE=20.0), run.worker("--concurrency", "2")
    run.wait_for("end", 4)
    frozen.send_all(signal.SIGSTOP)
    run.wait_until(lambda: run.outcomes().get("open", 0) >= 3, what="the other worker to claim jobs too")
    pauses.pause(run.connection, Pausable.QUEUE, "default")
    lost.send_all(signal.SIGKILL)
    run.sql("SELECT pg_notify(%s, %s)", [CHANNEL, PAUSES_CHANGED])
    time.sleep(3)
    began = len(run.journal("start"))
    frozen.send_all(signal.SIGCONT)
    sound = run.worker()
    other = run.enqueue("plain", 4, queue_name="other")
    run.wait_until(
        lambda: {run.job(job)["state"] for job in other} == {"succeeded"}, what="the jobs of another queue to succeed"
    )
    run.wait_until(lambda: run.states().get("running", 0) == 0, what="running jobs to end and lost jobs to be rescued")
    held = run.enqueue("plain", 4)
    time.sleep(1.5)  # more than one poll
    after = len(run.journal("start")) - began - len(other)
    waiting = run.states()["ready"]
    assert {run.job(job)["state"] for job in held} == {"ready"}
    assert after <= 4, f"{after} jobs of the paused queue began after the pause"
    assert pauses.resume(run.connection, Pausable.QUEUE, "default")
    run.wait_until_done()
    for worker in (frozen, sound):
        run.stop(worker)
    assert run.states() == {"succeeded": len(jobs) + 8}, run.states()
    crashes = run.scalar("SELECT sum(crashes) FROM pgqueue_job")
    assert crashes <= 2, f"{crashes} jobs charged, but 2 ran on the lost host"
    return (
        f"{after} jobs began after the pause, {waiting} waited for the resume;"
        f" {crashes} charged of the 2 that ran on the lost host; all succeeded"
    )


@fault(
    "F86",
    "jobs expire in a claim that waits for a lock or a standby, in a frozen process and in a paused queue",
    invariant="no body begins after its job has expired; each expired job is cancelled with the reason",
    expected="0 of 16 bodies begin",
    exclusive=True,
)
def expired_on_the_way(run: Run) -> str:
    worker = run.worker("--queues", "locked,paused,good", LEASE=20.0)
    pauses.pause(run.connection, Pausable.QUEUE, "paused")
    paused = _expiring(run, 4, "paused", 1.0)
    with run.connect() as migration, migration.transaction():
        migration.execute("LOCK TABLE pgqueue_execution IN ACCESS EXCLUSIVE MODE")
        locked = _expiring(run, 4, "locked", 1.0)
        _let_a_claim_wait(run, "wait_event_type = 'Lock'")
    run.wait_until(lambda: not run.unfinished(), what="the jobs to end")
    run.sql("SET synchronous_commit = off")  # only in the scenario's own session
    run.configure("synchronous_standby_names", "nobody")
    locked += _expiring(run, 4, "locked", 1.0)
    _let_a_claim_wait(run, "wait_event = 'SyncRep'")
    run.configure("synchronous_standby_names", None)
    frozen = run.worker("--queues", "frozen", failpoint="claim.committed:stop", LEASE=20.0, ready=False)
    thawed = _expiring(run, 4, "frozen", 3.0)
    child = run.wait_until_stopped(frozen)
    time.sleep(3)  # past their expiry
    os.kill(child, signal.SIGCONT)
    good = run.enqueue("plain", 4, queue_name="good")
    run.wait_until_done()
    for one in (worker, frozen):
        run.stop(one)
    expired = [*paused, *locked, *thawed]
    begun = {one["job"] for one in run.journal("start")} & set(expired)
    assert not begun, f"{len(begun)} expired jobs began: {begun}"
    assert {run.job(job)["state"] for job in expired} == {"cancelled"}
    assert {run.job(job)["state"] for job in good} == {"succeeded"}
    reasons = run.scalar("SELECT count(*) FROM pgqueue_execution WHERE error = %s", [EXPIRED])
    assert reasons == 16, f"{reasons} reasons recorded"
    return "0 of 16 began: 8 whose claims waited, 4 in a frozen process, 4 in a paused queue; 4 of 4 others ran"


def _let_a_claim_wait(run: Run, how: str) -> None:
    """Wait until a claim waits in this way, and then until its jobs have expired."""
    waits = f"SELECT pid FROM pg_stat_activity WHERE {how} AND query LIKE '%pgqueue:claim */%'"
    run.wait_until(lambda: run.sql(waits), what="a claim to wait")
    time.sleep(1.5)


def _expiring(run: Run, count: int, queue_name: str, seconds: float) -> list[int]:
    return run.enqueue("plain", count, queue_name=queue_name, expires_seconds=seconds)
