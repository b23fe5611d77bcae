"""Test claims and heartbeats whose commits take longer than their worker lives, or than their lease."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from django_pgqueue.lifecycle import claims, rescues, workers
from django_pgqueue.lifecycle import leases as lifecycle_leases
from django_pgqueue.models import Worker
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.supervision.crash_charges import settle
from django_pgqueue.worker.supervision.settlement import Settlement
from tests import helpers
from tests.helpers import execution_row, job_row, scalar

pytestmark = pytest.mark.usefixtures("committing")
STOP = "UPDATE pgqueue_worker SET stopped_at = now() WHERE id = %s"


@pytest.fixture
def worker_id(engine):
    return workers.register_worker(
        engine, hostname="a", pid=1, supervisor_pid=1, version="0", queue_names=[], concurrency=1
    )


@pytest.fixture
def link():
    own = Link("default", "supervisor")
    yield own
    own.close()


def claim(connection, worker_id):
    job_id = helpers.make_job(connection, max_attempts=1)
    return claims.claim_one(connection, job_id, worker_id=worker_id, lease_seconds=60.0)


# ------------------------------------------------------------------ the rescue


@pytest.mark.promise("late-claim-is-released")
def test_rescue_late_claim_of_stopped_worker_is_released(engine, worker_id):
    claimed = claim(engine, worker_id)
    engine.execute(STOP, (worker_id,))
    helpers.end_lease(engine)
    [(execution, result)] = rescues.rescue(engine, lambda held: None, error="lost")
    assert (execution.execution_id, result.state) == (claimed.execution_id, "ready")
    assert execution_row(engine, claimed.execution_id)["outcome"] == "released"
    assert job_row(engine, claimed.job_id)["attempt"] == 0


@pytest.mark.parametrize("has_record", [True, False])
def test_rescue_execution_of_lost_worker_counts_attempt(engine, worker_id, has_record):
    claimed = claim(engine, worker_id)
    if not has_record:
        engine.execute("DELETE FROM pgqueue_worker")
    helpers.end_lease(engine)
    [(_, result)] = rescues.rescue(engine, lambda held: None, error="lost")
    assert result.state == "dead"
    assert execution_row(engine, claimed.execution_id)["outcome"] == "crashed"


def test_rescuer_reports_late_claim_as_release(engine, worker_id, link):
    seen = []
    observer = SimpleNamespace(wants_successes=lambda: False, observe=lambda change, database: seen.append(change))
    maintenance = Maintenance(link, reactions=Reactions([observer], SimpleNamespace(exist=lambda: False)))
    claim(engine, worker_id)
    engine.execute(STOP, (worker_id,))
    helpers.end_lease(engine)
    helpers.rescue_by(maintenance)
    assert [(change.ending.value, change.is_rescued) for change in seen] == [("released", False)]


def test_rescue_lease_changed_since_the_look_closes_nothing(engine, worker_id):
    """A heartbeat whose commit hung leaves another lease, which has ended too. Its worker may be alive."""
    claimed = claim(engine, worker_id)
    helpers.end_lease(engine)
    leases = rescues.ending_leases(engine, 1.0)
    assert set(leases) == {claimed.execution_id}
    for table in ("pgqueue_execution", "pgqueue_worker"):
        engine.execute(f"UPDATE {table} SET lease_expires_at = lease_expires_at - interval '5 ms'")
    assert rescues.rescue(engine, lambda held: 0.0, error="lost", leases=leases) == []
    leases = rescues.ending_leases(engine, 1.0)
    assert len(rescues.rescue(engine, lambda held: 0.0, error="lost", leases=leases)) == 1


def test_ending_leases_leaves_out_leases_that_last(engine, worker_id):
    claimed = claim(engine, worker_id)
    assert rescues.ending_leases(engine, 59.0) == {}
    assert set(rescues.ending_leases(engine, 61.0)) == {claimed.execution_id}


def test_prove_commit_writes_to_the_log_and_to_no_table(engine):
    before = helpers.everything(engine)
    position = scalar(engine, "SELECT pg_current_wal_insert_lsn()")
    rescues.prove_commit(engine)
    assert scalar(engine, f"SELECT pg_current_wal_insert_lsn() > '{position}'")
    assert helpers.everything(engine) == before


# ------------------------------------------------------------------ the settlement


def test_settlement_claim_committed_during_unregistration_is_settled(engine, worker_id, link, monkeypatch):
    """The claim of the process that died was waiting for a standby, and so was the record of its stop."""
    unregister = workers.unregister_worker

    def commit_claim_too(connection, stopped_id):
        claim(engine, worker_id)
        return unregister(connection, stopped_id)

    monkeypatch.setattr(workers, "unregister_worker", commit_claim_too)
    forked = []
    settlement = Settlement(link, lambda main, name: forked.append(name) or 1)
    settlement.ended.append(SimpleNamespace(worker_id=worker_id))
    settlement.tick()
    assert len(forked) == 1
    assert settlement.ended


def test_settlement_record_of_worker_locked_tries_again(engine, worker_id, link):
    settlement = Settlement(link, lambda main, name: 1)
    settlement.ended.append(SimpleNamespace(worker_id=worker_id))
    with helpers.transaction(engine):
        engine.execute("SELECT FROM pgqueue_worker FOR UPDATE")
        settlement.tick()
    assert settlement.ended
    settlement._retry_at = 0.0
    settlement.tick()
    assert settlement.is_done
    assert Worker.objects.get().stopped_at


def dead_process(worker_id, *suspects):
    state = SimpleNamespace(
        suspects=lambda: set(suspects), unwritten=set, ended_last=lambda: (set(), set()), ended_by=0, exit_reason=0
    )
    return SimpleNamespace(worker_id=worker_id, overdue=frozenset(), expected_to_end=False, state=state)


def test_settlement_execution_refused_is_charged_by_rescue(engine, worker_id, link):
    """A release without an attempt would repeat for ever, with a crash of a process each time."""
    claimed = claim(engine, worker_id)
    process = dead_process(worker_id, claimed.execution_id)
    with helpers.users_trigger(engine, "NEW.state <> 'running'"):
        assert settle(link, process, Reactions([], SimpleNamespace(exist=lambda: False)), by_default=True)
    helpers.end_lease(engine)
    [(_, result)] = rescues.rescue(engine, lambda held: None, error="lost")
    assert result.state == "dead"


def test_settle_claim_committed_meanwhile_needs_another_settlement(engine, worker_id, link, monkeypatch):
    first = claim(engine, worker_id)
    unregister = workers.unregister_worker

    def commit_claim_too(connection, stopped_id):
        claim(engine, worker_id)
        return unregister(connection, stopped_id)

    monkeypatch.setattr(workers, "unregister_worker", commit_claim_too)
    process = dead_process(worker_id, first.execution_id)
    reactions = Reactions([], SimpleNamespace(exist=lambda: False))
    assert not settle(link, process, reactions, by_default=True)
    monkeypatch.undo()
    assert settle(link, process, reactions, by_default=True)
    assert lifecycle_leases.open_executions(engine, worker_id) == []
