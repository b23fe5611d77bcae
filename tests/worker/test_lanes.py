"""Test in which order a fetcher claims from its lanes, and at which cursor it begins in each lane."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_pgqueue import sql
from django_pgqueue.db import statements
from django_pgqueue.declared.limits import Limit
from django_pgqueue.lifecycle import claims, completions, pauses
from django_pgqueue.lifecycle.types import EPOCH, Claimed, Cursor, Lane, Released
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry
from django_pgqueue.worker.claiming import lane_cursors
from django_pgqueue.worker.claiming import lanes as lanes_module
from django_pgqueue.worker.claiming.lanes import Lanes
from tests import helpers
from tests.concurrency.test_cursor import buffers
from tests.test_sql import all_lanes, nodes, walks
from tests.worker.test_fetcher import drain, make_fetcher, take

pytestmark = pytest.mark.slow

__all__ = ["make_fetcher"]

PAUSED, BACKLOG = "tests.app.tasks.fail", 20_000
START = datetime(2026, 1, 1, tzinfo=UTC)


def claimed_in(lane, number=1, run_after=EPOCH):
    return Claimed(number, number, "t", lane.queue_name, lane.priority, run_after, "{}", 1, 1, 0, False, None, 0.0)


def lanes_with_due(due):
    lanes = Lanes([])
    lanes._due_at = dict.fromkeys(due, 0.0)
    lanes._scanned_at = float("inf")
    return lanes


# ------------------------------------------------------------------ scans that begin at cursors


@given(st.integers(0))
@settings(max_examples=40)
def test_scan_from_cursors_finds_all_lanes_and_jobs_behind_them(engine, seed):
    """Any lanes can be known, also those without jobs."""
    engine.execute("TRUNCATE pgqueue_job")
    chance, jobs = Random(seed), {}
    lanes = [Lane(name, priority) for name in ("a", "b", "ba", "\U0010ffff") for priority in (-32768, -1, 0, 32767)]
    for lane in chance.sample(lanes, chance.randrange(len(lanes))):
        for _ in range(chance.randrange(1, 4)):
            run_after = START + timedelta(seconds=chance.randrange(3))
            [job_id] = helpers.make_jobs(
                engine, 1, queue_name=lane.queue_name, priority=lane.priority, run_after=run_after
            )
            jobs.setdefault(lane, []).append(Cursor(run_after, job_id))
    known = {
        lane: Cursor(START + timedelta(seconds=chance.randrange(3)), chance.randrange(40))
        for lane in chance.sample(lanes, chance.randrange(len(lanes)))
    }
    scan = claims.scan_lanes(engine, cursors=known)
    expected = {
        lane: min((job for job in jobs[lane] if job > known.get(lane, Cursor())), default=None) for lane in jobs
    }
    assert {lane: scan.seen_at + timedelta(seconds=seconds) for lane, seconds in scan.due_in.items()} == {
        lane: first.run_after for lane, first in expected.items() if first is not None
    }


def pages_of_scan(engine, params):
    """Return how many pages a scan reads, and in which nodes of its plan."""
    query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.claims.LANES}"
    [[answer]] = psycopg.ClientCursor(engine).execute(query, {**params, "time_shift": "0"}).fetchall()
    found = [(node["Shared Hit Blocks"] + node["Shared Read Blocks"], node) for node in nodes(answer[0]["Plan"])]
    shown = ("Node Type", "Index Name", "Actual Rows", "Actual Loops", "Index Cond")
    return found[0][0], [(pages, *(node.get(name) for name in shown)) for pages, node in found if pages]


@pytest.mark.usefixtures("counted_pages")
def test_scan_from_cursor_walks_over_no_claimed_jobs(engine):
    helpers.make_jobs(engine, BACKLOG)
    engine.execute("ANALYZE pgqueue_job")
    [(run_after, job_id)] = engine.execute("SELECT run_after, id FROM pgqueue_job ORDER BY id DESC LIMIT 1").fetchall()
    engine.execute("UPDATE pgqueue_job SET state = 'dead', finished_at = now()")
    helpers.make_jobs(engine, 1)
    place = {"queue_names": ["default"], "priorities": [0], "after_ats": [run_after], "after_ids": [job_id]}
    known = {**place, **walks((claims.FIRST, helpers.DEFAULT_LANE), (helpers.DEFAULT_LANE, claims.LAST))}
    few, read = pages_of_scan(engine, known)
    many, _ = pages_of_scan(engine, all_lanes(engine))
    assert few <= 30 < 100 < many, "\n".join(map(str, read))


def test_slow_scans_begin_at_cursors_until_a_claim_from_start(engine, make_fetcher, monkeypatch):
    """The released job lies behind the cursor. The scan before a claim from the start finds it, and no other scan."""
    monkeypatch.setattr(lanes_module, "SLOW_SECONDS", 0.0)
    first, *_ = helpers.make_jobs(engine, 3)
    fetcher = make_fetcher()
    [released, *_] = drain(fetcher)
    completions.release(engine, [Released(released.key)])
    lanes = fetcher.lanes
    assert lanes.scan_cursors()
    lanes._scanned_at = float("-inf")  # as if a scan were due
    assert lanes.ordered(engine, from_start=False) == {}
    assert not lanes._is_whole
    assert lanes.ordered(engine, from_start=True) == {helpers.DEFAULT_LANE: Cursor()}
    fetcher.empty_scans = 0
    assert [job.job_id for job in drain(fetcher)] == [first]


def test_claim_from_start_ignores_only_cursors_that_passed_a_job(engine):
    lanes, lane = Lanes([]), helpers.DEFAULT_LANE
    first, second = helpers.make_job(engine), helpers.make_job(engine)
    place = {job_id: Cursor(helpers.job_row(engine, job_id)["run_after"], job_id) for job_id in (first, second)}
    lanes._cursors.move(lane, place[second])
    assert lanes.ordered(engine, from_start=True) == {lane: Cursor()}
    lanes.scan_again()
    lanes._cursors.move(lane, Cursor(place[first].run_after - timedelta(microseconds=1), 0))
    assert lanes.ordered(engine, from_start=True) == {lane: lanes._cursors[lane]}


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
    fetcher.claim_size.rate.per_second = lambda: 0.0  # so that each claim returns 10 jobs
    for _ in range(20):
        fetcher.tick()
        for job in take(fetcher):
            served[job.queue_name] += 1
            completions.succeed(engine, helpers.succeeded(job.key))
    assert served["a"] + served["b"] == sum(served.values()) == 200
    assert min(served["a"], served["b"]) >= 90


@pytest.mark.quick
@pytest.mark.parametrize("has_limit", [False, True])
def test_notification_reaches_the_keys_only_if_a_task_has_a_limit(engine, monkeypatch, has_limit):
    monkeypatch.setattr(registry, "limits", lambda: {"cards": Limit("cards", concurrency=1)} if has_limit else {})
    monkeypatch.setattr(registry, "chunk_keys", dict)
    lanes, announced = Lanes([]), []
    monkeypatch.setattr(lanes.keyed, "expect_jobs", lambda: announced.append(True))
    lanes.ordered(engine, from_start=False)
    lanes.expect_jobs()
    assert announced == [True] * has_limit


# ------------------------------------------------------------------ cursors


@pytest.fixture
def no_margin(monkeypatch):
    monkeypatch.setattr(lane_cursors, "MARGIN", timedelta(0))


def make_paused_backlog(engine, **changes):
    helpers.make_jobs(engine, BACKLOG, task_name=PAUSED, **changes)
    engine.execute("ANALYZE pgqueue_job")
    pauses.pause(engine, Pausable.TASK, PAUSED)


@pytest.mark.promise("paused-backlog", "defect-paused-backlog-walk")
@pytest.mark.usefixtures("counted_pages", "no_margin")
@pytest.mark.parametrize("priority", [5, 0])
def test_claim_beside_paused_backlog_walks_no_backlog(engine, make_fetcher, priority):
    """This also holds for full claims, because the paused lane comes before the lane that fills them."""
    make_paused_backlog(engine, queue_name="paused", priority=priority)
    helpers.make_jobs(engine, 400)
    fetcher, lane = make_fetcher(capacity=10), Lane("paused", priority)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    for _ in range(10):
        fetcher.tick()
        assert len(take(fetcher)) == 10
    cursor = fetcher.lanes._cursors[lane]
    assert buffers(engine, Cursor(), paused=[PAUSED], lane=lane) > 100
    assert buffers(engine, cursor, paused=[PAUSED], lane=lane) <= 10


@pytest.mark.usefixtures("counted_pages", "no_margin")
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
    pauses.pause(engine, Pausable.TASK, PAUSED)
    fetcher = make_fetcher(capacity=10)
    assert drain(fetcher) == []
    assert fetcher.lanes._cursors[helpers.DEFAULT_LANE] > Cursor()
    if ends_by_itself:
        engine.execute("UPDATE pgqueue_pause SET paused_until = statement_timestamp()")
    else:
        pauses.resume(engine, Pausable.TASK, PAUSED)
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
    lanes._seen_at = EPOCH + timedelta(days=1)
    cursors = lanes.ordered(None, from_start=True)
    lanes.pass_by(cursors, [claimed_in(Lane("b", 1))], all_exhausted=False)
    assert set(lanes._cursors) == {Lane("a", 2)}
    lanes.pass_by(cursors, [], all_exhausted=False)
    assert set(lanes._cursors) == {Lane("a", 2)}


def test_exhausted_lane_keeps_a_cursor_further_on():
    lanes = lanes_with_due([Lane("a", 2)])
    lanes._seen_at = EPOCH + timedelta(days=1)
    job = claimed_in(Lane("a", 2), 7, EPOCH + timedelta(days=2))
    lanes.move_cursors([job])
    lanes.pass_by(lanes.ordered(None, from_start=True), [job], all_exhausted=True)
    assert lanes._cursors == {Lane("a", 2): Cursor(job.run_after, 7)}


def test_claim_limited_by_size_exhausts_no_lane(engine, make_fetcher):
    """Such a claim returns fewer jobs than requested, although more jobs are due in the same lane."""
    large = '{"args":["' + "x" * 1000 + '"],"kwargs":{}}'
    helpers.make_jobs(engine, 20, arguments=[large] * 20)
    fetcher = make_fetcher(capacity=4)
    fetcher.claim_size.rate.per_second = lambda: 1e6
    seen = []
    lanes = fetcher.lanes
    unpatched = lanes.pass_by
    lanes.pass_by = lambda *args, all_exhausted: (
        seen.append(all_exhausted),
        unpatched(*args, all_exhausted=all_exhausted),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "AHEAD_BYTES", 1)
        claim = claims.claim
        patch.setattr(claims, "claim", lambda *args, **options: claim(*args, ahead_bytes=1, **options))
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
@pytest.mark.usefixtures("counted_pages")
def test_cursor_of_a_queue_that_ran_empty_is_kept(engine, second, make_fetcher):
    """An open snapshot keeps the index entries of the queue's jobs. The next claim must not walk over these entries."""
    helpers.make_jobs(engine, 5000)
    with helpers.transaction(second, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"):
        helpers.scalar(second, "SELECT count(*) FROM pgqueue_job")
        fetcher = make_fetcher(capacity=500)
        assert len(drain(fetcher, engine)) == 5000
        fetcher.lanes._scan(engine)
        assert fetcher.lanes._due_at == {}
        [cursor] = fetcher.lanes.recent_lanes().values()
        assert buffers(engine, Cursor()) > 10 * buffers(engine, cursor)


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
