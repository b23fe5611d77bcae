"""Test which slots limited jobs get, and where their claims begin.

Jobs with a rate are not prefetched, and must not starve beside those that are.
"""

from __future__ import annotations

from types import MappingProxyType, SimpleNamespace

import pytest
from django.utils import timezone

from django_pgqueue import sql
from django_pgqueue.db import statements
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import completions, limits
from django_pgqueue.lifecycle.types import Cursor, Lane
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import lanes
from django_pgqueue.worker.claiming.limited import key_claims
from django_pgqueue.worker.claiming.limited.key_claims import MARGIN, KeyCursors
from django_pgqueue.worker.claiming.limited.limited_lanes import DueKeys
from tests import helpers
from tests.concurrency.limits import LANE, add, claim
from tests.test_sql import nodes
from tests.worker.test_fetcher import make_fetcher, take

__all__ = ["make_fetcher"]

LIMITS = {
    limit.name: limit
    for limit in (
        Limit("rate", key="{key}", rate="1000/m", burst=500),
        Limit("one", key="{key}", concurrency=1),
        Limit("fair", key="{key}"),
    )
}


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))


def end(fetcher, engine, jobs):
    """End jobs as the completer does: in the database, then in the lanes."""
    completions.succeed(engine, helpers.succeeded(*(job.key for job in jobs)))
    fetcher.lanes.limited.note_ended({job.limit_key for job in jobs if job.limit_key})


def test_rated_key_with_tokens_is_claimed_whenever_slots_are_free(engine, make_fetcher):
    add(engine, "rate:a", 40)
    fetcher = make_fetcher(capacity=4)
    for _ in range(10):
        fetcher.tick()
        fetcher.tick()  # while all slots are in use
        jobs = take(fetcher)
        assert len(jobs) == 4
        end(fetcher, engine, jobs)


def test_lane_that_only_needs_a_slot_is_not_scanned_again(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(lanes, "AGE_LIMIT_SECONDS", 60.0)
    add(engine, "rate:a", 12)
    fetcher = make_fetcher(capacity=4)
    fetcher.claim_size.rate.per_second = lambda: 100.0  # so that the fetcher also claims while all slots are in use
    fetcher.tick()
    monkeypatch.setattr(fetcher.lanes, "_scan", None)
    fetcher.lanes._scanned_at -= 30.0  # longer ago than the rest between scans
    jobs = [fetcher.in_flight.start(job.execution_id, 0, wait=False) for job in fetcher.pool.submitted]
    fetcher.pool.submitted.clear()
    fetcher.tick()
    for job in jobs:
        fetcher.in_flight.end(job.execution_id)
    end(fetcher, engine, jobs)
    fetcher.tick()
    assert len(fetcher.pool.submitted) == 4


def test_keys_with_news_and_the_others_take_turns():
    keys = DueKeys()
    for key in ("one:a", "one:b"):
        keys.add(key, is_seen=True, is_news=False)
    for key in ("one:c", "one:d", "one:c"):
        keys.add(key, is_seen=False, is_news=True)
    keys.add("one:b", is_seen=False, is_news=True)
    assert [next(iter(keys.take(1).items())) for _ in range(4)] == [
        ("one:c", False),
        ("one:a", True),
        ("one:d", False),
        ("one:b", True),  # it was seen before
    ]
    assert not keys


def test_rated_key_is_claimed_beside_a_long_plain_queue(engine, make_fetcher):
    helpers.make_jobs(engine, 300)
    fetcher = make_fetcher(capacity=2)
    fetcher.claim_size.rate.per_second = lambda: 500.0  # so that the fetcher prefetches 50 jobs
    fetcher.tick()
    end(fetcher, engine, take(fetcher, 2))
    rated = add(engine, "rate:a", 3)
    fetcher.lanes.scan_again()
    claimed = []
    for _ in range(120):
        fetcher.tick()
        jobs = take(fetcher, 2)
        end(fetcher, engine, jobs)
        claimed += [job.job_id for job in jobs]
    assert set(rated) <= set(claimed)
    assert len(claimed) > 100


def test_rated_key_of_a_higher_priority_gets_the_next_free_slot(engine, make_fetcher):
    helpers.make_jobs(engine, 50)
    fetcher = make_fetcher(capacity=2)
    fetcher.claim_size.rate.per_second = lambda: 100.0  # so that the fetcher prefetches 10 jobs
    fetcher.tick()
    [rated] = add(engine, "rate:a", 1)
    engine.execute("UPDATE pgqueue_job SET priority = 5 WHERE id = %(id)s", {"id": rated})
    fetcher.lanes.scan_again()
    end(fetcher, engine, take(fetcher, 8))
    fetcher.tick()
    assert len(fetcher.pool.submitted) == 4  # no further job is prefetched
    end(fetcher, engine, take(fetcher))
    fetcher.tick()
    assert fetcher.pool.submitted[0].job_id == rated


def test_ended_job_lets_a_process_with_siblings_claim_at_once(engine, make_fetcher):
    add(engine, "rate:a", 8)
    fetcher = make_fetcher(capacity=4)
    fetcher.claim_size.rate.per_second = lambda: 100.0
    fetcher.tick()
    fetcher.tick()
    end(fetcher, engine, take(fetcher))
    fetcher._follow_up.moment = 0.0
    assert fetcher._follow_up.take_moment(free_slots=0) == 0.0
    fetcher._follow_up.moment = 0.0
    assert fetcher._follow_up.take_moment(free_slots=4) is None


def test_keys_without_a_rate_are_prefetched(engine, make_fetcher):
    add(engine, "fair:a", 100)
    fetcher = make_fetcher(capacity=2)
    fetcher.claim_size.rate.per_second = lambda: 500.0
    fetcher.tick()
    assert len(fetcher.pool.submitted) == 52


def job_of(key, run_after, job_id):
    return SimpleNamespace(limit_key=key, run_after=run_after, job_id=job_id)


def test_cursor_of_a_key_is_its_last_claimed_job():
    times = [0.0]
    run_after, cursors = timezone.now(), KeyCursors(lambda: times[0])
    cursors.keep(LANE, [job_of("rate:a", run_after, number) for number in (1, 2)])
    assert cursors.beginning(LANE, "rate:a") == Cursor(run_after, 2)
    assert cursors.beginning(LANE, "rate:b") == Cursor()
    assert cursors.beginning(Lane("other", 0, is_limited=True), "rate:a") == Cursor()
    times[0] = 60.0
    assert cursors.beginning(LANE, "rate:a") == Cursor(run_after - MARGIN, 0)  # for jobs that commit late


def test_cursor_is_dropped_if_a_scan_finds_a_job_behind_it():
    run_after, cursors = timezone.now(), KeyCursors(lambda: 0.0)
    cursors.keep(LANE, [job_of("rate:a", run_after, 2)])
    cursors.drop_if_behind(LANE, "rate:a", run_after)
    assert cursors.beginning(LANE, "rate:a") == Cursor(run_after, 2)
    cursors.drop_if_behind(LANE, "rate:a", run_after - MARGIN)
    assert cursors.beginning(LANE, "rate:a") == Cursor()


def test_claim_locks_one_job_of_a_rated_key_more_than_slots_are_free(engine, second, committing):
    add(engine, "rate:a", 20)
    with engine.transaction():
        assert len(claim(engine, LIMITS["rate"], "rate:a", count=50, free_slots=3).claimed) == 3
        locked = "SELECT count(*) FROM (SELECT FROM pgqueue_job FOR NO KEY UPDATE SKIP LOCKED) AS free"
        assert helpers.scalar(second, locked) == 16


@pytest.mark.parametrize(("name", "loops"), [("rate", 0), ("one", 1)])
def test_claim_counts_executions_only_of_keys_with_a_concurrency(engine, monkeypatch, name, loops):
    """Dead entries of the index would be read too: 2,000 pages at 1,000 jobs a second under a held snapshot."""
    add(engine, f"{name}:a", 2)
    plans = []

    def explain(connection, statement, params):
        if statement != sql.limits.CLAIM_KEYS:
            return statements.execute(connection, statement, params)
        plans.extend(statements.execute(connection, f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", params))
        return []

    monkeypatch.setattr(limits, "execute", explain)
    claim(engine, LIMITS[name], f"{name}:a")
    [[[plan]]] = plans
    scans = [node for node in nodes(plan["Plan"]) if "Scan" in node["Node Type"]]
    [count] = [node for node in scans if node.get("Index Name") == "pgqueue_job_running_key"]
    assert count["Actual Loops"] == loops


def test_cursors_of_the_keys_that_were_claimed_last_are_kept(monkeypatch):
    monkeypatch.setattr(key_claims, "CURSORS", 3)
    run_after, cursors = timezone.now(), KeyCursors(lambda: 0.0)
    for number in (0, 1, 2, 1, 3):
        cursors.keep(LANE, [job_of(f"rate:{number}", run_after, 1)])
    kept = [number for number in range(4) if cursors.beginning(LANE, f"rate:{number}") != Cursor()]
    assert kept == [1, 2, 3]


def test_freed_keys_without_further_jobs_delay_no_other_key(engine, make_fetcher):
    add(engine, "one:a")
    fetcher = make_fetcher(capacity=1)
    fetcher.tick()
    [other] = add(engine, "one:b")
    fetcher.lanes.scan_again()
    end(fetcher, engine, take(fetcher))
    fetcher.tick()
    assert [job.job_id for job in fetcher.pool.submitted] == [other]
