"""Tests of claims of one limited job by its id: what its limit admits, and what the claim says otherwise."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from django_pgqueue.db.statements import clock
from django_pgqueue.declared.limit_policies import policy_of
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import completions, limits, operator
from django_pgqueue.lifecycle.limits import KeyResult, KeyToClaim
from django_pgqueue.lifecycle.types import Claimed, Cursor, Released
from tests import helpers
from tests.concurrency.limits import add, claim, finish, ids

TWO = Limit("two", key="{key}", concurrency=2)
RATE = Limit("rate", rate="1/m", burst=2)
BLOCKED = Limit("one", key="{key}", ordered=True, on_dead="block")


class JobClaim(NamedTuple):
    """The claimed job, and what the claim says of its key."""

    claimed: Claimed | None
    key: KeyResult

    @property
    def waits(self):
        """Whether the limit does not admit the job, and whether time can help."""
        return not self.claimed and not self.key.admits_more, self.key.due_seconds is not None


def claim_job(connection, job_id, limit, *, is_early=True, limit_key=None):
    """Claim a job by its id, as a run in the foreground does."""
    job = limits.limited_job(connection, job_id)
    key = limit_key or job.limit_key
    with connection.transaction():
        assert limits.lock_keys(connection, [key]) == [key]
        claimed, [result] = limits.claim_keys(
            connection,
            job.lane,
            [KeyToClaim(key, policy_of(limit), Cursor())],
            job_id=job_id,
            is_early=is_early,
            limit=1,
            free_slots=1,
            worker_id=1,
            lease_seconds=60.0,
        )
    return JobClaim(claimed[0] if claimed else None, result)


def test_claim_of_job_takes_only_a_free_slot(engine):
    first, second, third = add(engine, "two:a", 3)
    [*_, other] = add(engine, "two:b", 3)
    begun = [claim_job(engine, job_id, TWO).claimed for job_id in (second, third)]
    assert [(job.job_id, job.limit_key, job.attempt) for job in begun] == [(second, "two:a", 1), (third, "two:a", 1)]
    assert claim_job(engine, first, TWO).waits == (True, False)
    assert claim_job(engine, other, TWO).claimed.job_id == other
    assert ids(claim(engine, TWO, "two:a")) == []
    completions.succeed(engine, helpers.succeeded(begun[0].key))
    assert claim_job(engine, first, TWO).claimed.job_id == first


def test_claim_of_job_fills_a_bucket_that_is_full_too_late(engine):
    """The clock went back, or an operator has raised the rate."""
    engine.execute("INSERT INTO pgqueue_limit_state (limit_key, full_at) VALUES ('rate', now() + interval '9 h')")
    [job_id] = add(engine, "rate")
    assert 50 < claim_job(engine, job_id, RATE).key.due_seconds <= 60
    clock.shift_seconds = 61.0
    assert claim_job(engine, job_id, RATE).claimed.job_id == job_id


def test_claim_of_heavy_job_waits_for_all_its_slots(engine):
    [heavy], _ = add(engine, "two:a", weight=2), add(engine, "two:a")
    begun = claim_job(engine, heavy + 1, TWO).claimed
    assert claim_job(engine, heavy, TWO).claimed is None
    completions.succeed(engine, helpers.succeeded(begun.key))
    assert claim_job(engine, heavy, TWO).claimed.job_id == heavy


def test_claim_of_job_spends_tokens_like_a_worker(engine):
    first, second, third = add(engine, "rate", 3)
    assert claim_job(engine, first, RATE).claimed
    assert ids(claim(engine, RATE, "rate")) == [second]
    refused, key = claim_job(engine, third, RATE)
    assert refused is None
    assert 50 < key.due_seconds <= 60
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_limit_state") == 1


def test_claim_of_job_obeys_a_hold(engine):
    add(engine, "two:a", 2)
    [throttled] = claim(engine, TWO, "two:a", count=1).claimed
    completions.snooze(engine, [Released(throttled.key, 60.0, holds_key=True)])
    for job_id in (throttled.job_id, throttled.job_id + 1):
        refused, key = claim_job(engine, job_id, TWO)
        assert refused is None
        assert key.is_held and 50 < key.due_seconds <= 60


def test_claim_of_ordered_job_waits_for_the_job_that_comes_first(engine):
    first, second = add(engine, "one:a", 2, order=2)
    assert claim_job(engine, second, BLOCKED).claimed is None
    begun = claim_job(engine, first, BLOCKED).claimed
    assert claim_job(engine, second, BLOCKED).claimed is None
    completions.fail(engine, helpers.failed(begun.key, None))
    assert claim_job(engine, second, BLOCKED).claimed is None
    operator.retry(engine, [first])
    finish(engine, claim(engine, BLOCKED))
    assert claim_job(engine, second, BLOCKED).claimed


@pytest.mark.parametrize("limit", [TWO, BLOCKED])
@pytest.mark.parametrize("is_early", [False, True])
def test_claim_of_job_that_is_not_due(engine, limit, is_early):
    add(engine, f"{limit.name}:a", delay=60.0)
    [job_id] = add(engine, f"{limit.name}:b", delay=60.0, order=2 if limit.ordered else None)
    assert (claim_job(engine, job_id, limit, is_early=is_early).claimed is not None) == is_early


def test_claim_of_job_passes_by_the_jobs_before_it(engine):
    *_, last = add(engine, "two:a", 3)
    assert claim_job(engine, last, TWO, is_early=False).claimed.job_id == last


def test_claim_of_job_ignores_plain_running_and_changed_jobs(engine, second):
    plain, [limited] = helpers.make_job(engine), add(engine, "two:a")
    assert limits.limited_job(engine, plain) is None
    assert claim_job(engine, limited, TWO, limit_key="two:b").claimed is None
    with second.transaction():
        second.execute("SELECT FROM pgqueue_job WHERE id = %s FOR UPDATE", [limited])
        assert claim_job(engine, limited, TWO).claimed is None
    assert claim_job(engine, limited, TWO).claimed
    assert limits.limited_job(engine, limited) is None


def test_claim_of_job_and_claims_of_workers_exclude_each_other(engine, second):
    """While one session has the key, another one claims nothing of it. Afterwards it counts what was claimed."""
    first, other, third = add(engine, "two:a", 3)
    with engine.transaction():
        assert limits.lock_keys(engine, ["two:a"])
        assert ids(claim(second, TWO)) == []
    assert ids(claim(second, TWO)) == [first, other]
    assert claim_job(engine, third, TWO).waits == (True, False)
