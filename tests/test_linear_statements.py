"""No statement compares each of its rows with all the others: with 1,000 jobs, no part of a plan reads a million rows.

A subquery such as `id IN (SELECT id FROM given)` is a hash, a join, or a scan for each row: the statistics decide.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from django_pgqueue import lifecycle
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.statements import execute
from django_pgqueue.lifecycle import history, leases, operator, pruning, unique
from django_pgqueue.lifecycle.types import ExecutionKey, TransitionResult
from django_pgqueue.states import State
from tests import helpers
from tests.test_sql import nodes, rows_read

pytestmark = pytest.mark.slow

COUNT = 1000
TABLES = ("pgqueue_job", "pgqueue_execution", "pgqueue_step", "pgqueue_uniqueness_window")


def buffers_of(
    connection: EngineConnection, monkeypatch: pytest.MonkeyPatch, transition: Callable[[], Any], most_rows: int
) -> int:
    """Return how many buffers the statements of a transition read. No part of a plan may read more than `most_rows`."""
    buffers = 0

    def explained(on, statement, params):
        nonlocal buffers
        text = statement.replace("*/", "*/ EXPLAIN (ANALYZE, BUFFERS, FORMAT json)", 1)
        with on.transaction(force_rollback=True):
            [[plans]] = on.execute(text, {**params, "time_shift": "0 s"}, prepare=False).fetchall()
        for node in nodes(plans[0]["Plan"]):
            assert rows_read(node) <= most_rows, (statement[:40], node)
        buffers += plans[0]["Plan"]["Shared Hit Blocks"] + plans[0]["Plan"]["Shared Read Blocks"]
        return execute(on, statement, params)

    with monkeypatch.context() as patch:
        for module in vars(lifecycle).values():
            if getattr(module, "execute", None) is execute:
                patch.setattr(module, "execute", explained)
        transition()
    return buffers


def ready(engine) -> list[int]:
    return helpers.make_jobs(engine, COUNT, delay_seconds=60.0)


def running(engine) -> list[int]:
    job_ids = helpers.make_jobs(engine, COUNT)
    assert len(helpers.claim_all(engine, limit=COUNT)) == COUNT
    return job_ids


def extended(engine) -> dict[int, TransitionResult]:
    rows = engine.execute("SELECT id, floor(1000 * date_part('epoch', claimed_at)) FROM pgqueue_execution")
    keys = [ExecutionKey(*row) for row in rows]
    return leases.extend_executions(engine, dict.fromkeys(keys, 60.0))


def dead(engine) -> list[int]:
    job_ids = running(engine)
    engine.execute("UPDATE pgqueue_execution SET outcome = 'failed', finished_at = now()")
    engine.execute("UPDATE pgqueue_job SET state = 'dead', finished_at = now()")
    return job_ids


def windows(engine) -> list[int]:
    engine.execute(
        "INSERT INTO pgqueue_uniqueness_window (job_id, task_name, unique_key, ends_at) "
        "SELECT n, 'noop', n::text, now() FROM generate_series(1, %s) AS n",
        [COUNT],
    )
    return []


def open_windows(engine, job_ids) -> int:
    keys = map(str, range(COUNT))
    return len(helpers.enqueue_for_period(engine, *keys, period_seconds=60.0, task_name="noop", max_attempts=1))


def finished(engine) -> dict[int, datetime]:
    return next(pruning.finished_jobs(engine, State.DEAD, limit=COUNT))


ERASED: dict[str, Any] = {"audit_id": 0, "arguments": True, "results": True, "errors": True, "logs": True}
CASES: dict[str, tuple[Callable[[Any], list[int]], Callable[[Any, list[int]], int]]] = {
    "cancel": (ready, lambda engine, job_ids: len(operator.cancel(engine, job_ids))),
    "run now": (ready, lambda engine, job_ids: len(operator.run_now(engine, job_ids))),
    "move": (ready, lambda engine, job_ids: len(operator.move(engine, job_ids, priority=7))),
    "extend": (running, lambda engine, job_ids: len(extended(engine))),
    "retry": (dead, lambda engine, job_ids: len(operator.retry(engine, job_ids))),
    "acknowledge": (dead, lambda engine, job_ids: len(operator.acknowledge(engine, job_ids))),
    "delete": (dead, lambda engine, job_ids: len(operator.delete(engine, job_ids))),
    "prune": (dead, lambda engine, job_ids: pruning.prune(engine, State.DEAD, 0.0).removed),
    "prune one task": (
        dead,
        lambda engine, job_ids: pruning.prune(engine, State.DEAD, 0.0, task_name=helpers.NOOP).removed,
    ),
    "archive": (dead, lambda engine, job_ids: len(history.archive(engine, finished(engine)))),
    "erase": (dead, lambda engine, job_ids: len(history.erase(engine, finished(engine), **ERASED))),
    "open windows": (lambda engine: [], open_windows),
    "prune windows": (windows, lambda engine, job_ids: unique.prune_windows(engine)),
}


@pytest.mark.parametrize("statistics", ["none", "few", "all"])
@pytest.mark.parametrize("name", CASES)
def test_statement_with_many_jobs_reads_each_a_few_times(engine, monkeypatch, name, statistics):
    """The statistics are missing, those of ten jobs, or those of all jobs."""
    make, act = CASES[name]
    done: list[int] = []
    with helpers.without_statistics(engine, TABLES):
        if statistics == "few":
            helpers.make_jobs(engine, 10)
            helpers.claim_all(engine)
            engine.execute(f"ANALYZE {', '.join(TABLES)}")
            engine.execute(f"TRUNCATE {', '.join(TABLES)}")
        job_ids = make(engine)
        if statistics == "all":
            engine.execute(f"ANALYZE {', '.join(TABLES)}")
        buffers_of(engine, monkeypatch, lambda: done.append(act(engine, job_ids)), 5 * COUNT)
    assert done == [COUNT]
