"""Tests of claims of one limited job by its id: what its limit admits, and what the claim says otherwise."""

from __future__ import annotations

import pytest

from django_pgqueue import lifecycle
from django_pgqueue.db.statements import clock
from django_pgqueue.limit_policies import policy_of
from django_pgqueue.limits import Limit
from tests import helpers
from tests.concurrency.limits import add, claim, finish, ids

TWO = Limit("two", key="{key}", concurrency=2)
RATE = Limit("rate", rate="1/m", burst=2)
BLOCKED = Limit("one", key="{key}", ordered=True, on_dead="block")


def claim_job(connection, job_id, limit, **options):
    with connection.transaction():
        key = lifecycle.limited_job.lock_key_of(connection, job_id)
        assert key is None or key.is_locked
        if key is None:
            return lifecycle.limited_job.LimitedClaim(None, None)
        options = {"worker_id": 1, "lease_seconds": 60.0, **options}
        return lifecycle.limited_job.claim_limited_job(connection, job_id, key.limit_key, policy_of(limit), **options)


def test_claim_of_job_takes_only_a_free_slot(engine):
    first, second, third = add(engine, "two:a", 3)
    [*_, other] = add(engine, "two:b", 3)
    begun = [claim_job(engine, job_id, TWO).claimed for job_id in (second, third)]
    assert [(job.job_id, job.limit_key, job.attempt) for job in begun] == [(second, "two:a", 1), (third, "two:a", 1)]
    assert claim_job(engine, first, TWO) == (None, (None, None, 2, 0.0, 0.0, 1))
    assert claim_job(engine, other, TWO).claimed.job_id == other
    assert ids(claim(engine, TWO, "two:a")) == []
    lifecycle.succeed(engine, helpers.succeeded(begun[0].key))
    assert claim_job(engine, first, TWO).claimed.job_id == first


def test_claim_of_job_fills_a_bucket_that_is_full_too_late(engine):
    """The clock went back, or an operator has raised the rate."""
    engine.execute("INSERT INTO pgqueue_limit_state (limit_key, full_at) VALUES ('rate', now() + interval '9 h')")
    [job_id] = add(engine, "rate")
    assert 50 < claim_job(engine, job_id, RATE).wait.token_seconds <= 60
    clock.shift_seconds = 61.0
    assert claim_job(engine, job_id, RATE).claimed.job_id == job_id


def test_claim_of_heavy_job_waits_for_all_its_slots(engine):
    [heavy], _ = add(engine, "two:a", weight=2), add(engine, "two:a")
    begun = claim_job(engine, heavy + 1, TWO).claimed
    assert claim_job(engine, heavy, TWO).wait == (None, None, 1, 0.0, 0.0, 2)
    lifecycle.succeed(engine, helpers.succeeded(begun.key))
    assert claim_job(engine, heavy, TWO).claimed.job_id == heavy


def test_claim_of_job_spends_tokens_like_a_worker(engine):
    first, second, third = add(engine, "rate", 3)
    assert claim_job(engine, first, RATE).claimed
    assert ids(claim(engine, RATE, "rate")) == [second]
    refused, wait = claim_job(engine, third, RATE)
    assert refused is None
    assert wait.used_slots is None and 50 < wait.token_seconds <= 60
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_limit_state") == 1


def test_claim_of_job_obeys_a_hold(engine):
    add(engine, "two:a", 2)
    [throttled] = claim(engine, TWO, "two:a", count=1).claimed
    lifecycle.snooze(engine, [lifecycle.Released(throttled.key, 60.0, holds_key=True)])
    for job_id in (throttled.job_id, throttled.job_id + 1):
        assert 50 < claim_job(engine, job_id, TWO).wait.held_seconds <= 60


def test_claim_of_ordered_job_names_the_job_that_comes_first(engine):
    first, second = add(engine, "one:a", 2, order=2)
    assert claim_job(engine, second, BLOCKED).wait[:2] == (first, "ready")
    begun = claim_job(engine, first, BLOCKED).claimed
    assert claim_job(engine, second, BLOCKED).wait[:2] == (first, "running")
    lifecycle.fail(engine, helpers.failed(begun.key, None))
    assert claim_job(engine, second, BLOCKED).wait[:2] == (first, "dead")
    lifecycle.retry(engine, [first])
    finish(engine, claim(engine, BLOCKED))
    assert claim_job(engine, second, BLOCKED).claimed


@pytest.mark.parametrize(("only_due", "is_claimed"), [(True, False), (False, True)])
def test_claim_of_job_that_is_not_due(engine, only_due, is_claimed):
    [job_id] = add(engine, "two:a", delay=60.0)
    claimed, wait = claim_job(engine, job_id, TWO, only_due=only_due)
    assert (claimed is not None, wait) == (is_claimed, None)


def test_claim_of_job_ignores_plain_running_and_changed_jobs(engine, second):
    plain, [limited] = helpers.make_job(engine), add(engine, "two:a")
    assert lifecycle.limited_job.lock_key_of(engine, plain) is None
    options = {"worker_id": 1, "lease_seconds": 60.0}
    assert lifecycle.limited_job.claim_limited_job(engine, limited, "two:b", policy_of(TWO), **options) == (None, None)
    with second.transaction():
        second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [limited])
        assert claim_job(engine, limited, TWO) == (None, None)
    assert claim_job(engine, limited, TWO).claimed
    assert lifecycle.limited_job.lock_key_of(engine, limited) is None


def test_claim_of_job_and_claims_of_workers_exclude_each_other(engine, second):
    """While one session has the key, another one claims nothing of it. Afterwards it counts what was claimed."""
    first, other, third = add(engine, "two:a", 3)
    with engine.transaction():
        assert lifecycle.limited_job.lock_key_of(engine, first).is_locked
        assert ids(claim(second, TWO)) == []
        assert not lifecycle.limited_job.lock_key_of(second, other).is_locked
    assert ids(claim(second, TWO)) == [first, other]
    assert claim_job(engine, third, TWO).wait.used_slots == 2


def test_count_of_job_sees_claim_committed_before_the_lock(engine, second):
    """The lock and the count are two statements: the count sees a claim that the lock had to wait for."""
    [*_, third] = add(engine, "two:a", 3)
    with engine.transaction():
        engine.execute("SELECT 1")
        with second.transaction():
            assert len(ids(claim(second, TWO))) == 2
            assert not lifecycle.limited_job.lock_key_of(engine, third).is_locked
        assert lifecycle.limited_job.lock_key_of(engine, third).is_locked
        options = {"worker_id": 1, "lease_seconds": 60.0}
        assert (
            lifecycle.limited_job.claim_limited_job(engine, third, "two:a", policy_of(TWO), **options).wait.used_slots
            == 2
        )
