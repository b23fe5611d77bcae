"""What applications and operators ask for, under faults: unique keys, cancelling, pauses, expiry: F83 to F86."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from django_pgqueue import db, lifecycle
from django_pgqueue.states import Pausable
from tests import helpers
from tests.faults.catalogue import fault
from tests.faults.run import TASKS, Run

from .database import end_sessions

KEYED, DEBOUNCED = f"{TASKS}keyed.keyed", f"{TASKS}keyed.debounced"


def enqueue_keyed(run: Run, task_name: str, key: str, **kwargs: Any) -> int | None:
    """Enqueue a job with a key, past the history of enqueues; return its id, or None if another has the key."""
    arguments = json.dumps({"args": [], "kwargs": {"key": key, **kwargs}})
    ready_only = task_name == DEBOUNCED
    made = helpers.enqueue_unique(run.connection, key, ready_only=ready_only, task_name=task_name, arguments=arguments)
    run.connection.execute("NOTIFY pgqueue")
    return made.job_id if made else None


@fault(
    "F83",
    "the host is lost while jobs with keys run, and others want their keys all the while",
    invariant="a key that is to be kept until the end keeps others away through crash, rescue and backoff; one that is"
    " kept until the start is free, and its job comes back without",
    expected="0 of the first kind added in between, 4 of 4 of the second; all end",
)
def host_with_keys_lost(run: Run) -> str:
    go = str(run.where / "go")
    keys = [f"key {number}" for number in range(4)]
    for task_name in (KEYED, DEBOUNCED):
        assert all(enqueue_keyed(run, task_name, key, until=go) for key in keys)
    lost = run.worker("--concurrency", "8")
    run.wait_for("start", 8)
    again = [enqueue_keyed(run, DEBOUNCED, key) for key in keys]
    assert all(again), "a key that is free"
    refused: list[int] = []
    lost.send_all(signal.SIGKILL)
    run.worker("--concurrency", "16")  # for the lost, and for those that have taken their keys
    run.wait_until(lambda: _refuses(run, keys, refused) and run.outcomes().get("crashed", 0) >= 8, what="a rescue")
    run.wait_until(lambda: _refuses(run, keys, refused) and len(run.journal("start")) >= 20, what="all to begin again")
    (run.where / "go").touch()
    run.wait_until_done()
    assert run.states() == {"succeeded": 12}, run.states()
    assert run.scalar("SELECT sum(crashes) FROM pgqueue_job") == 8
    assert all(enqueue_keyed(run, KEYED, key) for key in keys), "free at the end"
    run.wait_until_done()
    return f"0 of {sum(refused)} added to the first kind, 4 of 4 to the second; 8 rescued, and all 16 ended"


def _refuses(run: Run, keys: list[str], refused: list[int]) -> bool:
    """Try to have each of the keys, in vain, and count that."""
    assert [enqueue_keyed(run, KEYED, key) for key in keys] == [None] * 4
    refused.append(len(keys))
    return True


@fault(
    "F84",
    "running jobs are cancelled: the operator's session is cut before its commit; then the worker's own are, just as"
    " the word comes, and the reply to the jobs' end is lost",
    invariant="a request that was not committed stops nothing; one that was ends its job once, and for good",
    expected="0 stopped by the first; 6 of 6 cancelled by the second, none tried again",
)
def cut_while_cancelling(run: Run) -> str:
    """In threads, on the event loop, in a transaction of its own, and in processes of their own."""
    kinds = {"plain": 2, "coroutine": 1, "atomic": 1, "alone": 2}
    jobs = [job for task, count in kinds.items() for job in run.enqueue(task, count, seconds=60)]
    worker = run.worker("--concurrency", "6", failpoint="finish.committed:close", CANCEL_GRACE=1.0)
    run.wait_for("start", 6)
    operator = run.connect()
    operator.execute("BEGIN")
    assert len(lifecycle.cancel(operator, jobs)) == 6
    operator.execute("SELECT pg_notify(%s, %s)", [db.CHANNEL, db.CANCEL_ASKED])
    run.sql("SELECT pg_terminate_backend(%s)", [operator.info.backend_pid])
    operator.close()
    time.sleep(2)  # two looks for what is to be cancelled
    assert run.states() == {"running": 6}, run.states()
    began = time.monotonic()
    run.act("cancel", jobs)
    run.sql("SELECT pg_notify(%s, %s)", [db.CHANNEL, db.CANCEL_ASKED])
    end_sessions(run, "listener", "fetcher", "heartbeat", "completer", "supervisor")
    run.wait_until_done()
    took = time.monotonic() - began
    assert run.states() == {"cancelled": 6}, run.states()
    assert run.scalar("SELECT count(*) FROM pgqueue_execution") == 6
    assert not run.scalar("SELECT count(*) FROM fault_effect WHERE kind = 'atomic'")
    assert run.journal("failpoint"), "no reply was lost"
    assert worker.process.poll() is None
    return f"0 stopped by the first; 6 of 6 cancelled {took:.1f} s after the second, by 6 executions"


@fault(
    "F85",
    "a queue is paused while a worker is frozen by SIGSTOP, and another is lost",
    invariant="who wakes claims nothing of it; what was lost comes back, and waits for the resume; nothing is charged"
    " that did not run",
    expected="at most what was being claimed begins after the pause; all succeed after the resume",
)
def paused_while_frozen(run: Run) -> str:
    run.rules = run.rules._replace(obey_seconds=4.0)
    jobs = run.enqueue("plain", 60, seconds=0.1)
    frozen, lost = run.worker("--concurrency", "2", LEASE=20.0), run.worker("--concurrency", "2")
    run.wait_for("end", 4)
    frozen.send_all(signal.SIGSTOP)
    run.wait_until(lambda: run.outcomes().get("open", 0) >= 3, what="the other to hold jobs too")
    lifecycle.pause(run.connection, Pausable.QUEUE, "default")
    lost.send_all(signal.SIGKILL)
    run.sql("SELECT pg_notify(%s, %s)", [db.CHANNEL, db.LOOK_AGAIN])
    time.sleep(3)
    began = len(run.journal("start"))
    frozen.send_all(signal.SIGCONT)
    sound = run.worker()
    other = run.enqueue("plain", 4, queue_name="other")
    run.wait_until(lambda: {run.job(job)["state"] for job in other} == {"succeeded"}, what="another queue to flow")
    run.wait_until(
        lambda: run.states().get("running", 0) == 0, what="what runs to end, and what was lost to be rescued"
    )
    held = run.enqueue("plain", 4)
    time.sleep(1.5)  # more than a look
    after = len(run.journal("start")) - began - len(other)
    waiting = run.states()["ready"]
    assert {run.job(job)["state"] for job in held} == {"ready"}
    assert after <= 4, f"{after} of the paused queue began after it"
    assert lifecycle.resume(run.connection, Pausable.QUEUE, "default")
    run.wait_until_done()
    for worker in (frozen, sound):
        run.stop(worker)
    assert run.states() == {"succeeded": len(jobs) + 8}, run.states()
    crashes = run.scalar("SELECT sum(crashes) FROM pgqueue_job")
    assert crashes <= 2, f"{crashes} charged, 2 ran where the host was lost"
    return f"{after} began after the pause, {waiting} waited for the resume; {crashes} charged, of 2 that ran; all done"


@fault(
    "F86",
    "jobs expire on their way: in a claim that waits for a table, in one whose commit waits for a standby, in a process"
    " that is frozen, in a paused queue",
    invariant="no body begins after its job's time; each is cancelled, with the reason",
    expected="0 of 16 begun",
    exclusive=True,
)
def expired_on_the_way(run: Run) -> str:
    worker = run.worker("--queues", "locked,paused,good", LEASE=20.0)
    lifecycle.pause(run.connection, Pausable.QUEUE, "paused")
    paused = _expiring(run, 4, "paused", 1.0)
    with run.connect() as migration, migration.transaction():
        migration.execute("LOCK TABLE pgqueue_execution IN ACCESS EXCLUSIVE MODE")
        locked = _expiring(run, 4, "locked", 1.0)
        _let_a_claim_wait(run, "wait_event_type = 'Lock'")
    run.wait_until(lambda: not run.unfinished(), what="these to end")
    run.sql("SET synchronous_commit = off")  # of the scenario's own session
    run.configure("synchronous_standby_names", "nobody")
    locked += _expiring(run, 4, "locked", 1.0)
    _let_a_claim_wait(run, "wait_event = 'SyncRep'")
    run.configure("synchronous_standby_names", None)
    frozen = run.worker("--queues", "frozen", failpoint="claim.committed:stop", LEASE=20.0, ready=False)
    thawed = _expiring(run, 4, "frozen", 3.0)
    child = run.wait_until_stopped(frozen)
    time.sleep(3)  # past their time
    os.kill(child, signal.SIGCONT)
    good = run.enqueue("plain", 4, queue_name="good")
    run.wait_until_done()
    for one in (worker, frozen):
        run.stop(one)
    expired = [*paused, *locked, *thawed]
    begun = {one["job"] for one in run.journal("start")} & set(expired)
    assert not begun, f"{len(begun)} begun: {begun}"
    assert {run.job(job)["state"] for job in expired} == {"cancelled"}
    assert {run.job(job)["state"] for job in good} == {"succeeded"}
    reasons = run.scalar(
        "SELECT count(*) FROM pgqueue_execution WHERE error LIKE %s", ["%had not started by the time%"]
    )
    assert reasons == 16, f"{reasons} reasons on record"
    return "0 of 16 begun: 8 whose claims waited, 4 in a frozen process, 4 in a paused queue; 4 of 4 others ran"


def _let_a_claim_wait(run: Run, how: str) -> None:
    """Wait until a claim does, and then for longer than its jobs have."""
    waits = f"SELECT pid FROM pg_stat_activity WHERE {how} AND query LIKE '%pgqueue:claim */%'"
    run.wait_until(lambda: run.sql(waits), what="a claim to wait")
    time.sleep(1.5)


def _expiring(run: Run, count: int, queue_name: str, seconds: float) -> list[int]:
    return run.enqueue("plain", count, queue_name=queue_name, expires_seconds=seconds)
