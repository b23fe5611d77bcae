"""Locks, isolation levels, timeouts, dead rows, floods and notifications, on a working server (F35 to F53)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

from . import counted
from .database import assert_only_counted, end_sessions, enqueue_load, wait_until_busy


@fault(
    "F35",
    "each commit takes 100 ms",
    invariant="no lease is lost",
    expected="0 executions lost with a lease of 2 s",
    exclusive=True,
)
def slow_commits(run: Run) -> str:
    jobs = enqueue_load(run)
    run.configure("commit_delay", "100000")
    run.configure("commit_siblings", "0")
    run.worker()
    run.worker()
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    return f"{jobs} of {jobs} jobs, 0 lost"


@fault(
    "F39",
    "statement_timeout and lock_timeout of 1 ms set on the database",
    invariant="the worker retries interrupted statements; nothing is lost",
    expected="the worker logs errors and loses nothing; all jobs end after the settings are removed",
)
def tiny_timeouts(run: Run) -> str:
    jobs = enqueue_load(run)
    for name in ("statement_timeout", "lock_timeout"):
        run.sql(f"ALTER DATABASE {run.database} SET {name} = '1ms'")
    worker = run.worker(LEASE=30.0, ready=False)
    time.sleep(6)
    done = run.states().get("succeeded", 0)
    errors = worker.said.count("due to statement timeout")
    for name in ("statement_timeout", "lock_timeout"):
        run.sql(f"ALTER DATABASE {run.database} RESET {name}")
    end_sessions(run, "fetcher", "completer", "supervisor", "lease-monitor", "maintenance", "stopping")
    run.wait_until_done(60)
    return f"{done} of {jobs} jobs in 6 s, logged timeouts: {errors}; afterwards {counted(run.states())}"


@fault(
    "F41",
    "an ACCESS EXCLUSIVE lock on the table of jobs for three leases, as by a bad migration",
    invariant="heartbeats do not need that table, so no lease is lost; abandoned claims are released",
    expected="0 executions lost in 6 s",
    quick=True,
)
def table_locked(run: Run) -> str:
    go = run.where / "go"
    run.enqueue("plain", 2, until=str(go))
    worker, other = run.worker(), run.worker()
    run.wait_for("start", 2)
    with run.connect() as migration, migration.transaction():
        migration.execute("LOCK TABLE pgqueue_job IN ACCESS EXCLUSIVE MODE")
        time.sleep(6)
    lost = run.outcomes().get("crashed", 0)
    assert not lost, f"{lost} executions lost"
    run.enqueue("plain", 50)
    go.touch()
    run.wait_until_done()
    assert_only_counted(run, 52)
    for one in (worker, other):
        run.stop(one)
    return f"0 of 2 executions lost in 3 leases; then 50 of 50 jobs; {counted(run.outcomes())}"


@fault(
    "F42",
    "a forgotten session locks the rows of running and waiting jobs",
    invariant=(
        "no transition waits for a lock: other jobs continue, and the locked jobs continue when the lock is released"
    ),
    expected="all other jobs end while the lock is held",
)
def rows_locked(run: Run) -> str:
    go = run.where / "go"
    held = [*run.enqueue("plain", 2, until=str(go)), *run.enqueue("atomic", 1, until=str(go))]
    run.worker("--concurrency", "8")
    run.wait_for("start", 3)
    waiting = run.enqueue("plain", 5, delay_seconds=0.5)
    with run.connect() as forgotten, forgotten.transaction():
        forgotten.execute("SELECT FROM pgqueue_job WHERE id = ANY(%s) FOR UPDATE", [[*held, *waiting]])
        others = run.enqueue("plain", 100)
        go.touch()
        ended = "SELECT count(*) FROM pgqueue_job WHERE id = ANY(%s) AND state = 'succeeded'"
        took = run.wait_until(lambda: run.scalar(ended, [others]) == 100, 20, "the other jobs to end")
        assert run.scalar(ended, [[*held, *waiting]]) == 0
        time.sleep(1)
    run.wait_until_done()
    assert run.states() == {"succeeded": 108}
    assert "crashed" not in run.outcomes()  # no completion waited so long that its process was replaced
    return f"100 of 100 others ended within {took:.1f} s; then the 8 locked ones; {counted(run.outcomes())}"


@fault(
    "F43",
    "SERIALIZABLE is the default isolation level of the database",
    invariant="serialization failures are retried; an atomic task runs at READ COMMITTED",
    expected="0 lost, 0 charged",
)
def serializable(run: Run) -> str:
    run.sql(f"ALTER DATABASE {run.database} SET default_transaction_isolation = 'serializable'")
    jobs = enqueue_load(run)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    failures = sum(worker.said.count("could not serialize") for worker in workers)
    return f"{jobs} of {jobs} jobs, 0 charged; {failures} failures reached a loop"


@fault(
    "F44",
    "another session locks the same rows in reverse order, under load",
    invariant="the queue's transitions never wait for a row, so they are part of no deadlock",
    expected="0 deadlocks",
)
def deadlocks(run: Run) -> str:
    jobs = enqueue_load(run)
    end = threading.Event()

    def meddle(descending: bool) -> None:
        order = "DESC" if descending else "ASC"
        with run.connect() as session:
            while not end.is_set():
                with contextlib.suppress(psycopg.errors.DeadlockDetected), session.transaction():
                    for table in ("pgqueue_execution", "pgqueue_job"):
                        session.execute(f"SELECT FROM {table} ORDER BY id {order} FOR UPDATE")
                time.sleep(0.02)

    before = _deadlocks(run)
    meddler = threading.Thread(target=meddle, args=(True,))
    meddler.start()
    try:
        run.worker(LEASE=8.0)
        run.worker(LEASE=8.0)
        run.wait_until_done(60)
    finally:
        end.set()
        meddler.join()
    assert_only_counted(run, jobs)
    time.sleep(1.1)  # statistics are reported once a second
    found = _deadlocks(run) - before
    assert not found, f"{found} deadlocks"
    return f"{jobs} of {jobs} jobs, 0 deadlocks"


def _deadlocks(run: Run) -> int:
    return int(run.scalar("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"))


NOOP = "tests.app.tasks.noop"


@fault(
    "F46",
    "a transaction stays open and pins dead rows",
    invariant="claims begin at their cursors and do not walk over dead rows",
    expected="the last quarter of 20,000 jobs runs at half the speed of the first, or faster",
    exclusive=True,
)
def pinned_horizon(run: Run) -> str:
    helpers.make_jobs(run.connection, 20_000, task_name=NOOP)
    with run.connect() as holder, holder.transaction():
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM pgqueue_job")
        run.worker("--concurrency", "10")
        run.wait_until_done(120)
    [(first, last)] = run.sql(
        "SELECT 5000 / extract(epoch FROM max(finished_at) FILTER (WHERE place = 1) - min(finished_at))::float8,"
        " 5000 / extract(epoch FROM max(finished_at) - min(finished_at) FILTER (WHERE place = 4))::float8"
        " FROM (SELECT finished_at, ntile(4) OVER (ORDER BY finished_at) AS place FROM pgqueue_job) AS quarter"
    )
    assert last > first / 4, f"{first:.0f} jobs/s fell to {last:.0f}"  # half of what is expected, as noise is large
    return f"{first:.0f} jobs/s in the first quarter, {last:.0f} in the last, with triggers that record each change"


UNFINISHED = "SELECT count(*) FROM pgqueue_job WHERE queue_name = %s AND task_name <> 'flood' AND finished_at IS NULL"


@fault(
    "F47",
    "a flood: 200,000 jobs in a queue without workers, and 200,000 that are due tomorrow",
    invariant="the flood delays no other job",
    expected="99 of 100 single jobs are claimed within the poll interval (0.2 s)",
    exclusive=True,
)
def flood(run: Run) -> str:
    run.sql("ALTER TABLE pgqueue_job DISABLE TRIGGER fault_job")
    for queue, due in (("nobody", "now()"), ("default", "now() + interval '1 day'")):
        run.sql(
            "INSERT INTO pgqueue_job (task_name, queue_name, priority, arguments, run_after)"
            f" SELECT 'flood', %s, 50, '{{}}', {due} FROM generate_series(1, 200000)",
            [queue],
        )
    run.sql("ALTER TABLE pgqueue_job ENABLE TRIGGER fault_job")
    run.worker("--queues", "default")
    ids: list[int] = []
    for _ in range(100):
        ids += run.enqueue("plain")
        run.wait_until(lambda: not run.scalar(UNFINISHED, ["default"]), 10)
    rows = run.sql(
        "SELECT extract(epoch FROM claimed_at - enqueued_at)::float8 FROM pgqueue_execution"
        " JOIN pgqueue_job job ON job.id = job_id WHERE job_id = ANY(%s) ORDER BY 1",
        [ids],
    )
    latencies = [row[0] for row in rows]
    assert latencies[98] < 1.0, f"{latencies[98]:.3f} s"
    return f"claimed after {latencies[49] * 1000:.1f} ms (median), {latencies[98] * 1000:.1f} ms (99 of 100)"


@fault(
    "F49",
    "VACUUM FULL, REINDEX and ANALYZE under load, autovacuum off",
    invariant="nothing is lost or charged; the speed does not matter",
    expected="0 lost, 0 charged",
)
def upkeep(run: Run) -> str:
    for table in ("pgqueue_job", "pgqueue_execution"):
        run.sql(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    jobs = enqueue_load(run)
    run.worker(LEASE=8.0)
    run.worker(LEASE=8.0)
    wait_until_busy(run)
    commands = 0
    for command in ("VACUUM FULL {}", "REINDEX TABLE {}", "REINDEX TABLE CONCURRENTLY {}", "ANALYZE {}"):
        jobs += enqueue_load(run)
        for table in ("pgqueue_job", "pgqueue_execution"):
            with contextlib.suppress(psycopg.errors.DeadlockDetected):
                run.sql(command.format(table))
            commands += 1
    run.wait_until_done()
    assert_only_counted(run, jobs)
    return f"{commands} maintenance commands; {jobs} of {jobs} jobs, 0 charged"


@contextmanager
def notifying(run: Run, pause: float = 0.0) -> Iterator[list[int]]:
    """Send notifications with other payloads on the product's channel, as fast as one session can."""
    end, sent = threading.Event(), [0]

    def send() -> None:
        with run.connect() as session:
            while not end.is_set():
                session.execute("SELECT pg_notify('pgqueue', 'storm ' || g) FROM generate_series(1, 500) g")
                sent[0] += 500
                time.sleep(pause)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
    finally:
        end.set()
        thread.join()


@fault(
    "F52",
    "a storm of notifications on the package's channel",
    invariant="the worker reads what it can, and stops listening for 10 s at a time, so the server's notification "
    "queue stays empty",
    expected="usage below 1 %; jobs run",
)
def notify_storm(run: Run) -> str:
    worker = run.worker()
    usage = 0.0
    with notifying(run) as sent:
        jobs = enqueue_load(run)
        for _ in run.while_unfinished(120):
            usage = max(usage, float(run.scalar("SELECT pg_notification_queue_usage()")))
            time.sleep(0.02)
    run.wait_until_done()
    assert_only_counted(run, jobs)
    assert usage < 0.01, usage
    assert worker.process.poll() is None
    return f"{sent[0]} notifications, usage {usage:.2%} at most, {jobs} of {jobs} jobs"


@fault(
    "F53",
    "notifications are lost: the listener's session is ended before an enqueue, or nothing is sent at all",
    invariant="polling finds the job",
    expected="the job is claimed within the poll interval of 1 s, or little later",
)
def notify_lost(run: Run) -> str:
    run.worker(POLL_INTERVAL=1.0)
    for number in range(4):
        time.sleep(0.5)
        if number % 2:
            end_sessions(run, "listener")
        helpers.make_jobs(run.connection, 1, task_name="tests.tools.faults.app.tasks.plain")
        run.wait_until_done()
    slowest = run.scalar(
        "SELECT max(extract(epoch FROM claimed_at - enqueued_at))::float8 FROM pgqueue_execution"
        " JOIN pgqueue_job job ON job.id = job_id"
    )
    assert slowest < 3.0, slowest
    return f"4 of 4 claimed after {slowest:.2f} s at most"
