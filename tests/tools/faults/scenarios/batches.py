"""Batches: thousands of jobs that end at the same moment, and a failover (F145, F146)."""

from __future__ import annotations

import time
from typing import Final

from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run
from tests.tools.faults.standby import replicated

from .failover import acknowledged, present
from .steps import SUSPENDED
from .workflows import SWEEP_SECONDS

WORKERS: Final = 8
SIZES: Final = [9_000, *[100] * 10]
JOBS: Final = sum(SIZES)
KILLS: Final = ("settle.sent:kill", "settle.done:kill", "settle.committed:killall")
CALLBACKS: Final = """
SELECT substring(arguments::text FROM '"tag": ?"([a-z]+) of '), count(*), count(DISTINCT arguments::text)
FROM pgqueue_job WHERE task_name LIKE '%.ended' GROUP BY 1 ORDER BY 1
"""
SPAN: Final = """
SELECT extract(epoch FROM max(finished_at) - min(finished_at))
FROM (SELECT finished_at FROM pgqueue_job ORDER BY finished_at LIMIT %s) AS ended
"""


@fault(
    "F145",
    "10,000 jobs of 11 batches end at the same moment in 8 processes, three of which are killed around "
    "the end of a batch",
    invariant="each callback is enqueued and runs exactly once, with the end that it belongs to",
    expected="1 failure and 1 complete of the batch with a dead job, 10 successes and 10 completes of the others",
)
def all_end_at_once(run: Run) -> str:
    go = run.where / "go"
    run.flow("held", sizes=SIZES, until=str(go))
    slots = str(JOBS // WORKERS)
    workers = [
        run.worker("--concurrency", slots, failpoint=",".join(KILLS), ready=False, LEASE=20.0) for _ in range(WORKERS)
    ]
    run.wait_until(lambda: run.states() == {"running": JOBS}, 180, "all jobs to run")
    began = time.monotonic()
    go.touch()
    run.wait_for("failpoint", len(KILLS), 60)
    run.wait_until_done(300)
    took = time.monotonic() - began
    counts = {name: (number, different) for name, number, different in run.sql(CALLBACKS)}
    assert counts == {"complete": (11, 11), "failure": (1, 1), "success": (10, 10)}, counts
    dead = run.sql("SELECT count(*) FROM pgqueue_job WHERE state = 'dead'")
    assert dead == [(1,)], dead
    assert sum(worker.process.poll() is None for worker in workers) == WORKERS - 1
    ends = run.scalar(SPAN, [JOBS * 9 // 10])
    again = run.outcomes().get("crashed", 0)
    return (
        f"22 callbacks, each once; 9 of 10 jobs ended within {ends:.1f} s; {again} jobs of the killed processes ran"
        f" again; all over after {took:.0f} s"
    )


@fault(
    "F146",
    "failover to a synchronous standby, with waiting nodes, sleeping jobs, steps to undo and an open batch",
    invariant="nothing is lost: each job ends, in the order of its workflow; each callback and compensation runs once",
    expected="0 lost; workers find the new primary, and all ends within 30 s of the last thing that was missing",
    exclusive=True,
)
def failover(run: Run) -> str:
    pair = replicated(run)
    run.configure("synchronous_standby_names", "*")
    run.wait_until(lambda: run.sql("SELECT pid FROM pg_stat_replication WHERE sync_state = 'sync'"))
    go = str(run.where / "go")
    run.flow("fan_in", members=10, last={"until": go})
    run.flow("chain", length=4, until=go)
    nap = {"do": "sleep", "name": "nap", "seconds": 6}
    wait = {"do": "event", "name": "wait", "key": "7"}
    first, last = ({"do": "step", "name": name, "undo": True} for name in ("atomic 1", "atomic 2"))
    for plan in ([first, nap, last], [first, wait, last], [first, last, nap, {"do": "fail"}]):
        run.flow("tale", plan=plan)
    batch = run.flow("batch", jobs=5, nested=5, leave_open=True)
    workers = [run.worker(LEASE=30.0), run.worker(LEASE=30.0)]
    run.wait_until(
        lambda: run.scalar(SUSPENDED) == 1 and run.states()["succeeded"] >= 19, what="the workers to be busy"
    )
    waiting = run.states()["waiting"]
    pair.fail_over()
    up = time.monotonic()
    run.wait_until(lambda: run.states(), what="the new primary")
    (run.where / "go").touch()
    run.flow("event", key="7")
    run.flow("close", batch=run.job(batch[0])["batch_id"])
    ready = time.monotonic()
    run.wait_until_done(60)
    took = time.monotonic() - ready
    assert took < 30 + SWEEP_SECONDS, took
    lost = acknowledged(run) - present(run)
    assert not lost, lost
    assert run.states()["dead"] == 1, run.states()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    assert all(worker.process.poll() is None for worker in workers)
    undone = run.sql("SELECT kind FROM public.fault_effect WHERE kind LIKE 'undo %' ORDER BY id")
    assert [kind.rpartition(" ")[2] for [kind] in undone] == ["2", "1"], undone
    return (
        f"{len(acknowledged(run))} acknowledged, 0 lost; {waiting} jobs waited; all ended {took:.1f} s after the event"
        f" and {time.monotonic() - up:.1f} s after the promotion"
    )
