"""Tests of expiry: a job does not start after its `expires_at`, and an expired job is cancelled."""

from __future__ import annotations

import types

import pytest

from django_pgqueue.db import statements
from django_pgqueue.lifecycle import claims, completions, expiry, operator
from tests import helpers

LATE = "too late"


def expire(connection, **options):
    return [job_id for job_id, _ in expiry.expire(connection, worker_id=7, error=LATE, **options)]


@pytest.mark.promise("expired-jobs-cancelled")
def test_expire_overdue_job_is_cancelled_with_reason(engine):
    late = helpers.make_job(engine, expires_seconds=60.0)
    later, never = helpers.make_job(engine, expires_seconds=600.0), helpers.make_job(engine)
    assert expire(engine) == []
    statements.clock.shift_seconds = 61.0
    assert expire(engine) == [late]
    row = helpers.job_row(engine, late)
    assert (row["state"], row["attempt"]) == ("cancelled", 0)
    assert row["finished_at"] is not None
    [execution] = helpers.rows_of(engine, "pgqueue_execution").values()
    assert (execution["job_id"], execution["outcome"], execution["error"]) == (late, "cancelled", LATE)
    assert {helpers.state_of(engine, job_id) for job_id in (later, never)} == {"ready"}


def test_expire_running_job_cancels_only_next_attempt(engine):
    job_id = helpers.make_job(engine, expires_seconds=60.0)
    claimed = helpers.claim_one(engine)
    statements.clock.shift_seconds = 61.0
    assert expire(engine) == []
    completions.fail(engine, helpers.failed(claimed.key))
    assert expire(engine) == [job_id]


def test_claim_expiring_job_returns_start_deadline(engine):
    helpers.make_job(engine, expires_seconds=60.0)
    helpers.make_job(engine)
    statements.clock.shift_seconds = 50.0
    first, second = helpers.claim_all(engine)
    assert helpers.scalar(engine, "SELECT 1") and first.start_by is not None
    assert second.start_by is None


@pytest.mark.promise("slow-claim-expired-job-does-not-start")
def test_claim_slow_reply_shortens_start_deadline(engine, monkeypatch):
    """The commit of a claim can be slow, for example because it waits for a standby.

    The job can expire during that time, so the worker must not count it as time in which the job may start.
    """
    clock = types.SimpleNamespace(now=1000.0)

    def slow(*arguments):
        rows = execute_with_retry(*arguments)
        clock.now += 5.0
        return rows

    execute_with_retry = claims.execute_with_retry
    monkeypatch.setattr(claims, "execute_with_retry", slow)
    monkeypatch.setattr(claims, "time", types.SimpleNamespace(monotonic=lambda: clock.now))
    helpers.make_job(engine, expires_seconds=2.0)
    assert 1000.0 < helpers.claim_one(engine).start_by <= 1002.0
    alone = claims.claim_one(engine, helpers.make_job(engine, expires_seconds=2.0), worker_id=1, lease_seconds=60.0)
    assert 1005.0 < alone.start_by <= 1007.0


def test_expire_job_being_claimed_is_left_alone(engine, second):
    helpers.make_job(engine, expires_seconds=60.0)
    statements.clock.shift_seconds = 61.0
    second.execute("BEGIN")
    helpers.claim_one(second)
    assert expire(engine) == []
    second.execute("COMMIT")
    assert expire(engine) == []


def test_claim_job_being_expired_is_skipped(engine, second):
    job_id = helpers.make_job(engine, expires_seconds=60.0)
    statements.clock.shift_seconds = 61.0
    second.execute("BEGIN")
    assert expire(second) == [job_id]
    assert helpers.claim_all(engine) == []
    second.execute("COMMIT")
    assert helpers.claim_all(engine) == []


def test_expire_with_limit_cancels_oldest_first(engine):
    ids = [helpers.make_job(engine, expires_seconds=60.0 + n) for n in range(3)]
    statements.clock.shift_seconds = 100.0
    assert expire(engine, limit=2) == ids[:2]
    assert expire(engine, limit=2) == ids[2:]


def test_retry_expired_job_runs_despite_expiry(engine):
    job_id = helpers.make_job(engine, expires_seconds=60.0)
    statements.clock.shift_seconds = 61.0
    expire(engine)
    operator.retry(engine, [job_id])
    assert expire(engine) == []
    assert helpers.claim_one(engine).job_id == job_id
