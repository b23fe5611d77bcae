"""Test how the lease monitor handles moments that a test cannot bring about from outside the process."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import psycopg
import pytest

from django_pgqueue.lifecycle import leases, worker_requests
from django_pgqueue.worker.claiming import lease_monitor
from django_pgqueue.worker.claiming.lease_monitor import ClaimCounter, LeaseMonitor
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.slots.inflight import InFlight, Prefetched, Running
from tests import helpers
from tests.app import tasks


@pytest.fixture
def monitor(monkeypatch):
    """Return a monitor with one running job. It receives notifications, and makes no comparison for a while."""
    link = SimpleNamespace(use=lambda: contextlib.nullcontext())
    in_flight = InFlight(1)
    in_flight.running[1] = Running(SimpleNamespace(), 0.0, 0)
    pool = SimpleNamespace(ask_to_cancel=set)
    state = SimpleNamespace(has_requests=False)
    monitor = LeaseMonitor(link, in_flight, SimpleNamespace(ids=set), pool, state, 1, ClaimCounter(), FOREGROUND)
    monitor.set_listens(listens=True)
    monitor._compare_at = float("inf")
    monkeypatch.setattr(worker_requests, "open_requests", lambda connection, worker_id: [])
    return monitor


@pytest.mark.parametrize("fails", [False, True])
def test_cancel_poll_failed_or_found_unknown_id_is_repeated(monitor, monkeypatch, fails):
    """An execution may be unknown here because the answer of its claim is still under way."""
    polls = []

    def poll(connection, worker_ids, *, first_id):
        polls.append(worker_ids)
        if len(polls) == 1 and fails:
            raise psycopg.OperationalError
        return [(1, 99)] if len(polls) == 1 else []

    monitor.pool.ask_to_cancel = lambda ids: set()
    monkeypatch.setattr(leases, "cancel_requests", poll)
    monitor.poll_requests_soon()
    with contextlib.suppress(psycopg.OperationalError):
        monitor.tick()
    monitor.tick()
    monitor.tick()
    assert len(polls) == 2


def test_cancel_poll_prefetched_job_is_released_at_once(monitor, monkeypatch):
    claimed, released = SimpleNamespace(execution_id=2), []
    monitor.in_flight.waiting[2] = Prefetched(claimed, 0.0)
    monitor.pool.ask_to_cancel = set
    monkeypatch.setattr(leases, "cancel_requests", lambda *args, **options: [(1, 2)])
    monkeypatch.setattr(lease_monitor, "release_executions", lambda connection, jobs, reactions: released.extend(jobs))
    monitor.poll_requests_soon()
    monitor.tick()
    assert released == [claimed]
    assert not monitor.in_flight.waiting


@pytest.mark.parametrize("fails", [False, True])
def test_cancel_poll_notified_during_poll_is_repeated(monitor, monkeypatch, fails):
    """The notification may announce a request that was committed too late for the statement of the current poll."""
    polls = []

    def poll(connection, worker_ids, *, first_id):
        polls.append((worker_ids, first_id))
        if len(polls) == 1:
            monitor.poll_requests_soon()
            if fails:
                raise psycopg.OperationalError
        return []

    monkeypatch.setattr(leases, "cancel_requests", poll)
    monitor.poll_requests_soon()
    with contextlib.suppress(psycopg.OperationalError):
        monitor.tick()
    monitor.tick()
    monitor.tick()
    assert polls == [([1], 1)] * 2


def test_request_before_the_process_listens_is_found_when_it_does(monitor, monkeypatch):
    """Its notification came too early, and the last poll too."""
    polls, answers = [], []
    monkeypatch.setattr(leases, "cancel_requests", lambda *args, **options: polls.append(args) or [])
    monkeypatch.setattr(worker_requests, "open_requests", lambda *args: answers.append(args) or [])
    monitor.set_listens(listens=False)
    monitor.tick()
    before = len(polls), len(answers)
    monitor.set_listens(listens=True)
    monitor.tick()
    monitor.tick()
    assert (len(polls), len(answers)) == (before[0] + 1, before[1] + 1)


def test_cancel_poll_job_being_started_is_asked_at_next_poll(monitor, monkeypatch):
    """The job is no longer prefetched, and its slot does not run it yet. The first poll therefore cannot notify it."""
    monkeypatch.setattr(leases, "cancel_requests", lambda *args, **options: [(1, 1)])
    asked, notified = [], [set(), {1}]

    def ask_to_cancel(ids):
        asked.append(ids)
        return notified[len(asked) - 1]

    monitor.pool.ask_to_cancel = ask_to_cancel
    monitor.poll_requests_soon()
    for _ in range(4):
        monitor.tick()
    assert asked == [{1}, {1}]


@pytest.fixture
def database_monitor(committing):
    """Return a monitor that compares its jobs in flight with the executions of worker 1 in the database."""
    link = Link("default", "lease-monitor")
    interrupted: list[set[int]] = []
    pool = SimpleNamespace(interrupt=interrupted.append, interrupted=interrupted)
    yield LeaseMonitor(link, InFlight(9), SimpleNamespace(ids=set), pool, None, 1, ClaimCounter(), FOREGROUND)
    link.close()


def open_ids(engine):
    return [execution.execution_id for execution in leases.open_executions(engine, 1)]


@pytest.mark.promise("no-release-during-claim")
def test_lease_monitor_claim_under_way_releases_nothing(engine, database_monitor):
    """This also holds if the answer takes long: at any moment, this process may receive these jobs and start them."""
    helpers.make_job(engine)
    with database_monitor.claims.claim_under_way():
        claimed = helpers.claim_one(engine)
        for _ in range(5):
            database_monitor._compare()
        assert open_ids(engine) == [claimed.execution_id]
        database_monitor.in_flight.add([claimed])
    database_monitor._compare()
    database_monitor._compare()
    assert open_ids(engine) == [claimed.execution_id]


def test_lease_monitor_claim_reply_lost_releases_its_jobs(engine, database_monitor):
    helpers.make_job(engine)
    with contextlib.suppress(psycopg.OperationalError), database_monitor.claims.claim_under_way():
        claimed = helpers.claim_one(engine)
        database_monitor._compare()
        raise psycopg.OperationalError
    assert open_ids(engine) == [claimed.execution_id]
    database_monitor._compare()
    assert open_ids(engine) == []
    assert helpers.state_of(engine, claimed.job_id) == "ready"


def test_lease_monitor_stray_during_later_claims_is_released(engine, database_monitor):
    """A later claim is under way at the second comparison. It cannot return what was open at the first comparison."""
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    with database_monitor.claims.claim_under_way():
        database_monitor._compare()
    with database_monitor.claims.claim_under_way():
        database_monitor._compare()
    assert open_ids(engine) == []
    assert helpers.job_row(engine, claimed.job_id)["attempt"] == 0


def test_lease_monitor_ids_restart_interrupts_old_execution(engine, database_monitor):
    """Another execution of this worker has the old execution's id now. The job that runs here is lost nevertheless."""
    helpers.make_job(engine)
    old = helpers.claim_one(engine)
    database_monitor.in_flight.add([old])
    database_monitor.in_flight.start(old.execution_id, 0, wait=False)
    database_monitor._compare()
    assert database_monitor.pool.interrupted == []
    helpers.empty_tables(engine)
    helpers.make_job(engine)
    assert helpers.claim_one(engine).execution_id == old.execution_id
    database_monitor._compare()
    assert database_monitor.pool.interrupted == [{old.execution_id}]


@pytest.mark.parametrize(
    ("task", "is_interrupted"),
    [(tasks.noop, True), (tasks.work_after_commit, True), (tasks.discarded_work_after_commit, False)],
)
def test_lease_monitor_removed_rows_interrupt_jobs_whose_success_keeps_rows(
    engine, database_monitor, task, is_interrupted
):
    """The success of an atomic task without retention removes its rows. Its `on_commit()` functions run after that."""
    helpers.make_job(engine, task_name=task.name)
    claimed = helpers.claim_one(engine)
    database_monitor.in_flight.add([claimed])
    database_monitor.in_flight.start(claimed.execution_id, 0, wait=False)
    helpers.empty_tables(engine)
    database_monitor._compare()
    assert database_monitor.pool.interrupted == ([{claimed.execution_id}] if is_interrupted else [])


def test_lease_monitor_claim_ends_in_comparison_keeps_its_job(engine, database_monitor):
    """The job comes in flight after the monitor has read what is in flight, but before it reads the claims' counts."""

    class EndsJustNow(ClaimCounter):
        @property
        def begun(self):
            database_monitor.in_flight.add([claimed])
            self.ended = 1
            return 1

        @begun.setter
        def begun(self, count):
            pass

    helpers.make_job(engine)
    with database_monitor.claims.claim_under_way():
        claimed = helpers.claim_one(engine)
        database_monitor._compare()
        database_monitor.claims = EndsJustNow()
        database_monitor._compare()
    assert open_ids(engine) == [claimed.execution_id]
