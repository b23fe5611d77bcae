"""Server restarts, lost sessions, read-only transactions and refused connections (F19 to F23, F27, F38)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from typing import Final

import psycopg

from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

from . import counted

ENGINE_ERRORS: Final = re.compile("database outage .* too many clients")
LOAD = {"plain": 100, "atomic": 60, "coroutine": 30, "failing": 10}


def enqueue_load(run: Run, seconds: float = 0.02) -> int:
    """Enqueue a mix of jobs that keeps two workers busy for a second or two; return their number."""
    for task, count in LOAD.items():
        run.enqueue(task, count, seconds=seconds, **({"before": 2} if task == "failing" else {}))
    return sum(LOAD.values())


def wait_until_busy(run: Run, ended: int = 10) -> None:
    """Wait until some jobs have succeeded."""
    run.wait_until(lambda: run.states().get("succeeded", 0) >= ended, what="the workers to be busy")


def assert_only_counted(run: Run, jobs: int) -> None:
    """Assert that all jobs succeeded and that no crash was charged."""
    assert run.states() == {"succeeded": jobs}, run.states()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()


def resumed(run: Run, since: float) -> float:
    """Return the seconds from a time of the monotonic clock to the first body that began after it."""
    later = [one["at"] for one in run.journal("start") if one["at"] > since]
    return min(later) - since if later else 0.0


@fault(
    "F19",
    "fast restart of the server under load",
    invariant="workers reconnect by themselves; nothing is lost or charged",
    expected="0 workers exit; work continues within 2 s",
    exclusive=True,
)
def fast_restart(run: Run) -> str:
    jobs = enqueue_load(run)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    wait_until_busy(run)
    run.server.cluster.stop("fast")
    run.server.cluster.start()
    up = time.monotonic()
    run.wait_until_done()
    assert_only_counted(run, jobs)
    assert all(worker.process.poll() is None for worker in workers)
    return f"{jobs} of {jobs} jobs, 0 charged; work continued {resumed(run, up):.1f} s after the server was back"


@fault(
    "F20",
    "the server crashes and stays down for longer than the leases",
    invariant="jobs are interrupted in time and released; there is no mass rescue when the server is back",
    expected="0 crashes charged to jobs whose worker is alive",
    exclusive=True,
)
def long_outage(run: Run) -> str:
    jobs = enqueue_load(run) + 8
    run.enqueue("plain", 4, seconds=3, priority=1)
    run.enqueue("atomic", 4, seconds=3, priority=1)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    run.wait_for("start", 8)
    run.server.cluster.stop("immediate")
    time.sleep(10)
    run.server.cluster.start()
    took = run.wait_until_done(60)
    assert_only_counted(run, jobs)
    assert all(worker.process.poll() is None for worker in workers)
    return f"down for 10 s, lease 8 s: 0 charged; {jobs} of {jobs} jobs had ended {took:.1f} s after it was back"


@fault(
    "F20b",
    "the server is back after longer than a lease, and a new worker connects first",
    invariant=(
        "the new worker rescues nothing until it has observed the leases for two heartbeats; the old worker reports "
        "first"
    ),
    expected="0 crashes charged",
    exclusive=True,
)
def hasty_newcomer(run: Run) -> str:
    go = run.where / "go"
    jobs = [*run.enqueue("plain", 2, until=str(go)), *run.enqueue("atomic", 2, until=str(go))]
    old = run.worker(LEASE=8.0)
    run.wait_for("start", 4)
    run.server.cluster.stop("immediate")
    time.sleep(9)
    old.send_all(signal.SIGSTOP)  # slow to reconnect
    run.server.cluster.start()
    run.worker("--queues", "nothing", LEASE=8.0)
    time.sleep(2)
    charged = run.outcomes().get("crashed", 0)
    assert not charged, f"{charged} of 4 charged"
    old.send_all(signal.SIGCONT)
    go.touch()
    run.wait_until_done(60)
    assert_only_counted(run, len(jobs))
    return f"0 charged; {counted(run.outcomes())}"


@fault(
    "F21",
    "SIGKILL of one server process, after which the server ends all sessions",
    invariant="workers reconnect by themselves; nothing is lost or charged",
    expected="0 lost; work continues within 2 s",
    exclusive=True,
)
def backend_killed(run: Run) -> str:
    jobs = enqueue_load(run)
    workers = [run.worker(LEASE=8.0), run.worker(LEASE=8.0)]
    wait_until_busy(run)
    with contextlib.suppress(psycopg.Error), run.connect() as victim, run.connect() as witness:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        while True:  # until the server ends all sessions
            witness.execute("SELECT pg_sleep(0.01)")
    began = time.monotonic()
    run.wait_until_done()
    assert_only_counted(run, jobs)
    assert all(worker.process.poll() is None for worker in workers)
    return f"{jobs} of {jobs} jobs, 0 charged; work continued after {resumed(run, began):.1f} s"


ROLES = ("fetcher", "completer", "supervisor")


def end_sessions(run: Run, *roles: str) -> int:
    """Terminate the sessions of these roles in this run's database; return their number."""
    names = [f"pgqueue:{role}%" for role in roles]
    return len(
        run.sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE ANY(%s)",
            [names],
        )
    )


@fault(
    "F22",
    "the sessions of a worker are terminated, one after another, then both of its process together",
    invariant="each session reconnects; polling replaces the listener; no lease is lost",
    expected="0 lost, 0 charged",
    quick=True,
)
def sessions_ended(run: Run) -> str:
    jobs = enqueue_load(run, seconds=0.1)
    worker = run.worker(LEASE=6.0)
    wait_until_busy(run, 5)
    ended = {}
    for roles in (*((role,) for role in ROLES), ("fetcher", "completer")):
        ended[roles] = end_sessions(run, *roles)
        time.sleep(0.3)
    run.wait_until_done()
    assert_only_counted(run, jobs)
    assert worker.process.poll() is None
    assert all(ended.values()), f"there was no session to end: {ended}"
    [latency] = _latencies(run, 1)
    return (
        f"{sum(ended.values())} sessions ended; {jobs} of {jobs} jobs, 0 charged; then a job started in {latency:.2f} s"
    )


def _latencies(run: Run, number: int, pause: float = 0.3) -> list[float]:
    """Enqueue single jobs, each when the worker is idle; return the seconds until each was claimed."""
    ids = []
    for _ in range(number):
        time.sleep(pause)
        ids += run.enqueue("plain")
        run.wait_until_done()
    rows = run.sql(
        "SELECT extract(epoch FROM claimed_at - enqueued_at)::float8 FROM pgqueue_execution"
        " JOIN pgqueue_job job ON job.id = job_id WHERE job_id = ANY(%s)",
        [ids],
    )
    return [row[0] for row in rows]


@fault(
    "F23",
    "an administrator cancels the statements of a worker again and again",
    invariant="a cancelled write is repeated later and counts once",
    expected="0 lost, 0 charged; no completion accepted twice",
)
def statements_cancelled(run: Run) -> str:
    jobs = enqueue_load(run)
    run.worker(LEASE=8.0)
    wait_until_busy(run, 5)
    cancelled = 0
    while run.unfinished() > 10 and cancelled < 40:
        cancelled += len(
            run.sql(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND application_name LIKE 'pgqueue:%' AND state = 'active' AND pid <> pg_backend_pid()"
            )
        )
    run.wait_until_done(60)
    assert_only_counted(run, jobs)
    return f"{cancelled} statements cancelled; {jobs} of {jobs} jobs, 0 charged"


@fault(
    "F23b",
    "the wait for a missing synchronous standby is cancelled",
    invariant="the completion is on the primary's disk and counts once",
    expected="one completion accepted for each job",
    exclusive=True,
)
def synchronous_wait_cancelled(run: Run) -> str:
    go = run.where / "go"
    run.enqueue("plain", 4, until=str(go))
    run.worker(LEASE=30.0)
    # The effects must be committed first: otherwise the bodies wait for the standby, instead of the completer.
    run.wait_until(lambda: run.scalar("SELECT count(*) FROM fault_effect") == 4, what="4 effects")
    run.configure("synchronous_standby_names", "nobody")
    go.touch()
    waits = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%pgqueue:succeed%'"
        " AND datname = current_database()"
    )
    run.wait_until(lambda: run.sql(waits), what="the completer to wait for the standby")
    cancelled = len(run.sql(f"SELECT pg_cancel_backend(pid) FROM ({waits}) AS waiting"))
    run.configure("synchronous_standby_names", None)
    run.wait_until_done()
    assert run.outcomes() == {"succeeded": 4}
    return f"waits cancelled: {cancelled}; 4 completions accepted once each"


@fault(
    "F27",
    "every transaction is read-only for a while, as on a standby",
    invariant="loops back off after an error; nothing is lost",
    expected="at most 1 error a second in each loop; all jobs end afterwards",
)
def read_only(run: Run) -> str:
    jobs = enqueue_load(run)
    worker = run.worker(LEASE=30.0)
    wait_until_busy(run, 5)
    run.sql(f"ALTER DATABASE {run.database} SET default_transaction_read_only = on")
    end_sessions(run, *ROLES)
    time.sleep(5)
    run.sql("SET default_transaction_read_only = off")
    run.sql(f"ALTER DATABASE {run.database} RESET default_transaction_read_only")
    end_sessions(run, *ROLES)
    errors = worker.said.count("read-only transaction")
    run.wait_until_done(60)
    assert run.states() == {"succeeded": jobs}, run.states()
    assert errors, "the fault was not seen"
    return f"errors in 5 s: {errors}; {jobs} of {jobs} jobs; {counted(run.outcomes())}"


@fault(
    "F38",
    "the server has no free connection",
    invariant=(
        "the worker keeps its existing connections, and reopens lost ones with a backoff; an attempt that cannot "
        "begin does not count"
    ),
    expected=(
        "at most 1 error a second in each loop; all jobs end afterwards, those whose own queries failed after a retry"
    ),
    exclusive=True,
)
def no_connections(run: Run) -> str:
    jobs = enqueue_load(run)
    worker = run.worker(LEASE=30.0)
    wait_until_busy(run, 5)
    with contextlib.ExitStack() as stack:
        taken = _take_all_connections(run, stack)
        for _ in range(10):
            end_sessions(run, "fetcher", "completer", "supervisor")
            _take_all_connections(run, stack)  # the released ones too, unless the worker has them again already
            with contextlib.suppress(AssertionError):
                run.wait_until(lambda: "too many clients" in worker.said, 2)
                break
        before = len(ENGINE_ERRORS.findall(worker.said))
        time.sleep(4)
        errors = len(ENGINE_ERRORS.findall(worker.said)) - before
    run.wait_until_done(60)
    retried = _retry_failed_queries(run)
    run.wait_until_done(60)
    assert run.states() == {"succeeded": jobs}, run.states()
    assert "too many clients" in worker.said, "the fault was not seen"
    return f"{taken} connections taken; errors in 4 s: {errors}; {jobs} of {jobs} jobs, {retried} after a retry"


def _take_all_connections(run: Run, stack: contextlib.ExitStack) -> int:
    """Open sessions until the server refuses one; return their number."""
    taken = 0
    while True:
        try:
            stack.enter_context(run.connect())
        except psycopg.OperationalError:
            return taken
        taken += 1


def _retry_failed_queries(run: Run) -> int:
    """Retry the dead jobs, as an operator does. All must have failed in a query of their own. Return their number."""
    dead = run.sql(
        "SELECT job.id, execution.traceback FROM pgqueue_job AS job"
        " JOIN pgqueue_execution AS execution ON execution.job_id = job.id AND execution.attempt = job.attempt"
        " WHERE job.state = 'dead'"
    )
    for job, traceback in dead:
        assert "too many clients" in traceback and "faults/app/tasks" in traceback, f"job {job}: {traceback}"
    if dead:
        run.act("retry", [job for job, _ in dead])
        run.sql("NOTIFY pgqueue")
    return len(dead)
