"""Thousands of calls of several tasks in one `enqueue_many()` (F115)."""

from __future__ import annotations

from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import TASKS, Run

JOBS = 2400
LAST_KEY = f"key {JOBS - 1:06}"
"""The key of the last call. The calls with keys are inserted in the order of their keys, so it is in the last chunk."""
WAITING = (
    "FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock' AND query LIKE '%%pgqueue:enqueue_each_unique%%'"
)


@fault(
    "F115",
    "one `enqueue_many()` of 2,400 calls loses its connection, is killed, and then loses the reply to COMMIT",
    invariant="all jobs of a call exist or none; each call runs exactly once",
    expected="0 jobs after the first two tries; 2,400 of 2,400 succeeded in 2,400 executions",
)
def mixed_calls_lose_connections(run: Run) -> str:
    run.worker("--concurrency", "8")
    holder = run.connect()
    holder.execute("BEGIN")
    helpers.enqueue_unique(holder, LAST_KEY, task_name=f"{TASKS}keyed.keyed")
    producer = run.producer(
        *("--jobs", str(JOBS)), module="bulk_producer", failpoint="enqueue.committed:close:2,commit.done:close"
    )
    run.wait_for("bulk-failed")
    run.wait_until(lambda: run.sql(f"SELECT pid {WAITING}"), what="the last statement to wait for the key")
    run.sql(f"SELECT pg_terminate_backend(pid) {WAITING}")
    run.wait_for("bulk-failed", 2)
    created = run.scalar("SELECT count(*) FROM fault_event")
    assert created == 0, f"{created} events of tries that were rolled back"
    holder.execute("ROLLBACK")
    assert producer.wait(60) == 0
    answers = [line["answer"] for line in run.journal("bulk-failed")]
    assert answers == ["rolled back", "rolled back", "unknown"], answers
    run.wait_until_done(120)
    executions = run.scalar("SELECT count(*) FROM pgqueue_execution")
    assert (run.states(), executions) == ({"succeeded": JOBS}, JOBS), (run.states(), executions)
    return f"{created} jobs after the first two tries; {JOBS:,} of {JOBS:,} succeeded in {executions:,} executions"
