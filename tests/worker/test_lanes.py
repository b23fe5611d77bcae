"""Test in which order a fetcher claims from its lanes, and at which cursor it begins in each lane."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue import lifecycle
from django_pgqueue.db import statements
from django_pgqueue.lifecycle import Cursor, Lane
from django_pgqueue.states import Pausable
from django_pgqueue.worker.claiming import lane_cursors
from django_pgqueue.worker.claiming.lanes import Lanes
from tests import helpers
from tests.concurrency.test_cursor import buffers
from tests.worker.test_fetcher import drain, make_fetcher, take

pytestmark = pytest.mark.slow

__all__ = ["make_fetcher"]

PAUSED, BACKLOG = "tests.app.tasks.fail", 20_000


def claimed_in(lane, number=1, run_after=lifecycle.EPOCH):
    return lifecycle.Claimed(
        number, number, "t", lane.queue_name, lane.priority, run_after, "{}", 1, 1, 0, False, None, 0.0
    )


def lanes_with_due(due):
    lanes = Lanes([])
    lanes._due_at = dict.fromkeys(due, 0.0)
    lanes._scanned_at = float("inf")
    return lanes


# ------------------------------------------------------------------ order of the lanes


@pytest.mark.promise("queues-take-turns", "defect-lanes-share-rotation")
@given(st.integers(1, 6), st.sets(st.integers(-9, 0), max_size=9), st.integers(1, 3), st.integers(0))
def test_lanes_of_one_priority_come_first_equally_often(group, lower, orders_per_claim, seed):
    """Lower lanes, the number of orderings per claim and the order in which a scan returns lanes have no influence."""
    top = [Lane(f"q{number}", 1) for number in range(group)]
    lanes = lanes_with_due([*top, *(Lane("low", priority) for priority in lower)])
    led: Counter[Lane] = Counter()
    chance = Random(seed)  # if Hypothesis drew each choice, the test would take ten times as long
    for _ in range(10 * group):
        for _ in range(orders_per_claim):
            [first, *_] = lanes.ordered(None, from_start=False)
        lanes.move_cursors([claimed_in(first)])
        led[first] += 1
        if chance.random() < 0.5:
            lanes._due_at = dict(chance.sample([*lanes._due_at.items()], len(lanes._due_at)))
    assert set(led) == set(top)
    assert max(led.values()) - min(led.values()) <= 1


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-3, 3)), unique=True, min_size=1))
def test_lanes_are_ordered_by_priority_first(due):
    lanes = lanes_with_due([Lane(*name_and_priority) for name_and_priority in due])
    for _ in range(5):
        order = list(lanes.ordered(None, from_start=True))
        assert [lane.priority for lane in order] == sorted((priority for _, priority in due), reverse=True)
        lanes.move_cursors([claimed_in(order[-1])])


@pytest.mark.promise("queues-take-turns")
def test_queues_take_turns_above_many_due_lower_lanes(engine, make_fetcher):
    for priority in range(-50, 0):
        helpers.make_job(engine, queue_name="low", priority=priority)
    for queue_name in ("a", "b"):
        helpers.make_jobs(engine, 200, queue_name=queue_name)
    fetcher, served = make_fetcher(capacity=10), Counter()
    fetcher._rate.per_second = lambda: 0.0  # so that each claim returns 10 jobs
    for _ in range(20):
        fetcher.tick()
        for job in take(fetcher):
            served[job.queue_name] += 1
            lifecycle.succeed(engine, helpers.succeeded(job.key))
    assert served["a"] + served["b"] == sum(served.values()) == 200
    assert min(served["a"], served["b"]) >= 90


# ------------------------------------------------------------------ cursors


@pytest.fixture
def no_margin(monkeypatch):
    monkeypatch.setattr(lane_cursors, "MARGIN", timedelta(0))


def make_paused_backlog(engine, **changes):
    engine.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
    helpers.make_jobs(engine, BACKLOG, task_name=PAUSED, **changes)
    engine.execute("ANALYZE pgqueue_job")
    engine.execute("ALTER TABLE pgqueue_job RESET (autovacuum_enabled)")
    lifecycle.pause(engine, Pausable.TASK, PAUSED)


@pytest.mark.promise("paused-backlog", "defect-paused-backlog-walk")
@pytest.mark.usefixtures("no_margin")
@pytest.mark.parametrize("priority", [5, 0])
def test_claim_beside_paused_backlog_walks_no_backlog(engine, make_fetcher, priority):
    """This also holds for full claims, because the paused lane comes before the lane that fills them."""
    make_paused_backlog(engine, queue_name="paused", priority=priority)
    helpers.make_jobs(engine, 400)
    fetcher, lane = make_fetcher(capacity=10), Lane("paused", priority)
    fetcher._rate.per_second = lambda: 0.0
    for _ in range(10):
        fetcher.tick()
        assert len(take(fetcher)) == 10
    cursor = fetcher.lanes._cursors[lane]
    assert buffers(engine, Cursor(), paused=[PAUSED], lane=lane) > 100
    assert buffers(engine, cursor, paused=[PAUSED], lane=lane) <= 10


@pytest.mark.usefixtures("no_margin")
def test_idle_lane_of_paused_jobs_is_walked_once(engine, make_fetcher):
    make_paused_backlog(engine)
    fetcher = make_fetcher()
    drain(fetcher)
    assert buffers(engine, fetcher.lanes._cursors[helpers.DEFAULT_LANE], paused=[PAUSED]) <= 10


@pytest.mark.quick
@pytest.mark.promise("paused-backlog")
@pytest.mark.usefixtures("no_margin")
@pytest.mark.parametrize("ends_by_itself", [False, True])
def test_resumed_jobs_behind_the_cursor_are_found(engine, make_fetcher, ends_by_itself):
    job_ids = helpers.make_jobs(engine, 30, task_name=PAUSED)
    lifecycle.pause(engine, Pausable.TASK, PAUSED)
    fetcher = make_fetcher(capacity=10)
    assert drain(fetcher) == []
    assert fetcher.lanes._cursors[helpers.DEFAULT_LANE] > Cursor()
    if ends_by_itself:
        engine.execute("UPDATE pgqueue_pause SET paused_until = statement_timestamp()")
    else:
        lifecycle.resume(engine, Pausable.TASK, PAUSED)
        fetcher.lanes.scan_again()
    fetcher._full_scan_at = float("inf")  # no claim from the start: the cursors themselves must be dropped
    found = []
    helpers.wait_until(lambda: fetcher.tick() is not None and (found.extend(take(fetcher)) or len(found) == 30))
    assert [job.job_id for job in found] == job_ids


@pytest.mark.usefixtures("no_margin")
def test_locked_job_behind_the_cursor_is_found_later(engine, second, make_fetcher):
    job_id = helpers.make_job(engine)
    fetcher = make_fetcher()
    with helpers.transaction(second, "SELECT 1 FROM pgqueue_job FOR UPDATE"):
        assert drain(fetcher) == []
    helpers.wait_until(lambda: fetcher.tick() is not None and [job.job_id for job in take(fetcher)] == [job_id])


def test_pass_by_full_claim_moves_only_exhausted_lanes():
    lanes = lanes_with_due([Lane("a", 2), Lane("b", 1), Lane("c", 0)])
    lanes._seen_at = lifecycle.EPOCH + timedelta(days=1)
    cursors = lanes.ordered(None, from_start=True)
    lanes.pass_by(cursors, [claimed_in(Lane("b", 1))], all_exhausted=False)
    assert set(lanes._cursors) == {Lane("a", 2)}
    lanes.pass_by(cursors, [], all_exhausted=False)
    assert set(lanes._cursors) == {Lane("a", 2)}


def test_exhausted_lane_keeps_a_cursor_further_on():
    lanes = lanes_with_due([Lane("a", 2)])
    lanes._seen_at = lifecycle.EPOCH + timedelta(days=1)
    job = claimed_in(Lane("a", 2), 7, lifecycle.EPOCH + timedelta(days=2))
    lanes.move_cursors([job])
    lanes.pass_by(lanes.ordered(None, from_start=True), [job], all_exhausted=True)
    assert lanes._cursors == {Lane("a", 2): Cursor(job.run_after, 7)}


def test_claim_limited_by_size_exhausts_no_lane(engine, make_fetcher):
    """Such a claim returns fewer jobs than requested, although more jobs are due in the same lane."""
    large = '{"args":["' + "x" * 1000 + '"],"kwargs":{}}'
    helpers.make_jobs(engine, 20, arguments=[large] * 20)
    fetcher = make_fetcher(capacity=4)
    fetcher._rate.per_second = lambda: 1e6
    seen = []
    lanes = fetcher.lanes
    unpatched = lanes.pass_by
    lanes.pass_by = lambda *args, all_exhausted: (
        seen.append(all_exhausted),
        unpatched(*args, all_exhausted=all_exhausted),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lifecycle.claims, "AHEAD_BYTES", 1)
        claim = lifecycle.claim
        patch.setattr(lifecycle, "claim", lambda *args, **options: claim(*args, ahead_bytes=1, **options))
        fetcher.tick()
    assert len(fetcher.in_flight.waiting) == 4
    assert seen == [False]


def test_clock_set_back_drops_the_cursors(engine, make_fetcher):
    helpers.make_job(engine)
    fetcher = make_fetcher()
    statements.clock.shift_seconds = 3600.0
    assert len(drain(fetcher)) == 1
    statements.clock.shift_seconds = 0.0
    fetcher.lanes._scan(engine)
    assert fetcher.lanes._cursors == {}


@pytest.mark.promise("defect-paused-backlog-walk")
def test_cursor_of_a_queue_that_ran_empty_is_kept(engine, second, make_fetcher):
    """An open snapshot keeps the index entries of the queue's jobs. The next claim must not walk over these entries."""
    engine.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
    helpers.make_jobs(engine, 5000)
    with helpers.transaction(second, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"):
        helpers.scalar(second, "SELECT count(*) FROM pgqueue_job")
        fetcher = make_fetcher(capacity=500)
        assert len(drain(fetcher, engine)) == 5000
        fetcher.lanes._scan(engine)
        assert fetcher.lanes._due_at == {}
        [cursor] = fetcher.lanes.recent_lanes().values()
        assert buffers(engine, Cursor()) > 10 * buffers(engine, cursor)
    engine.execute("ALTER TABLE pgqueue_job RESET (autovacuum_enabled)")


def test_cursors_of_empty_lanes_are_bounded(engine, monkeypatch):
    monkeypatch.setattr(lane_cursors, "CURSORS", 3)
    lanes = Lanes([])
    helpers.make_job(engine)
    for number in range(10):
        lanes.move_cursors([claimed_in(helpers.DEFAULT_LANE), claimed_in(Lane(f"q{number}", 0))])
    lanes.move_cursors([claimed_in(Lane("q1", 0))])
    lanes._scan(engine)
    assert set(lanes._cursors) == {helpers.DEFAULT_LANE, *(Lane(name, 0) for name in ("q8", "q9", "q1"))}
    assert set(lanes._served) == set(lanes._cursors)
