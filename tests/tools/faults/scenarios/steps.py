"""Durable steps: a worker that is lost between a suspension and its look for the event, and PgBouncer (F136, F137)."""

from __future__ import annotations

from typing import Final

from tests.tools.faults.catalogue import fault
from tests.tools.faults.pooler import through_pooler
from tests.tools.faults.run import Run

from .pooling import NEEDS, assert_unprepared

SEND: Final = "INSERT INTO pgqueue_event (name, key, sent_at) VALUES ('go', %s, now())"
SUSPENDED: Final = "SELECT count(*) FROM pgqueue_step WHERE kind = 'event' AND finished_at IS NULL"


def effects(run: Run) -> dict[str, int]:
    """Return how often each effect has happened."""
    return dict(run.sql("SELECT kind, count(*) FROM public.fault_effect GROUP BY kind ORDER BY kind"))


@fault(
    "F136",
    "a worker is killed after it has suspended a job and before it looks for the event; nobody else looks",
    invariant="the sweep of another worker finds the event that was committed meanwhile",
    expected="the job succeeds within 60 s + 5 s, each step runs once",
)
def killed_before_the_look(run: Run) -> str:
    [job] = run.enqueue("stepped.waits", key="7")
    run.worker(failpoint="suspend.committed:killall", ready=False)
    run.wait_for("failpoint")
    run.wait_until(lambda: run.scalar(SUSPENDED) == 1)
    run.sql(SEND, ["7"])  # by SQL: no sender wakes the job
    run.worker()
    took = run.wait_until_done(65)
    assert run.job(job)["state"] == "succeeded"
    assert effects(run) == {"first": 1, "second": 1}
    return f"the sweep found the event after {took:.1f} s; each step ran once"


@fault(
    "F137",
    "PgBouncer in transaction mode, 3 server connections, and jobs that sleep and wait for events",
    invariant="steps, suspensions and sweeps rely on no session state; each atomic step takes effect once",
    expected="all jobs succeed, each effect once",
    needs=NEEDS,
)
def steps_through_pooler(run: Run) -> str:
    through_pooler(run, default_pool_size="3")
    jobs = run.enqueue("stepped.waits", 20, key="7", nap_seconds=0.2)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    run.wait_until(lambda: run.scalar(SUSPENDED) == len(jobs))
    run.sql(SEND, ["7"])
    took = run.wait_until_done(65)
    assert run.states() == {"succeeded": len(jobs)}
    assert effects(run) == {"first": len(jobs), "second": len(jobs)}
    for worker in workers:
        assert_unprepared(worker)
    return f"{len(jobs)} of {len(jobs)} jobs in {took:.1f} s, each effect once"
