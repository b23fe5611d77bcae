"""Run a steady load beside the long history, and print the state of the tables and indexes every minute.

Jobs are enqueued at a steady rate, a worker runs them, and as many of the oldest jobs are pruned. So the number of rows
stays the same, as in a queue whose retention is as long as its history. Both tables are vacuumed at half time.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.tools.long_history.place import run, use_database, worker

BATCH: Final = 100
HEAD: Final = (
    "| s | jobs/s done | pruned/s | waiting | `job` MB | `execution` MB | ready index kB | `pkey` MB | `finished` MB "
    "| `task` MB | `execution_job` MB | dead jobs | dead executions | autovacuums | age of `job` | p99 ms |\n"
    + "|---" * 16
    + "|"
)
STATE: Final = """
SELECT (SELECT count(*) FROM pgqueue_execution WHERE id > %(last)s AND finished_at IS NOT NULL),
       (SELECT count(*) FROM pgqueue_job WHERE state = 'ready' AND limit_key IS NULL AND queue_name = 'default'),
       pg_relation_size('pgqueue_job'), pg_relation_size('pgqueue_execution'), pg_relation_size('pgqueue_job_ready'),
       pg_relation_size('pgqueue_job_pkey'), pg_relation_size('pgqueue_job_finished'),
       pg_relation_size('pgqueue_job_task'), pg_relation_size('pgqueue_execution_job'),
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'pgqueue_job'),
       (SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'pgqueue_execution'),
       (SELECT sum(autovacuum_count) FROM pg_stat_user_tables WHERE relname IN ('pgqueue_job', 'pgqueue_execution')),
       (SELECT age(relfrozenxid) FROM pg_class WHERE relname = 'pgqueue_job'),
       (SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM claimed_at - enqueued_at))
        FROM (SELECT job_id, claimed_at FROM pgqueue_execution ORDER BY id DESC LIMIT 5000) AS recent
        CROSS JOIN LATERAL (SELECT enqueued_at FROM pgqueue_job WHERE id = recent.job_id) AS job)
"""


def soak(cluster: Any, home: Path, database: str, *, seconds: float, every: float, rate: int) -> None:
    """Print the table."""
    use_database(cluster, database)
    [[last]] = run("SELECT max(id) FROM pgqueue_execution")
    print(HEAD, flush=True)  # noqa: T201 -- a program
    with worker(home / "soak.log", "--queue", "default"), load(rate) as pruned:
        began = before_at = time.monotonic()
        before = (0, 0)
        vacuuming = threading.Timer(seconds / 2, vacuum)
        vacuuming.start()
        while time.monotonic() - began < seconds or vacuuming.is_alive():
            time.sleep(every)
            [state] = run(STATE, {"last": last})
            now, after = time.monotonic(), (state[0], pruned[0])
            took = now - before_at
            rates = [f"{(new - old) / took:,.0f}" for new, old in zip(after, before, strict=True)]
            before, before_at = after, now
            print(row(now - began, rates, state), flush=True)  # noqa: T201 -- a program


def vacuum() -> None:
    """Vacuum both tables as autovacuum does, which would begin only after 2 % of the history. Print the seconds."""
    from django.db import connection

    run("SET vacuum_cost_delay = 1")
    run("SET vacuum_cost_limit = 2000")
    for table in ("pgqueue_job", "pgqueue_execution"):
        began = time.monotonic()
        run(f"VACUUM {table}")
        print(f"VACUUM of {table}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)  # noqa: T201 -- a program
    connection.close()


def row(seconds: float, rates: list[str], state: tuple[Any, ...]) -> str:
    """Return a row of the table."""
    _, waiting, jobs, executions, ready, *indexes, dead_jobs, dead_executions, vacuums, age, p99 = state
    sizes = [f"{size / 2**20:,.0f}" for size in (jobs, executions)]
    more = [f"{size / 2**20:,.0f}" for size in indexes]
    cells = [f"{seconds:.0f}", *rates, waiting, *sizes, f"{ready / 1024:,.0f}", *more, dead_jobs, dead_executions]
    return f"| {' | '.join(map(str, [*cells, vacuums, age, f'{1000 * float(p99 or 0):.0f}']))} |"


@contextmanager
def load(rate: int) -> Iterator[list[int]]:
    """Enqueue jobs, and prune as many, in two threads. Yield the number of pruned jobs."""
    ended, pruned = threading.Event(), [0]
    threads = [
        threading.Thread(target=enqueue, args=(ended, rate)),
        threading.Thread(target=prune, args=(ended, rate, pruned)),
    ]
    for thread in threads:
        thread.start()
    try:
        yield pruned
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def enqueue(ended: threading.Event, rate: int) -> None:
    """Enqueue jobs in batches at a steady rate."""
    from django.db import connection

    from tests.app.tasks import noop

    began, sent = time.monotonic(), 0
    calls: list[Any] = [((), {})] * BATCH
    while not ended.wait(max(0.0, began + sent / rate - time.monotonic())):
        noop.enqueue_many(calls, returning=False)
        sent += BATCH
    connection.close()


def prune(ended: threading.Event, rate: int, pruned: list[int]) -> None:
    """Prune the oldest jobs at the same rate, as a worker does."""
    from django_pgqueue.db import engine_connection
    from django_pgqueue.lifecycle import pruning
    from django_pgqueue.lifecycle.pruning import FIRST_FINISHED
    from django_pgqueue.states import State

    began, after = time.monotonic(), FIRST_FINISHED
    with engine_connection.connect("default", "soak") as engine:
        while not ended.wait(max(0.0, began + pruned[0] / rate - time.monotonic())):
            removed = pruning.prune(engine, State.SUCCEEDED, 86_400.0, after=after, limit=rate)
            pruned[0] += removed.removed
            after = removed.last
