"""Operators and applications that act at the same time (F113, F114)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from django_pgqueue.lifecycle import operator, unique
from django_pgqueue.states import Seen
from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.lives import BY_OPERATOR
from tests.tools.faults.run import TASKS, Run

KEYED = f"{TASKS}keyed.keyed"
JOBS = 300
ROUNDS = 4
KEYS = 200


@fault(
    "F113",
    "two operators retry the same 300 dead jobs, which die again; then one repeats the retry from an old page",
    invariant="each job runs exactly once more",
    expected="300 of 300 retried once; 600 executions in total",
)
def two_operators_retry(run: Run) -> str:
    ids = run.enqueue("failing", JOBS, max_attempts=1)
    run.worker("--concurrency", "4")
    run.wait_until_done()
    rows = run.sql("SELECT id, state, finished_at FROM pgqueue_job WHERE state = 'dead'")
    seen = {job_id: Seen(state, finished_at) for job_id, state, finished_at in rows}
    assert sorted(seen) == ids, run.states()
    run.note(BY_OPERATOR, act="retry", jobs=ids)
    clicks = [helpers.Background(partial(operator.retry, run.connect(), ids, seen=seen)) for _ in range(2)]
    retried = [job_id for click in clicks for job_id in click.result()]
    run.sql("NOTIFY pgqueue")
    run.wait_until_done()
    retried += operator.retry(run.connection, ids, seen=seen)
    assert sorted(retried) == ids, f"{len(retried)} retries of {len(ids)} jobs"
    executions = run.scalar("SELECT count(*) FROM pgqueue_execution")
    assert executions == 2 * JOBS, executions
    return f"{len(retried)} of {len(ids)} retried once; {executions} executions in total"


@fault(
    "F114",
    "two applications enqueue the same 200 unique jobs at the same time, one in reverse order, four times",
    invariant="no transaction is aborted by a deadlock; each key has one job",
    expected="0 deadlocks in 4 rounds",
)
def bulk_inserts_meet(run: Run) -> str:
    connections = [run.connect(), run.connect()]
    for number in range(ROUNDS):
        keys = [f"key {number} {place:04}" for place in range(KEYS)]
        orders = zip(connections, (keys, keys[::-1]), strict=True)
        inserts = [helpers.Background(partial(enqueue_all, connection, order)) for connection, order in orders]
        assert sum(insert.result() for insert in inserts) == len(keys)
    deadlocks = run.scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    assert deadlocks == 0, deadlocks
    run.worker("--concurrency", "8")
    run.wait_until_done()
    assert run.states() == {"succeeded": KEYS * ROUNDS}, run.states()
    return f"{deadlocks} deadlocks in {ROUNDS} rounds"


def enqueue_all(connection: Any, keys: list[str]) -> int:
    """Enqueue a job for each free key, in one transaction; return how many were added."""
    calls = {key: json.dumps({"args": [], "kwargs": {"key": key}}) for key in keys}
    jobs = [helpers.unique_job(key, call, task_name=KEYED) for key, call in calls.items()]
    with connection.transaction():
        return len(unique.enqueue_many_unique(connection, jobs))
