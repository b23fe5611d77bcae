"""Tests that locked rows do not fill the batches of statements that work on many rows.

If a statement picks a limited batch first and then skips the locked rows in it, it does nothing while another session
has locked a whole batch. Each repetition picks the same batch.
"""

from __future__ import annotations

import pytest

from django_pgqueue.lifecycle import completions, expiry, orphans, pruning
from django_pgqueue.states import State
from django_pgqueue.worker.maintenance.pruner import Pruner
from tests import helpers

LOCKED, FREE = 150, 3
IN_FRONT = "id IN (SELECT id FROM {} ORDER BY id LIMIT 150)"


def lock(table, condition="true"):
    return f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE {condition} FOR UPDATE) AS locked"


@pytest.mark.promise("locked-rows-stop-nothing")
@pytest.mark.parametrize("table", ["pgqueue_execution", "pgqueue_job"])
def test_rescue_locked_rows_in_front_are_skipped(engine, second, table):
    helpers.make_jobs(engine, LOCKED + FREE)
    free = [job.execution_id for job in helpers.claim_all(engine)][LOCKED:]
    helpers.end_lease(engine)
    with helpers.transaction(second, lock(table, IN_FRONT.format(table))):
        assert sorted(helpers.rescue(engine)) == free
    assert len(helpers.rescue(engine)) == 100


def test_sweep_orphans_behind_locked_rows_are_removed(engine, second):
    helpers.make_jobs(engine, LOCKED + FREE)
    free = [job.execution_id for job in helpers.claim_all(engine)][LOCKED:]
    engine.execute("DELETE FROM pgqueue_job")
    with helpers.transaction(second, lock("pgqueue_execution", IN_FRONT.format("pgqueue_execution"))):
        orphans.prune_orphans(engine, "executions")
        assert not set(free) & set(helpers.rows_of(engine, "pgqueue_execution"))


def test_rescue_finds_the_jobs_of_every_lost_worker(engine):
    helpers.make_jobs(engine, 6)
    claimed = [helpers.claim_one(engine, worker_id=worker_id) for worker_id in (3, 1, 2, 3, 1, 2)]
    helpers.end_lease(engine)
    assert set(helpers.rescue(engine)) == {job.execution_id for job in claimed}


def test_rescue_many_expired_leases_takes_a_fifth_per_call(engine):
    helpers.make_jobs(engine, 1000)
    for _ in range(2):
        helpers.claim_all(engine)
    helpers.end_lease(engine)
    assert len(helpers.rescue(engine)) == 200
    assert len(helpers.rescue(engine)) == 160


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_rescue_strict_isolation_takes_jobs_back(engine, isolation):
    engine.execute(f"SET default_transaction_isolation = '{isolation}'")
    helpers.make_jobs(engine, FREE)
    helpers.claim_all(engine)
    helpers.end_lease(engine)
    assert len(helpers.rescue(engine)) == FREE


@pytest.mark.promise("locked-rows-stop-nothing")
@pytest.mark.parametrize("table", ["pgqueue_execution", "pgqueue_job"])
def test_prune_locked_rows_in_front_are_skipped(engine, second, monkeypatch, table):
    monkeypatch.setattr(pruning, "PRUNE_LIMIT", 100)
    monkeypatch.setattr(pruning, "PRUNE_LIMIT", 100)
    prune = pruning.prune
    monkeypatch.setattr(pruning, "prune", lambda *args, **options: prune(*args, limit=100, **options))
    helpers.make_jobs(engine, LOCKED + FREE)
    for claimed in helpers.claim_all(engine):
        completions.succeed(engine, helpers.succeeded(claimed.key))
    engine.execute("UPDATE pgqueue_job SET finished_at = now() - interval '99 d' + id * interval '1 ms'")
    with helpers.transaction(second, lock(table, IN_FRONT.format(table))):
        Pruner().prune(engine)
        assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job") == LOCKED
    assert Pruner().prune(engine) == LOCKED


@pytest.mark.promise("locked-rows-stop-nothing")
def test_expire_locked_rows_in_front_are_skipped(engine, second):
    job_ids = helpers.make_jobs(engine, LOCKED + FREE)
    engine.execute("UPDATE pgqueue_job SET expires_at = statement_timestamp() - interval '1 s' + id * interval '1 us'")
    with helpers.transaction(second, lock("pgqueue_job", IN_FRONT.format("pgqueue_job"))):
        expired = expiry.expire(engine, worker_id=1, error="late", limit=100)
    assert [job_id for job_id, _ in expired] == job_ids[LOCKED:]
    assert {helpers.state_of(engine, job_id) for job_id in job_ids[LOCKED:]} == {State.CANCELLED}
