"""Tests of holds: `Throttled` keeps all workers from starting jobs of a limit key, and no claim loses a hold."""

from __future__ import annotations

import pytest

from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import completions
from django_pgqueue.lifecycle.types import Released, TransitionStatus
from tests import helpers
from tests.concurrency.limits import add, claim, ids

RATE = Limit("rate", key="{key}", rate="1000/s", burst=50)
FOUR = Limit("rate", key="{key}", concurrency=4)


def hold(connection, *jobs, seconds=(60.0,)):
    rows = [Released(job.key, delay, holds_key=True) for job, delay in zip(jobs, seconds, strict=True)]
    return completions.snooze(connection, rows)


def held_seconds(connection, limit=RATE, key="rate:a"):
    [result] = claim(connection, limit, key).results
    return None if result.is_claimed else result.due_seconds


@pytest.mark.parametrize("limit", [RATE, FOUR])
def test_hold_stops_its_key_for_all_and_no_other_key(engine, second, limit):
    add(engine, "rate:a", 2)
    [throttled] = claim(engine, limit, "rate:a", count=1).claimed
    hold(engine, throttled)
    assert 50 < held_seconds(second, limit) <= 60
    job = helpers.job_row(engine, throttled.job_id)
    assert (job["state"], job["attempt"]) == ("ready", 0)
    held_until = helpers.scalar(engine, "SELECT held_until FROM pgqueue_limit_state WHERE held_until IS NOT NULL")
    assert job["run_after"] == held_until
    others = add(engine, "rate:b", 2)
    assert ids(claim(second, limit, "rate:b")) == others


def test_longer_hold_wins_over_a_later_shorter_one(engine):
    add(engine, "rate:a", 4)
    jobs = claim(engine, RATE, "rate:a", count=3).claimed
    hold(engine, *jobs[:2], seconds=(60.0, 90.0))
    hold(engine, jobs[2], seconds=(10.0,))
    assert 80 < held_seconds(engine) <= 90


def test_claim_that_runs_at_the_same_time_does_not_lose_the_hold(engine, second, gates):
    """The claim has its snapshot when the hold commits. It may claim, and it writes how much of the rate is used."""
    add(engine, "rate:a", 4)
    [throttled] = claim(engine, RATE, "rate:a", count=1).claimed
    with gates("CLAIM_KEYS", engine, lambda: claim(engine, RATE, "rate:a", count=1)) as claiming:
        hold(second, throttled)
    assert len(ids(claiming.result())) == 1
    assert 50 < held_seconds(second) <= 60


def test_hold_keeps_what_is_used_of_the_rate(engine):
    limit = Limit("rate", key="{key}", rate="1/m", burst=2)
    add(engine, "rate:a", 3)
    throttled, _ = claim(engine, limit, "rate:a", count=2).claimed
    hold(engine, throttled, seconds=(0.02,))
    helpers.wait_until(lambda: held_seconds(engine, limit) > 1)
    assert 50 < held_seconds(engine, limit) <= 60


def test_key_starts_again_when_the_hold_has_ended(engine):
    add(engine, "rate:a", 2)
    [throttled] = claim(engine, RATE, "rate:a", count=1).claimed
    hold(engine, throttled, seconds=(0.05,))
    claimed: list[int] = []

    def claim_more():
        answer = claim(engine, RATE, "rate:a")
        assert all(result.is_claimed or result.due_seconds <= 0.05 for result in answer.results)
        claimed.extend(ids(answer))
        return len(claimed) == 2

    helpers.wait_until(claim_more)
    assert sorted(claimed) == [throttled.job_id, throttled.job_id + 1]


@pytest.mark.promise("throttled-together")
def test_lost_execution_and_plain_job_hold_nothing(engine):
    add(engine, "rate:a")
    [lost] = claim(engine, RATE, "rate:a").claimed
    helpers.end_lease(engine)
    helpers.rescue(engine, 3600.0)
    assert hold(engine, lost)[lost.execution_id].status is TransitionStatus.LOST
    helpers.make_job(engine)
    hold(engine, helpers.claim_one(engine))
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_limit_state WHERE held_until IS NOT NULL") == 0


def test_snooze_and_release_hold_nothing(engine):
    add(engine, "rate:a", 2)
    snoozed, released = claim(engine, RATE, "rate:a").claimed
    completions.snooze(engine, [Released(snoozed.key, 60.0)])
    completions.release(engine, [Released(released.key, 60.0)])
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_limit_state WHERE held_until IS NOT NULL") == 0
