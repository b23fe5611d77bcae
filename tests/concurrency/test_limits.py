"""Tests of claims of limited jobs: what a limit admits, which jobs are claimed, and races of two sessions.

The invariant of a concurrency limit is checked from the executions themselves: at no instant are more of them open
than the limit of their key admits.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from itertools import pairwise
from types import MappingProxyType

import psycopg
import pytest

from django_pgqueue import sql
from django_pgqueue.db.statements import clock
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import claims, completions, leases, operator, rescues
from django_pgqueue.lifecycle import limits as lifecycle_limits
from django_pgqueue.lifecycle.types import Lane, Released
from django_pgqueue.tasks import registry
from tests import helpers
from tests.concurrency import limits
from tests.concurrency.limits import LANE, LimitedWorker, add, claim, finish, found, ids
from tests.test_sql import nodes

TWO = Limit("two", key="{key}", concurrency=2)
ONE_BY_ONE = Limit("one", key="{key}", ordered=True)
BLOCKED = Limit("one", key="{key}", ordered=True, on_dead="block")
FAIR = Limit("fair", key="{key}")
PAIRS = Limit("fair", key="{key}", share=2)
RATE = Limit("rate", rate="20/s", burst=2)

OVERLAPS = """
SELECT first.limit_key, first.id, count(*)
FROM pgqueue_execution AS first
JOIN pgqueue_execution AS other ON other.limit_key = first.limit_key
    AND other.claimed_at <= first.claimed_at
    AND coalesce(other.finished_at, 'infinity') > first.claimed_at
GROUP BY first.limit_key, first.id
HAVING count(*) > %s
"""


# ------------------------------------------------------------------ concurrency


def test_claim_of_key_takes_only_free_slots(engine):
    first, second, third = add(engine, "two:a", 3)
    [other] = add(engine, "two:b")
    begun = claim(engine, TWO)
    assert sorted(ids(begun)) == [first, second, other]
    assert ids(claim(engine, TWO)) == []
    completions.succeed(engine, helpers.succeeded(begun.claimed[0].key))
    assert ids(claim(engine, TWO)) == [third]


@pytest.mark.parametrize("ending", ["released", "failed", "rescued", "removed"])
def test_slot_is_free_whatever_ended_the_execution(engine, ending):
    _, _, third = add(engine, "two:a", 3)
    [job, _] = claim(engine, TWO).claimed
    if ending == "released":
        completions.release(engine, [Released(job.key, 3600.0)])
    elif ending == "failed":
        completions.fail(engine, helpers.failed(job.key, 3600.0))
    elif ending == "rescued":
        helpers.end_lease(engine, job.execution_id)
        rescues.rescue(engine, lambda execution: 3600.0, error="lost")
    else:
        engine.execute("DELETE FROM pgqueue_job WHERE id = %s", [job.job_id])
        completions.remove_orphans(engine, [job.key])
    assert ids(claim(engine, TWO)) == [third]


def test_weight_takes_several_slots(engine):
    heavy = add(engine, "two:a", 2, weight=2)
    [light] = add(engine, "two:a")
    assert ids(claim(engine, TWO)) == heavy[:1]
    assert ids(claim(engine, TWO)) == []
    limit = Limit("two", key="{key}", concurrency=5)
    assert ids(claim(engine, limit)) == [heavy[1], light]


def test_open_execution_counts_with_its_weight(engine):
    [heavy] = add(engine, "two:a", weight=2)
    lights = add(engine, "two:a", 2)
    limit = Limit("two", key="{key}", concurrency=3)
    assert ids(claim(engine, limit, count=1)) == [heavy]
    assert ids(claim(engine, limit)) == lights[:1]


def test_job_heavier_than_lowered_limit_takes_all_of_it(engine):
    [heavy, _] = add(engine, "two:a", 2, weight=9)
    assert ids(claim(engine, TWO)) == [heavy]
    assert ids(claim(engine, TWO)) == []


def test_job_heavier_than_lowered_burst_takes_all_tokens(engine):
    rated = Limit("rated", key="{key}", rate="1/60s", burst=2)
    [heavy, _] = add(engine, "rated:a", 2, weight=9)
    assert ids(claim(engine, rated)) == [heavy]
    assert ids(claim(engine, rated)) == []


def test_job_of_ordered_key_takes_one_slot_and_all_its_tokens(engine):
    paced = Limit("paced", key="{key}", ordered=True, rate="1/60s", burst=5)
    jobs = add(engine, "paced:a", 2, weight=3, order=paced.order)
    begun = claim(engine, paced)
    assert ids(begun) == jobs[:1]
    finish(engine, begun)
    [result] = claim(engine, paced).results
    assert not result.is_claimed and 50 < result.due_seconds <= 60, (
        "two of the five tokens are left, and it needs three"
    )


def test_count_skips_only_executions_that_have_ended(engine):
    """A count that begins behind an ended execution finds the open ones, also after the ids restart."""
    add(engine, "two:a", 6)
    begun = claim(engine, TWO)
    [result] = begun.results
    assert result.open_after_id == min(job.execution_id for job in begun.claimed) - 1
    finish(engine, begun)
    [result] = claim(engine, TWO, count=1).results
    assert ids(claim(engine, TWO, open_after=result.open_after_id)) != []
    assert ids(claim(engine, TWO, open_after=result.open_after_id)) == []
    engine.execute("SELECT setval('pgqueue_execution_id_seq', 50)")
    assert ids(claim(engine, TWO, open_after=60)) == []


def test_second_session_waits_for_no_key_and_claims_nothing_of_it(engine, second, gates):
    add(engine, "two:a", 4)
    with gates("CLAIM_KEYS", engine, lambda: claim(engine, TWO, count=1)) as claiming:
        assert [(key.limit_key, key.is_locked) for key in found(second)] == [("two:a", False)]
        assert ids(claim(second, TWO)) == []
    assert len(ids(claiming.result())) == 1
    assert len(ids(claim(second, TWO))) == 1


def test_worker_keeps_the_locks_of_keys_while_it_counts(engine, second, gates, monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"two": TWO}))
    add(engine, "two:a")
    worker = LimitedWorker()
    with gates("CLAIM_KEYS", engine, lambda: worker.take(engine, 1)) as claiming:
        assert lifecycle_limits.lock_keys(second, ["two:a"]) == []
    assert len(claiming.result()) == 1


@pytest.mark.promise("limit-frozen-claim")
def test_frozen_process_does_not_keep_keys_locked(engine):
    """The server ends the session of a process that stays idle between the lock and the claim."""
    add(engine, "two:a")
    with engine.transaction():
        lifecycle_limits.lock_keys(engine, ["two:a"])
        assert helpers.scalar(engine, "SHOW idle_in_transaction_session_timeout") == "5s"
    assert helpers.scalar(engine, "SHOW idle_in_transaction_session_timeout") == "0"


def test_count_sees_claim_committed_before_the_lock(engine, second, gates):
    """The first session has locked the key, but has not counted. It must see what was committed before its lock."""
    add(engine, "two:a", 4)
    with engine.transaction():
        assert lifecycle_limits.lock_keys(engine, ["two:a"]) == ["two:a"]
        engine.execute("SELECT 1")  # a statement with an older snapshot changes nothing
    assert len(ids(claim(second, TWO))) == 2
    assert ids(claim(engine, TWO)) == []


@pytest.mark.promise("limit-slots")
def test_time_of_claim_is_not_that_of_its_statement(engine, second, gates):
    """A statement begins before it reads the table, so what it counts can have ended after its beginning."""
    add(engine, "two:a")
    with gates("CLAIM_KEYS", second, lambda: claim(second, TWO)) as claiming:
        later = helpers.scalar(engine, "SELECT clock_timestamp()")
    assert len(ids(claiming.result())) == 1
    assert helpers.scalar(engine, "SELECT claimed_at FROM pgqueue_execution") >= later


@pytest.mark.promise("limit-slots")
@pytest.mark.slow
def test_sessions_at_once_never_exceed_limit(engine, new_connection):
    """Four sessions claim and complete for a while. Of each key, at most two executions are open at each instant."""
    for key in range(5):
        add(engine, f"two:{key}", 120)
    connections = [new_connection() for _ in range(4)]
    done = threading.Barrier(5, timeout=60)

    def work(connection):
        try:
            idle_since = None
            while idle_since is None or time.monotonic() - idle_since < 0.5:
                begun = claim(connection, TWO, count=3)
                finish(connection, begun)
                idle_since = None if begun.claimed else idle_since or time.monotonic()
        finally:
            done.wait()

    threads = [threading.Thread(target=work, args=[connection]) for connection in connections]
    for thread in threads:
        thread.start()
    done.wait()
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_job WHERE state = 'succeeded'") == 600
    assert engine.execute(OVERLAPS, [2]).fetchall() == []


# ------------------------------------------------------------------ rates


def test_rate_admits_burst_and_then_a_token_at_a_time(engine):
    first, second, third = add(engine, "rate", 3)
    limit = Limit("rate", rate="2/m", burst=2)
    begun = claim(engine, limit)
    assert ids(begun) == [first, second]
    [result] = begun.results
    assert result.admits_more is False and 20.0 < result.due_seconds <= 30.0
    assert ids(claim(engine, limit)) == []
    clock.shift_seconds = 30.0
    assert ids(claim(engine, limit)) == [third]
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_limit_state") == 1


@pytest.mark.promise("limit-rate")
def test_rate_in_every_window_is_at_most_rate_and_burst(engine):
    add(engine, "rate", 40)
    helpers.wait_until(
        lambda: (claim(engine, RATE), helpers.scalar(engine, "SELECT count(*) FROM pgqueue_execution"))[1] == 40
    )
    starts = [at for (at,) in engine.execute("SELECT started_at FROM pgqueue_execution ORDER BY started_at").fetchall()]
    for seconds, most in ((0.05, 2), (0.2, 5), (1.0, 21)):  # (seconds × 20) + burst - 1
        for begin in starts:
            window = [at for at in starts if begin <= at < begin + timedelta(seconds=seconds)]
            assert len(window) <= most, (seconds, len(window))
    assert (starts[-1] - starts[0]).total_seconds() >= 38 / 20


def test_weight_spends_several_tokens(engine):
    limit = Limit("rate", rate="1000/s", burst=5)
    add(engine, "rate", 2, weight=3)
    begun = claim(engine, limit)
    assert len(begun.claimed) == 1
    [result] = begun.results
    assert 0.0 < result.due_seconds <= 0.001


def test_clock_that_goes_back_delays_by_an_empty_bucket_at_most(engine):
    limit = Limit("rate", rate="1/h", burst=2)
    engine.execute("INSERT INTO pgqueue_limit_state (limit_key, full_at) VALUES ('rate', now() + interval '9 h')")
    [job_id, _] = add(engine, "rate", 2)
    for _ in range(2):
        [result] = claim(engine, limit).results
        assert 3000.0 < result.due_seconds <= 3600.0
    clock.shift_seconds = 3601.0
    assert ids(claim(engine, limit)) == [job_id]


def test_rated_jobs_are_not_prefetched(engine):
    add(engine, "rate", 9)
    limit = Limit("rate", rate="9/s", burst=9)
    assert len(ids(claim(engine, limit, count=9, free_slots=2))) == 2
    add(engine, "fair:a", 9)
    begun = claim(engine, FAIR, "fair:a", count=9, free_slots=2)
    assert len(begun.claimed) == 9
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_execution WHERE started_at IS NULL") == 7


def test_held_key_admits_nothing_until_the_hold_ends(engine):
    engine.execute(
        "INSERT INTO pgqueue_limit_state (limit_key, full_at, held_until) "
        "VALUES ('two:a', now(), now() + interval '90 s')"
    )
    add(engine, "two:a")
    [result] = claim(engine, TWO).results
    assert not result.is_claimed and 80.0 < result.due_seconds <= 90.0


STATES = (
    "INSERT INTO pgqueue_limit_state (id, limit_key, full_at, held_until) "
    "SELECT n, 'rate:' || n, now() + full_hours * interval '1 h', now() + held_hours * interval '1 h' "
    "FROM unnest(%s::int[], %s::int[]) WITH ORDINALITY AS given (full_hours, held_hours, n)"
)


def test_prune_removes_only_states_of_full_keys(engine, second):
    """States with tokens to come back, of held keys, and those that another session has locked stay."""
    engine.execute(STATES, [[-2, -2, 1, -2, -2, 0, -2], [None, -2, None, 1, None, None, -2]])
    with helpers.transaction(second):
        second.execute("SELECT FROM pgqueue_limit_state WHERE id = 5 FOR UPDATE")
        assert lifecycle_limits.prune_limit_states(engine, 0, 4) == (2, 4)
        assert lifecycle_limits.prune_limit_states(engine, 4, 4) == (1, None)
    assert [row[0] for row in engine.execute("SELECT id FROM pgqueue_limit_state ORDER BY id")] == [3, 4, 5, 6]


def test_claim_whose_state_is_pruned_meanwhile_spends_its_token(engine, second, gates):
    """The claim has read the state of its key, which has passed. Then that row is gone, and the claim adds its own."""
    engine.execute(STATES, [[-2], [None]])
    [job_id] = add(engine, "rate:1")
    with gates("CLAIM_KEYS", engine, lambda: claim(engine, RATE)) as claiming:
        assert lifecycle_limits.prune_limit_states(second).removed == 1
    assert ids(claiming.result()) == [job_id]
    assert (
        helpers.scalar(engine, "SELECT count(*) FROM pgqueue_limit_state WHERE full_at > now() - interval '1 h'") == 1
    )


# ------------------------------------------------------------------ order


@pytest.mark.promise("limit-order")
def test_ordered_key_runs_in_order_of_ids_with_retries(engine):
    first, second, third = add(engine, "one:a", 3, order=1)
    assert ids(claim(engine, ONE_BY_ONE)) == [first]
    begun = claim(engine, ONE_BY_ONE)
    assert ids(begun) == []
    assert not begun.results[0].admits_more
    completions.fail(engine, helpers.failed(_key_of(engine, first), 3600.0))
    begun = claim(engine, ONE_BY_ONE)
    assert ids(begun) == [] and 3590 < begun.results[0].due_seconds <= 3600
    operator.run_now(engine, [first])
    for job_id in (first, second, third):
        begun = claim(engine, ONE_BY_ONE)
        assert ids(begun) == [job_id]
        finish(engine, begun)


def test_ordered_key_waits_for_running_job_without_execution(engine):
    """Until maintenance makes such a job ready again, no job behind it may start."""
    first, _ = add(engine, "one:a", 2, order=1)
    assert ids(claim(engine, ONE_BY_ONE)) == [first]
    engine.execute("DELETE FROM pgqueue_execution")
    engine.execute("UPDATE pgqueue_job SET execution_id = NULL WHERE id = %s", [first])
    assert ids(claim(engine, ONE_BY_ONE)) == []


@pytest.mark.promise("limit-order")
@pytest.mark.parametrize(("order", "limit", "goes_on"), [(1, ONE_BY_ONE, True), (2, BLOCKED, False)])
def test_dead_job_blocks_its_key_or_not(engine, order, limit, goes_on):
    first, second = add(engine, "one:a", 2, order=order)
    claim(engine, limit)
    completions.fail(engine, helpers.failed(_key_of(engine, first), None))
    assert ids(claim(engine, limit)) == ([second] if goes_on else [])
    if not goes_on:
        operator.retry(engine, [first])
        begun = claim(engine, limit)
        assert ids(begun) == [first]
        finish(engine, begun)
        assert ids(claim(engine, limit)) == [second]


def test_acknowledged_job_blocks_its_key_until_it_is_retried(engine):
    first, second, third = add(engine, "one:a", 3, order=2)
    claim(engine, BLOCKED)
    completions.fail(engine, helpers.failed(_key_of(engine, first), None))
    assert ids(claim(engine, BLOCKED)) == []
    unblocking: set[int] = set()
    assert operator.acknowledge(engine, [first, second], unblocking=unblocking) == {first: "dead"}
    assert unblocking == {first}
    begun = claim(engine, BLOCKED)
    assert ids(begun) == [second]
    finish(engine, begun)
    operator.retry(engine, [first])
    assert ids(claim(engine, BLOCKED)) == [first]
    completions.fail(engine, helpers.failed(_key_of(engine, first), None))
    assert ids(claim(engine, BLOCKED)) == [], "the job has died again, and nobody has acknowledged that"
    assert helpers.state_of(engine, third) == "ready"


def test_ordered_key_waits_for_a_job_in_another_queue(engine):
    [first] = add(engine, "one:a", order=1, queue_name="other")
    [second] = add(engine, "one:a", order=1)
    assert ids(claim(engine, ONE_BY_ONE)) == []
    engine.execute("UPDATE pgqueue_job SET state = 'cancelled', finished_at = now() WHERE id = %s", [first])
    assert ids(claim(engine, ONE_BY_ONE)) == [second]


def test_jobs_of_a_limit_that_became_ordered_run_one_by_one(engine):
    """Old jobs have no order. They run when no job of the new code waits, and never two at a time."""
    old = add(engine, "one:a", 2)
    [new] = add(engine, "one:a", order=1)
    for job_id in (new, *old):
        assert lifecycle_limits.next_of_key(engine, LANE, "one:a", is_ordered=True) == job_id
        begun = claim(engine, ONE_BY_ONE)
        assert ids(begun) == [job_id]
        assert ids(claim(engine, ONE_BY_ONE)) == []
        finish(engine, begun)


# ------------------------------------------------------------------ turns


@pytest.mark.parametrize(("limit", "counts"), [(FAIR, [4, 3, 3]), (PAIRS, [4, 3, 3])])
def test_keys_take_turns_within_a_claim(engine, limit, counts):
    for key, count in (("fair:a", 50), ("fair:b", 3), ("fair:c", 30)):
        add(engine, key, count)
    claimed = claim(engine, limit, count=10).claimed
    assert [sum(job.limit_key == key for job in claimed) for key in ("fair:a", "fair:b", "fair:c")] == counts
    share = limit.share
    assert [job.limit_key for job in claimed[: 3 * share]] == [
        key for key in ("fair:a", "fair:b", "fair:c") for _ in range(share)
    ]


# ------------------------------------------------------------------ the search for keys


def test_search_visits_keys_in_order_and_locks_due_ones(engine, second):
    add(engine, "two:b", 2)
    add(engine, "two:a", 2, delay=60.0)
    add(engine, "two:c", queue_name="other")
    with engine.transaction():
        late, due = found(engine)
        assert (late.limit_key, late.is_locked) == ("two:a", None) and 50 < late.due_seconds <= 60
        assert (due.limit_key, due.is_locked) == ("two:b", True) and due.due_seconds <= 0
        assert lifecycle_limits.lock_keys(second, ["two:a", "two:b"]) == ["two:a"]
    assert lifecycle_limits.lock_keys(second, ["two:b"]) == ["two:b"]


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
def test_scan_of_keys_reads_each_key_once_page_by_page(engine, limit):
    for queue_name, key in (("b", "two:a"), ("a", "two:a"), ("a", "+task"), ("a", "two:b"), ("c", "two:a")):
        add(engine, key, 2, queue_name=queue_name)
    engine.execute("UPDATE pgqueue_job SET priority = 7 WHERE queue_name = 'a' AND limit_key = 'two:b'")
    places, after = [], None
    while found := lifecycle_limits.scan_keys(engine, {}, after=after, limit=limit).found:
        places += [each.place for each in found]
        after = places[-1]
    assert places == [("a", 7, "two:b"), ("a", 0, "+task"), ("a", 0, "two:a"), ("b", 0, "two:a"), ("c", 0, "two:a")]
    assert all(one.is_before(other) for one, other in pairwise(places))


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_scan_of_a_page_makes_no_more_steps_than_its_keys_need(engine, limit):
    """Of 200 keys. A step is at most three index searches: for the next key, the next priority, and later queues."""
    for number in range(200):
        add(engine, f"two:{number:03}", queue_name=f"queue-{number // 10}")
    params = {"after_queue": "", "after_priority": 32768, "after_key": "", "limit": limit}
    rules = {"chunk_keys": [], "sizes": [], "waits_seconds": []}
    statement = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.limits.KEYS}"
    [[answer]] = psycopg.ClientCursor(engine).execute(statement, {**params, **rules, "time_shift": "0"}).fetchall()
    searches = [node for node in nodes(answer[0]["Plan"]) if node.get("Relation Name") == "pgqueue_job"]
    assert limit <= sum(node["Actual Loops"] for node in searches) <= 3 * limit + 3


def test_scan_returns_each_lane_of_limited_jobs(engine):
    add(engine, "two:a", 3)
    add(engine, "two:b", queue_name="mail")
    helpers.make_job(engine, queue_name="plain")
    engine.execute("UPDATE pgqueue_job SET priority = 7 WHERE id = 1")
    lanes = [Lane("default", 7, True), LANE, Lane("mail", 0, True)]
    assert lifecycle_limits.scan_limited_lanes(engine) == lanes
    assert list(claims.scan_lanes(engine).due_in) == [Lane("plain", 0)]


def test_plain_claims_do_not_see_limited_jobs(engine):
    add(engine, "two:a", 3)
    assert helpers.claim_all(engine) == []
    assert limits.ids(claim(engine, TWO)) != []


def _key_of(engine, job_id):
    return next(each.key for each in leases.open_executions(engine, 1) if each.job_id == job_id)
