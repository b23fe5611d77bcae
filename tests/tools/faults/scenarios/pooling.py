"""PgBouncer in transaction mode between all clients and the server (F50, F51)."""

from __future__ import annotations

import json
import time
from typing import Final

from tests.process.harness import Worker
from tests.tools.faults.catalogue import fault
from tests.tools.faults.pooler import Pooler, through_pooler
from tests.tools.faults.run import Run, Skip

from . import counted
from .database import assert_only_counted, enqueue_load, resumed, wait_until_busy

NEEDS: Final = ("pgbouncer",)
DEAF: Final = "notifications do not arrive"
COMPLAINTS: Final = ("prepared statement", "InvalidSqlStatementName", "DuplicatePreparedStatement")


def wait_until_deaf(worker: Worker) -> None:
    """Wait until a worker has logged that notifications do not arrive; assert that it did so once."""
    worker.wait_until(lambda: DEAF in worker.said)
    assert worker.said.count(DEAF) == 1


def assert_unprepared(worker: Worker) -> None:
    """Assert that no statement was prepared on one server connection and executed on another."""
    assert not any(words in worker.said for words in COMPLAINTS), worker.said


@fault(
    "F50",
    "PgBouncer in transaction mode, 4 server connections for two workers and an application",
    invariant="the self-test finds that notifications do not arrive; the worker logs this once, and polls",
    expected="all jobs succeed, 0 charged; 1 warning in each process",
    needs=NEEDS,
)
def transaction_mode(run: Run) -> str:
    through_pooler(run, default_pool_size="4")
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    producer = run.producer("--jobs", "200", "--per-second", "100", "--task", "atomic")
    jobs = enqueue_load(run) + 200
    isolated = run.enqueue("pooled.isolated", 4)
    producer.wait(60)
    run.wait_until_done(60)
    assert_only_counted(run, jobs + len(isolated))
    for worker in workers:
        wait_until_deaf(worker)
        assert_unprepared(worker)
    return f"{jobs + len(isolated)} jobs, 0 charged; each worker logged once that it polls"


@fault(
    "F50b",
    "PgBouncer, with a PGQUEUE['LISTEN_DATABASE'] that bypasses it",
    invariant="notifications arrive; an idle worker starts a job at once",
    expected="no warning; the job is claimed long before the poll interval of 5 s ends",
    needs=NEEDS,
)
def listening_past_it(run: Run) -> str:
    direct = {key: run.settings[key] for key in ("HOST", "PORT")}
    through_pooler(run)
    about = {
        "DJANGO_SETTINGS_MODULE": "tests.tools.faults.settings_pooled",
        "PGQUEUE_FAULTS_DIRECT": json.dumps(direct),
    }
    worker = run.worker(variables=about, LISTEN_DATABASE="direct", LEASE=8.0, POLL_INTERVAL=5.0)
    time.sleep(2)
    run.producer("--jobs", "5", "--per-second", "1", "--task", "plain").wait(60)
    run.wait_until_done()
    [[slowest]] = run.sql(
        "SELECT max(extract(epoch FROM claimed_at - enqueued_at))::float8"
        " FROM pgqueue_execution JOIN pgqueue_job job ON job.id = job_id"
    )
    assert DEAF not in worker.said
    assert slowest < 3, slowest
    return f"the slowest of 5 claims {slowest * 1000:.0f} ms after the enqueue through the pooler"


@fault(
    "F50c",
    "a single server connection for two workers and their jobs",
    invariant=(
        "every statement waits for its turn; nothing is lost; the self-test finds that notifications do not arrive"
    ),
    expected="all jobs succeed, 0 charged",
    needs=NEEDS,
)
def pool_of_one(run: Run) -> str:
    through_pooler(run, default_pool_size="1")
    jobs = enqueue_load(run)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    took = run.wait_until_done(120)
    assert_only_counted(run, jobs)
    for worker in workers:
        assert_unprepared(worker)
        wait_until_deaf(worker)
    return f"{jobs} of {jobs} jobs in {took:.1f} s, 0 charged; {counted(run.outcomes())}"


@fault(
    "F50d",
    "PgBouncer closes its server connections after 1 s",
    invariant="the worker relies on no session state",
    expected="all jobs succeed, 0 charged; 0 errors about prepared statements",
    needs=NEEDS,
)
def short_lives(run: Run) -> str:
    through_pooler(run, default_pool_size="3", server_lifetime="1", server_idle_timeout="1")
    jobs = enqueue_load(run, seconds=0.1)
    worker = run.worker(LEASE=8.0)
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    assert_unprepared(worker)
    return f"{jobs} of {jobs} jobs, 0 charged"


@fault(
    "F50e",
    "PgBouncer is configured to ignore `options`, so that it looks like a server",
    invariant="the worker finds that its options did not arrive, and prepares no statements",
    expected="all jobs succeed, 0 charged",
    needs=NEEDS,
)
def options_ignored(run: Run) -> str:
    through_pooler(run, default_pool_size="3", ignore_startup_parameters="options")
    jobs = enqueue_load(run, seconds=0.05)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    took = run.wait_until_done(60)
    assert_only_counted(run, jobs)
    for worker in workers:
        assert_unprepared(worker)
    return f"{jobs} of {jobs} jobs in {took:.1f} s, 0 charged"


def _disturbed(run: Run, pooler: Pooler, disturb: str, seconds: float = 0.0) -> str:
    jobs = enqueue_load(run, seconds=0.1)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    wait_until_busy(run)
    if disturb == "restart":
        pooler.restart()
    else:
        pooler.tell(disturb)
    time.sleep(seconds)
    if disturb == "PAUSE":
        pooler.tell("RESUME")
    up = time.monotonic()
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    assert all(worker.process.poll() is None for worker in workers)
    return f"{jobs} of {jobs} jobs, 0 charged; work continued after {resumed(run, up):.1f} s"


@fault(
    "F51",
    "PgBouncer is restarted under load",
    invariant="workers reconnect by themselves; nothing is lost or charged",
    expected="0 lost, 0 charged",
    needs=NEEDS,
)
def pooler_restarted(run: Run) -> str:
    return _disturbed(run, through_pooler(run, default_pool_size="4"), "restart")


def _pause(run: Run, pooler: Pooler, seconds: float) -> str:
    """Pause the pooler. PAUSE returns only after all transactions have ended."""
    return _disturbed(run, pooler, "PAUSE", seconds)


@fault(
    "F51b",
    "PgBouncer is paused for 3 s, as for a switchover, with a lease of 8 s",
    invariant="workers continue by themselves; nothing is lost or charged",
    expected="0 lost, 0 charged",
    needs=NEEDS,
)
def paused(run: Run) -> str:
    return _pause(run, through_pooler(run, default_pool_size="4"), 3)


@fault(
    "F51c",
    "PgBouncer receives RECONNECT under load",
    invariant="workers continue by themselves; nothing is lost or charged",
    expected="0 lost, 0 charged",
    needs=NEEDS,
)
def reconnected(run: Run) -> str:
    return _disturbed(run, through_pooler(run, default_pool_size="4"), "RECONNECT")


@fault(
    "F50f",
    "queries behind PgBouncer exceed the timeout of their tasks",
    invariant="the worker cancels the queries through PgBouncer, and their attempts fail",
    expected="2 of 2 queries are cancelled",
    needs=NEEDS,
)
def cancelled_through_it(run: Run) -> str:
    pooler = through_pooler(run, default_pool_size="4")
    run.worker(LEASE=8.0)
    jobs = run.enqueue("pooled.slow_query", 2, max_attempts=1)
    run.wait_until(lambda: not run.unfinished() or pooler.process.poll() is not None, 30)
    if pooler.process.poll() is not None:
        raise Skip("PgBouncer itself crashed on the request to cancel (seen with 1.18)")
    run.wait_until_done()
    assert [run.outcomes_of(job) for job in jobs] == [["failed"], ["failed"]]
    held = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND state = 'active'"
    assert not run.sql(held + " AND query LIKE '%pg_sleep(20)%' AND pid <> pg_backend_pid()"), (
        "a query continues after its timeout"
    )
    return "2 of 2 cancelled"
