"""Chunks, circuit breakers, overrides and pauses of keys while workers and servers are lost (F127 to F130)."""

from __future__ import annotations

import os
import signal
import time
from typing import Final

from django_pgqueue.db.notifications import CHANNEL, PAUSES_CHANGED
from django_pgqueue.lifecycle import limit_overrides, pauses
from django_pgqueue.states import Pausable
from tests.tools.faults.catalogue import fault
from tests.tools.faults.limits import BREAKER, CHUNK
from tests.tools.faults.run import Run

from . import counted
from .limits import started

JOBS: Final = 20
RUNNING: Final = 5
DOWN_SECONDS: Final = 2.0
OPEN_BREAKERS: Final = "SELECT count(*) FROM pgqueue_open_breaker"


def calls_of(run: Run) -> list[list[int]]:
    """Return the jobs of each call of a function with a chunk, in the order of the calls."""
    calls: dict[str, list[int]] = {}
    for one in run.journal("start"):
        if "call" in one:
            calls.setdefault(one["call"], []).append(one["job"])
    return list(calls.values())


@fault(
    "F127",
    "a process is killed in the call of a chunk, and a host is lost at the end of one",
    invariant="each job of a lost chunk is charged once and runs again, alone; an atomic chunk is all or nothing",
    expected=f"2 chunks of {CHUNK} lost: {2 * CHUNK} charged, 0 jobs lost; the others run in chunks",
    quick=True,
)
def killed_in_a_chunk(run: Run) -> str:
    jobs = []
    for task, queue, point in (("separate", "first", "body.mid:kill"), ("together", "second", "body.done:killall")):
        jobs += run.enqueue(f"chunked.{task}", JOBS, queue_name=queue)
        run.worker("--queues", queue, "--concurrency", "1", failpoint=point, ready=False)
    run.wait_for("failpoint", 2)
    run.worker()
    run.wait_until_done()
    lost = {row[0] for row in run.sql("SELECT job_id FROM pgqueue_execution WHERE outcome = 'crashed'")}
    calls = calls_of(run)
    killed = [call for call in calls if lost & {*call} and len(call) > 1]
    again = [call for call in calls if lost & {*call} and call not in killed]
    assert run.states() == {"succeeded": len(jobs)}, run.states()
    assert run.outcomes() == {"succeeded": len(jobs), "crashed": len(lost)}, run.outcomes()
    assert sorted(map(len, killed)) == [CHUNK, CHUNK], calls
    assert len(again) == len(lost) == 2 * CHUNK, calls
    others = [len(call) for call in calls if not lost & {*call}]
    assert sum(others) == len(jobs) - len(lost), calls
    return f"2 chunks of {CHUNK} lost, {len(lost)} charged, each ran again alone; {len(others)} other calls"


def break_service(run: Run, key: str) -> None:
    """Let the service of a key be down, and enqueue enough jobs for its breaker to open."""
    (run.where / f"down {key}").touch()
    run.enqueue("limited.sheltered", BREAKER.attempts + 4, key=key, seconds=0.2)


def repair_service(run: Run, key: str) -> None:
    """Let the service of a key be up."""
    (run.where / f"down {key}").unlink()


@fault(
    "F128",
    "workers are lost as they open a breaker, probe its key, and close it",
    invariant="a breaker opens and closes as a whole or not at all; a lost probe has failed; one job probes at a time",
    expected="the breaker opens with the next failures, again with the lost probe, and closes with a later one",
)
def lost_at_a_breaker(run: Run) -> str:
    break_service(run, "a")
    run.worker(failpoint="open.done:killall", ready=False)
    run.wait_for("failpoint", 1)
    early = run.scalar(OPEN_BREAKERS)
    assert early == 0, "a breaker was opened by a transaction that was lost"
    second = run.worker("--concurrency", "3")
    run.wait_until(lambda: run.scalar(OPEN_BREAKERS), what="the breaker to open")
    second.send_all(signal.SIGKILL)
    repair_service(run, "a")
    go = run.where / "go"
    [probe] = run.enqueue("limited.sheltered", 1, key="a", until=str(go), run_after="2001-01-01T00:00:00Z")
    run.enqueue("limited.sheltered", 6, key="a")
    third = run.worker()
    run.wait_until(lambda: probe in started(run), 20, "the probe")
    third.send_all(signal.SIGKILL)
    go.touch()
    run.worker(failpoint="close.done:killall", ready=False)
    run.wait_for("failpoint", 2)
    run.worker()
    run.wait_until_done()
    left = "SELECT (SELECT count(*) FROM pgqueue_open_breaker) + (SELECT count(*) FROM pgqueue_pause)"
    run.wait_until(lambda: not run.scalar(left), 5, "the breaker to close and its pause to end")
    counts = dict(run.sql("SELECT is_open, count(*) FROM fault_breaker GROUP BY 1"))
    opened, closed = counts.get(True, 0), counts.get(False, 0)
    assert opened >= 2, opened
    assert closed >= 1, closed
    return f"{early} opened by the lost worker; opened {opened} times, closed {closed}; {counted(run.outcomes())}"


def override(run: Run, key: str, **given: object) -> None:
    """Change a limit as an operator does."""
    with run.connection.transaction():
        limit_overrides.override(run.connection, key, given, changed_by="ada", reason="a fault")
    run.sql("SELECT pg_notify(%s, %s)", [CHANNEL, PAUSES_CHANGED])


@fault(
    "F129",
    "an operator raises and lowers a concurrency while jobs run; their host is lost, and later the server crashes",
    invariant="running jobs continue; no job of the key starts until none runs, also after the rescue and the crash",
    expected=f"{RUNNING} open before; 1 open at a time after the rescue; all jobs end",
    exclusive=True,
)
def lowered_below_the_running(run: Run) -> str:
    go = run.where / "go"
    override(run, "slots:a", concurrency=RUNNING)
    time.sleep(1)
    jobs = run.enqueue("limited.slotted", RUNNING + 3, key="a", until=str(go))
    first = run.worker("--concurrency", "8")
    run.wait_for("start", RUNNING)
    override(run, "slots", concurrency=1)
    override(run, "slots:a", concurrency=None)
    time.sleep(2 * run.rules.obey_seconds)
    assert len(started(run)) == RUNNING, f"{len(started(run))} started"
    run.worker("--concurrency", "8", LEASE=8.0)
    first.send_all(signal.SIGKILL)
    run.wait_until(lambda: run.outcomes().get("crashed") == RUNNING, 10, "the rescue")
    run.wait_for("start", RUNNING + 1)
    time.sleep(run.rules.obey_seconds)
    opened = run.scalar("SELECT count(*) FROM pgqueue_execution WHERE outcome IS NULL")
    run.server.cluster.stop("immediate")
    run.server.cluster.start()
    go.touch()
    run.wait_until_done()
    changes = run.scalar("SELECT count(*) FROM pgqueue_audit WHERE action = 'override limit' AND done_by = 'ada'")
    assert opened == 1, f"{opened} open after the rescue"
    assert run.states() == {"succeeded": len(jobs)}, run.states()
    return f"{RUNNING} open before, {opened} after the rescue; {changes} changes recorded; {counted(run.outcomes())}"


@fault(
    "F130",
    "a key and a limit are paused without notifications; the server crashes, and a worker is replaced",
    invariant="a paused key starts nothing after the second that a worker has; other keys continue; no job is lost",
    expected="0 starts of paused keys after that second, across the crash; the rest ends within 5 s of the resume",
    exclusive=True,
)
def paused_keys_across_a_crash(run: Run) -> str:
    run.worker()
    lost = run.worker()
    paused = []
    for number in range(3):
        paused += run.enqueue("limited.slotted", 6, key="a", seconds=0.2)
        paused += run.enqueue("limited.throttled", 2, key=str(number))
    pauses.pause(run.connection, Pausable.LIMIT, "slots:a", paused_by="ada")
    pauses.pause(run.connection, Pausable.LIMIT, "held", for_seconds=3600, paused_by="ada")
    time.sleep(run.rules.obey_seconds + 1)
    before = started(run)
    waiting = [*run.enqueue("limited.slotted", 4, key="a"), *run.enqueue("limited.throttled", 4, key="0")]
    run.server.cluster.stop("immediate")
    time.sleep(DOWN_SECONDS)
    run.server.cluster.start()
    os.killpg(lost.process.pid, signal.SIGKILL)
    run.worker()
    run.sql("SELECT 1")  # a new session for this scenario too
    others = run.enqueue("limited.slotted", 6, key="b") + run.enqueue("plain", 6)
    run.wait_until(lambda: {*others} <= started(run), what="jobs of other keys")
    time.sleep(run.rules.obey_seconds)
    early = started(run) - before - {*others}
    for name in ("slots:a", "held"):
        assert pauses.resume(run.connection, Pausable.LIMIT, name)
    resumed = time.monotonic()
    run.wait_until_done()
    took = time.monotonic() - resumed
    assert not early, f"{early} started while their keys were paused"
    return f"{len(early)} started, {len(waiting)} and more waited; the rest ended {took:.1f} s after the resume"
