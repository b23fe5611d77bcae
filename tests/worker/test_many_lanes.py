"""Test a fetcher whose lanes are too many for one scan: it reads them page by page, and keeps those with due jobs."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import chain

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_pgqueue import sql
from django_pgqueue.db import statements
from django_pgqueue.lifecycle import claims, pauses
from django_pgqueue.lifecycle.types import Cursor, Lane, ReadyPlace
from django_pgqueue.states import Pausable
from django_pgqueue.worker.claiming import fetcher as fetcher_module
from django_pgqueue.worker.claiming import lanes as lanes_module
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.claiming.many_lanes import lane_pages, lane_walk
from django_pgqueue.worker.claiming.many_lanes.lane_walk import DueLanes, LaneCircle, LaterLanes
from tests import helpers
from tests.test_sql import all_lanes, nodes
from tests.worker.test_fetcher import drain, make_fetcher, take
from tests.worker.test_queue_slots import slots_of

pytestmark = pytest.mark.slow

__all__ = ["make_fetcher"]

PAGE = 7
DAY_SECONDS = 24 * 3600.0
RARELY_SECONDS = 3600.0
"""The polling interval of a fetcher that must find a job without a poll."""


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch):
    monkeypatch.setattr(lane_pages, "PAGE_LANES", PAGE)
    monkeypatch.setattr(lane_pages, "NEWEST_JOBS", PAGE)
    monkeypatch.setattr(lane_pages, "LANES_PER_CLAIM", PAGE)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of the fetcher and its lanes. A reading takes 0.1 ms."""
    modules = (fetcher_module, lanes_module)
    return helpers.Clock(monkeypatch, *modules, reading_seconds=0.0001)


def name(number):
    return f"queue-{number:03}"


def make_lanes(engine, queues, priorities=(0,), jobs=1, **changes):
    """Make these jobs in each lane. Return their ids by lane."""
    return {
        Lane(name(number), priority): helpers.make_jobs(
            engine, jobs, queue_name=name(number), priority=priority, **changes
        )
        for number in range(queues)
        for priority in priorities
    }


def make_later_lanes(engine, queues):
    return make_lanes(engine, queues, delay_seconds=DAY_SECONDS)


def tick_until(fetcher, condition, seconds=10.0):
    """Tick as the service does, but never sleep longer than a moment. Return the jobs that were claimed."""
    claimed = []

    def is_done():
        fetcher.tick()
        claimed.extend(take(fetcher))
        return condition(claimed)

    helpers.wait_until(is_done, seconds)
    return claimed


def settle(fetcher):
    """Tick until a whole circle has found nothing, and let no notification be recent."""
    fetcher.lanes.pages._circle._renew_until = 0.0
    return tick_until(fetcher, lambda claimed: fetcher.lanes.pages._circle.is_complete)


def ids(claimed):
    return [job.job_id for job in claimed]


# ------------------------------------------------------------------ what is claimed


@pytest.mark.promise("many-lanes-turns")
def test_jobs_of_all_lanes_are_claimed_once(engine, make_fetcher):
    job_ids = make_lanes(engine, 30, priorities=(5, 0, -5), jobs=3)
    fetcher = make_fetcher(capacity=10)
    assert sorted(ids(drain(fetcher, engine))) == sorted(chain.from_iterable(job_ids.values()))


@pytest.mark.promise("many-lanes-priority")
def test_highest_priority_comes_first_after_one_circle(engine, make_fetcher):
    make_lanes(engine, 20, priorities=(5, 0), jobs=4)
    fetcher = make_fetcher(capacity=5)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    with pytest.MonkeyPatch.context() as without_slots:
        without_slots.setattr(fetcher.claimer, "claim", lambda *args: [])
        helpers.wait_until(lambda: fetcher.tick() is not None and fetcher.lanes.pages._circle.is_complete)
    order = [job.priority for job in tick_until(fetcher, lambda claimed: len(claimed) == 160)]
    assert order == [5] * 80 + [0] * 80


def test_priority_of_one_queue_is_kept_in_each_page(engine, make_fetcher):
    make_lanes(engine, 20, priorities=(9, 1), jobs=2)
    fetcher = make_fetcher(capacity=3)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    seen = {}
    for job in tick_until(fetcher, lambda claimed: len(claimed) == 80):
        seen.setdefault(job.queue_name, []).append(job.priority)
    assert set(map(tuple, seen.values())) == {(9, 9, 1, 1)}


@pytest.mark.promise("many-lanes-turns")
def test_lanes_that_are_always_busy_leave_turns_to_the_others(engine, make_fetcher):
    """The busy lanes fill the first page. The other lanes are on later pages."""
    make_lanes(engine, PAGE + 1, jobs=300)
    single = [helpers.make_job(engine, queue_name=f"z-{number:03}") for number in range(40)]
    fetcher = make_fetcher(capacity=5)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    claimed = tick_until(fetcher, lambda claimed: set(single) <= set(ids(claimed)))
    assert len(claimed) < (PAGE + 1) * 300
    counts = Counter(job.queue_name for job in claimed if job.queue_name.startswith("queue"))
    assert max(counts.values()) - min(counts.values()) <= 15  # lanes that were found later have had fewer turns


@pytest.mark.promise("many-lanes-turns")
def test_more_busy_lanes_than_are_kept_leave_turns_to_the_others(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(lane_walk, "MOST_LANES", 5)
    make_lanes(engine, 20, jobs=300)
    fetcher = make_fetcher(capacity=5)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    claimed = tick_until(fetcher, lambda claimed: len({job.queue_name for job in claimed}) == 20, 60.0)
    assert max(Counter(job.queue_name for job in claimed).values()) < 300


def test_claim_gets_no_more_lanes_than_jobs(engine, make_fetcher, monkeypatch):
    make_lanes(engine, 20)
    make_later_lanes(engine, 20)  # so that there are always many lanes
    seen = []
    claim = claims.claim
    monkeypatch.setattr(claims, "claim", lambda *args, **options: seen.append(args[1]) or claim(*args, **options))
    fetcher = make_fetcher(capacity=3)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    tick_until(fetcher, lambda claimed: len(claimed) == 20)
    assert max(map(len, seen)) == 3


@pytest.mark.promise("many-lanes-full-queue")
@pytest.mark.parametrize("full", ["group", "lanes"])
def test_pages_of_a_full_queue_hide_no_lane_of_another(engine, make_fetcher, monkeypatch, full):
    """Queues that share slots fill many pages, and more lanes than are kept. The last page has the job of `zz`."""
    monkeypatch.setattr(lane_walk, "MOST_LANES", 50 if full == "group" else 5)
    make_lanes(engine, 40, jobs=3)
    fetcher = make_fetcher(capacity=10, queue_slots=slots_of(zz=None, others=2))
    fetcher.claim_size.rate.per_second = lambda: 0.0
    fetcher.tick()
    [*running] = [fetcher.pool.submitted.popleft() for _ in range(2)]
    for job in running:
        assert fetcher.in_flight.start(job.execution_id, 0, wait=False)
    settle(fetcher)
    assert fetcher.tick() > 0
    wanted = helpers.make_job(engine, queue_name="zz")
    fetcher.polls.poll_soon()
    assert ids(tick_until(fetcher, len)) == [wanted]
    hidden = helpers.make_job(engine, queue_name="zz")
    monkeypatch.setattr(claims, "newest_lanes", lambda *args, **options: {})
    fetcher.polls.poll_soon()
    assert ids(tick_until(fetcher, len)) == [hidden]


def test_full_queues_let_the_fetcher_sleep_until_a_job_ends(engine, make_fetcher):
    make_lanes(engine, 20, jobs=2)
    fetcher = make_fetcher(capacity=10, queue_slots=slots_of(others=2))
    fetcher.may_sleep(30.0)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    fetcher.tick()
    first, second = fetcher.pool.submitted
    fetcher.pool.submitted.clear()
    for job in (first, second):
        assert fetcher.in_flight.start(job.execution_id, 0, wait=False)
    helpers.wait_until(lambda: fetcher.tick() > 5)
    fetcher.in_flight.end(first.execution_id)
    assert fetcher.tick() == 0.0
    assert len(fetcher.pool.submitted) == 1


# ------------------------------------------------------------------ when a job is found


@pytest.mark.promise("many-lanes-notification")
@pytest.mark.parametrize("number", [0, 25, 49])
def test_announced_job_of_any_lane_is_claimed_with_the_next_poll(engine, make_fetcher, number):
    make_later_lanes(engine, 50)
    fetcher = make_fetcher()
    assert settle(fetcher) == []
    wanted = helpers.make_job(engine, queue_name=name(number), priority=-3)
    fetcher.polls.poll_soon()
    fetcher.lanes.pages._newest_at = 0.0
    fetcher.tick()
    assert ids(take(fetcher)) == [wanted]


def test_newest_job_of_a_lane_hides_no_sooner_one(monkeypatch):
    pages, now = Lanes([]).pages, time.monotonic()
    due, later = Lane("due", 0), Lane("later", 0)
    pages.is_active = True
    pages._due.add(due, 1)
    pages._later.note(later, now + 5, now)
    monkeypatch.setattr(claims, "newest_lanes", lambda *args, **options: {due: 50.0, later: 50.0})
    assert not pages.read_newest(None, 2, is_idle=True)
    assert list(pages.pick(5, 3, from_start=False)[0]) == [due]
    assert pages._later.next_due_at == now + 5


def test_pages_are_read_although_notifications_never_end(engine, make_fetcher):
    make_later_lanes(engine, 50)
    fetcher = make_fetcher()
    assert settle(fetcher) == []
    hidden = helpers.make_job(engine, queue_name=name(40))
    helpers.make_jobs(engine, PAGE, queue_name=name(0), delay_seconds=DAY_SECONDS)

    def is_found(claimed):
        fetcher.polls.poll_soon()
        helpers.make_job(engine, queue_name=name(1))
        return hidden in ids(claimed)

    assert len(tick_until(fetcher, is_found)) > 1


@pytest.mark.promise("many-lanes-bound")
def test_job_that_is_not_among_the_newest_is_found_by_a_circle(engine, make_fetcher):
    make_later_lanes(engine, 50)
    wanted = helpers.make_job(engine, queue_name=name(33), delay_seconds=DAY_SECONDS)
    make_later_lanes(engine, 50)
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    assert settle(fetcher) == []
    engine.execute(f"UPDATE pgqueue_job SET run_after = now() WHERE id = {wanted}")
    fetcher.polls.poll_soon()
    assert ids(tick_until(fetcher, len)) == [wanted]


@pytest.mark.promise("many-lanes-bound")
def test_unannounced_job_is_found_with_the_polls(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(claims, "newest_lanes", lambda *args, **options: {})
    make_later_lanes(engine, 50)
    fetcher = make_fetcher()
    fetcher.may_sleep(1.0)
    assert settle(fetcher) == []
    wanted = helpers.make_job(engine, queue_name=name(33))
    assert ids(tick_until(fetcher, len)) == [wanted]


@pytest.mark.promise("many-lanes-due-in-time")
def test_later_jobs_let_the_fetcher_sleep_until_the_first_is_due(engine, make_fetcher, clock):
    make_later_lanes(engine, 40)
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    wanted = helpers.make_job(engine, queue_name=name(20), delay_seconds=60.0)
    due_at, sleeps = clock.now + 60.0, []
    helpers.wait_until(lambda: sleeps.append(fetcher.tick()) or sleeps[-1] > 10.0)
    assert 40.0 < sleeps[-1] <= due_at - clock.now + 0.1
    assert not fetcher.pool.submitted
    clock.pass_by(sleeps[-1])
    statements.clock.shift_seconds = 60.0
    assert ids(tick_until(fetcher, len)) == [wanted]
    assert clock.now < due_at + 1.0


@pytest.mark.promise("many-lanes-due-in-time")
def test_job_beyond_the_kept_times_begins_a_circle_in_time(engine, make_fetcher, monkeypatch, clock):
    monkeypatch.setattr(lane_walk, "SOON_SECONDS", 30.0)
    make_later_lanes(engine, 40)
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    wanted = helpers.make_job(engine, queue_name=name(20), delay_seconds=60.0)
    due_at = clock.now + 60.0
    assert settle(fetcher) == []
    assert fetcher.lanes.pages._later.next_due_at == float("inf")
    assert fetcher.lanes.next_due_at(float("inf")) <= due_at
    clock.pass_by(due_at - clock.now)
    statements.clock.shift_seconds = 60.0
    assert ids(tick_until(fetcher, len)) == [wanted]
    assert clock.now < due_at + 1.0


def test_idle_fetcher_sleeps_long_after_a_circle(engine, make_fetcher):
    make_later_lanes(engine, 40)
    fetcher = make_fetcher()
    fetcher.may_sleep(30.0)
    helpers.wait_until(lambda: fetcher.tick() > 20)
    reads = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(claims, "scan_lanes", lambda *args, **options: reads.append(1))
        assert fetcher.tick() > 20
    assert reads == []


def test_fetcher_does_not_sleep_during_a_circle(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(claims, "newest_lanes", lambda *args, **options: {})
    make_later_lanes(engine, 60)
    wanted = helpers.make_job(engine, queue_name=name(59))
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    sleeps = []
    assert ids(tick_until(fetcher, lambda claimed: sleeps.append(fetcher.tick()) or claimed)) == [wanted]
    assert len(sleeps) > 5
    assert max(sleeps) < RARELY_SECONDS / 2


def test_fetcher_sleeps_although_the_last_lanes_are_gone(engine, make_fetcher):
    """The lane at which the circle began is gone, and so is each lane that follows it in the index."""
    make_later_lanes(engine, 16)
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    tick_until(fetcher, lambda claimed: fetcher.lanes.pages._circle.position == ReadyPlace(name(13), 0))
    fetcher.lanes.pages._circle.begin(time.monotonic())
    engine.execute("DELETE FROM pgqueue_job WHERE queue_name >= %s", [name(13)])
    helpers.wait_until(lambda: fetcher.tick() > RARELY_SECONDS / 2)


def test_job_behind_the_cursor_is_found(engine, make_fetcher):
    job_ids = make_lanes(engine, 30, jobs=2)
    fetcher = make_fetcher()
    assert len(drain(fetcher, engine)) == 60
    make_later_lanes(engine, 30)
    assert settle(fetcher) == []
    lane, [wanted, _] = next(reversed(job_ids.items()))
    assert fetcher.lanes._cursors[lane] > Cursor()
    engine.execute(
        f"UPDATE pgqueue_job SET state = 'ready', finished_at = NULL, run_after = '2001-01-01' WHERE id = {wanted}"
    )
    fetcher.polls.poll_soon()
    assert ids(tick_until(fetcher, len)) == [wanted]


@pytest.mark.promise("many-lanes-bound")
def test_job_with_the_time_of_the_cursor_is_found(engine, second, make_fetcher):
    """Two jobs are due at the same time. The second one is claimed because the first one is locked."""
    make_later_lanes(engine, 30)
    locked, other = helpers.make_jobs(engine, 2, queue_name=name(20))
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    with helpers.transaction(second, f"SELECT 1 FROM pgqueue_job WHERE id = {locked} FOR UPDATE"):
        assert ids(tick_until(fetcher, len)) == [other]
        assert settle(fetcher) == []
    fetcher.polls.poll_soon()
    assert ids(tick_until(fetcher, len)) == [locked]


@pytest.mark.promise("many-lanes-bound")
@pytest.mark.parametrize("number", [0, 20, 30])
def test_locked_job_is_found_after_the_lock_ends(engine, second, make_fetcher, number):
    wanted = helpers.make_job(engine, queue_name=name(number))
    make_later_lanes(engine, 30)
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    with helpers.transaction(second, "SELECT 1 FROM pgqueue_job FOR UPDATE"):
        assert settle(fetcher) == []
        sleeps, until = [], time.monotonic() + 1.5
        helpers.wait_until(lambda: sleeps.append(fetcher.tick()) or time.monotonic() > until)
        assert max(sleeps) <= 1.1
    assert ids(tick_until(fetcher, len)) == [wanted]


def test_paused_task_of_many_lanes_lets_the_fetcher_rest(engine, make_fetcher, clock):
    make_lanes(engine, 30)
    pauses.pause(engine, Pausable.TASK, helpers.NOOP)
    fetcher = make_fetcher()
    assert settle(fetcher) == []
    helpers.wait_until(lambda: clock.pass_by(rest := fetcher.tick()) or rest > 0.5)
    pauses.resume(engine, Pausable.TASK, helpers.NOOP)
    fetcher.lanes.scan_again()
    assert len(tick_until(fetcher, lambda claimed: len(claimed) == 30)) == 30


def test_paused_queue_is_not_claimed_and_resumed_is(engine, make_fetcher):
    make_lanes(engine, 30, jobs=6)
    fetcher = make_fetcher(capacity=3)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    tick_until(fetcher, lambda claimed: len(claimed) > 20)
    paused = {name(3), name(25)}
    for queue_name in paused:
        pauses.pause(engine, Pausable.QUEUE, queue_name)
    fetcher.lanes.scan_again()
    claimed = tick_until(fetcher, lambda claimed: fetcher.empty_scans)
    assert len(claimed) > 50
    assert not paused & {job.queue_name for job in claimed}
    for queue_name in paused:
        pauses.resume(engine, Pausable.QUEUE, queue_name)
    fetcher.lanes.scan_again()
    assert {job.queue_name for job in tick_until(fetcher, lambda claimed: len(claimed) > 7)} == paused


def test_paused_queues_are_not_claimed_before_their_pages_are_read(engine, make_fetcher):
    make_lanes(engine, 30, jobs=6)
    fetcher = make_fetcher(capacity=3)
    fetcher.claim_size.rate.per_second = lambda: 0.0
    tick_until(fetcher, lambda claimed: fetcher.lanes.pages._circle.is_complete)
    for number in range(30):
        pauses.pause(engine, Pausable.QUEUE, name(number))
    fetcher.lanes.scan_again()
    assert tick_until(fetcher, lambda claimed: fetcher.empty_scans) == []


def test_resumed_queues_are_claimed_before_their_pages_are_read(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(claims, "newest_lanes", lambda *args, **options: {})
    make_later_lanes(engine, 50)
    wanted = {name(number): helpers.make_job(engine, queue_name=name(number)) for number in (3, 25, 47)}
    for queue_name in wanted:
        pauses.pause(engine, Pausable.QUEUE, queue_name)
    fetcher = make_fetcher()
    assert settle(fetcher) == []
    for queue_name in wanted:
        pauses.resume(engine, Pausable.QUEUE, queue_name)
    fetcher.lanes.scan_again()
    fetcher.tick()
    assert sorted(ids(take(fetcher))) == sorted(wanted.values())


def test_queue_is_claimed_when_its_pause_ends_by_itself(engine, make_fetcher, clock):
    make_later_lanes(engine, 30)
    wanted = helpers.make_job(engine, queue_name=name(20))
    pauses.pause(engine, Pausable.QUEUE, name(20), for_seconds=60.0)
    ends_at = clock.now + 60.0
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    assert settle(fetcher) == []
    assert fetcher.lanes.next_due_at(float("inf")) < ends_at + 0.1
    clock.pass_by(ends_at - clock.now)
    statements.clock.shift_seconds = 60.0
    assert ids(tick_until(fetcher, len)) == [wanted]
    assert clock.now < ends_at + 1.0


def test_extended_pause_is_kept(engine, make_fetcher, clock):
    make_later_lanes(engine, 30)
    helpers.make_job(engine, queue_name=name(20))
    pauses.pause(engine, Pausable.QUEUE, name(20), for_seconds=60.0)
    fetcher = make_fetcher()
    fetcher.may_sleep(RARELY_SECONDS)
    assert settle(fetcher) == []
    engine.execute("UPDATE pgqueue_pause SET paused_until = NULL")
    clock.pass_by(60.0)
    statements.clock.shift_seconds = 60.0
    for _ in range(30):
        clock.pass_by(0.05)
        fetcher.tick()
        assert take(fetcher) == []


# ------------------------------------------------------------------ which statements run


@pytest.mark.promise("few-lanes-one-scan")
def test_fetcher_with_few_lanes_reads_all_in_one_scan(engine, make_fetcher, monkeypatch):
    make_lanes(engine, PAGE - 1, jobs=4)
    statements = []
    for function in ("execute", "execute_with_retry"):
        run = getattr(claims, function)
        monkeypatch.setattr(
            claims,
            function,
            lambda connection, sql, params, run=run: statements.append(sql.split()[1]) or run(connection, sql, params),
        )
    fetcher = make_fetcher(capacity=3)
    fetcher.polls.poll_soon()
    fetcher.tick()
    assert statements == ["pgqueue:lanes", "pgqueue:claim"]
    drain(fetcher, engine)
    assert set(statements) == {"pgqueue:lanes", "pgqueue:claim", "pgqueue:claim_ahead"}
    assert not fetcher.lanes.pages.is_active


def test_fetcher_returns_to_one_scan_when_few_lanes_are_left(engine, make_fetcher):
    make_lanes(engine, 20)
    fetcher = make_fetcher()
    fetcher.tick()
    assert fetcher.lanes.pages.is_active
    tick_until(fetcher, lambda claimed: not fetcher.lanes.pages.is_active)


def test_fetcher_for_named_queues_reads_only_these(engine, make_fetcher, monkeypatch):
    job_ids = make_lanes(engine, 40, priorities=(5, 0))
    fetcher = make_fetcher(name(30), name(2))
    wanted = [job_ids[Lane(name(number), priority)] for number in (30, 2) for priority in (5, 0)]
    fetcher.tick()
    assert ids(take(fetcher)) == list(chain.from_iterable(wanted))
    seen = []
    scan = claims.scan_lanes
    monkeypatch.setattr(
        claims, "scan_lanes", lambda connection, **options: seen.append(options) or scan(connection, **options)
    )
    fetcher.restart_scans()
    fetcher.tick()
    assert seen[-1] == {"queue_names": [name(30), name(2)]}


def test_slow_scan_of_named_queues_begins_at_no_cursor(engine, make_fetcher, monkeypatch):
    """A scan from cursors reads a page of all lanes. It would come before each scan of the named queues in vain."""
    make_lanes(engine, 40)
    fetcher = make_fetcher(name(30))
    monkeypatch.setattr(lanes_module, "SLOW_SECONDS", 0.0)
    drain(fetcher)
    assert fetcher.lanes._recent
    assert fetcher.lanes._is_slow
    assert fetcher.lanes.scan_cursors() == {}


def test_until_empty_counts_only_whole_circles(engine, make_fetcher, monkeypatch):
    monkeypatch.setattr(claims, "newest_lanes", lambda *args, **options: {})
    make_later_lanes(engine, 60)
    wanted = helpers.make_job(engine, queue_name=name(55))
    fetcher = make_fetcher()
    counts = []
    fetcher.restart_scans()
    claimed = []
    while not claimed:
        fetcher.tick()
        counts.append(fetcher.empty_scans)
        claimed = take(fetcher)
    assert ids(claimed) == [wanted]
    assert len(counts) > 5
    assert set(counts) == {0}
    assert drain(fetcher) == []


@pytest.mark.parametrize("limit", [1, 10, 29])
def test_scan_of_a_page_reads_no_other_lanes(engine, limit):
    make_lanes(engine, 30)
    every = list(claims.scan_lanes(engine).due_in)
    first = list(claims.scan_lanes(engine, limit=limit).due_in)
    after = list(claims.scan_lanes(engine, after=first[-1], limit=limit).due_in)
    assert first + after == every[: 2 * limit]


@pytest.mark.parametrize("limit", [1, 10, 100])
def test_scan_of_a_page_makes_no_more_steps_than_its_lanes_need(engine, limit):
    """Of 200 lanes. A step is at most two index searches: for the next priority of the queue, and for later queues."""
    make_lanes(engine, 200)
    params = {**all_lanes(engine), "limit": limit}
    statement = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql.claims.LANES}"
    [[answer]] = psycopg.ClientCursor(engine).execute(statement, {**params, "time_shift": "0"}).fetchall()
    searches = [node for node in nodes(answer[0]["Plan"]) if node.get("Relation Name") == "pgqueue_job"]
    assert limit <= sum(node["Actual Loops"] for node in searches) <= 2 * limit + 2


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_claim_each_due_job_once(engine, make_fetcher, monkeypatch, seed):
    """Jobs are enqueued late and behind cursors, and queues are paused and resumed. At the end, all jobs have run."""
    chance = random.Random(seed)
    monkeypatch.setattr(lane_walk, "MOST_LANES", chance.choice([4, 1000]))
    monkeypatch.setattr(lane_walk, "MOST_LATER", chance.choice([4, 1000]))
    monkeypatch.setattr(lanes_module, "SLOW_SECONDS", chance.choice([0.0, 1.0]))
    slots = None if seed % 2 else slots_of(**{name(3): 1, "others": None})
    fetcher = make_fetcher(capacity=5, queue_slots=slots)
    fetcher.may_sleep(1.0)
    made, claimed = [], []
    for _ in range(120):
        for _ in range(chance.randint(0, 6)):
            delay_seconds = chance.choice([-3600.0, -1.0, 0.0, 0.0, 0.0, 0.3, 1.0])
            lane = {"queue_name": name(chance.randrange(40)), "priority": chance.choice([-1, 0, 1])}
            made += helpers.make_jobs(engine, 1, delay_seconds=delay_seconds, **lane)
        if chance.random() < 0.1:
            queue = name(chance.randrange(40))
            change = chance.choice([pauses.pause, pauses.resume])
            change(engine, Pausable.QUEUE, queue)
            fetcher.lanes.scan_again()
        if chance.random() < 0.3:
            fetcher.polls.poll_soon()
        fetcher.tick()
        claimed += take(fetcher)
    engine.execute("DELETE FROM pgqueue_pause")
    fetcher.lanes.scan_again()
    claimed += tick_until(fetcher, lambda more: len(more) + len(claimed) >= len(made), 15.0)
    assert sorted(ids(claimed)) == sorted(made)


# ------------------------------------------------------------------ the parts


@given(st.lists(st.sets(st.integers(0, 12)), min_size=1, max_size=30), st.integers(1, 4), st.integers(0, 20))
def test_complete_circle_has_read_every_lane(changes, page, begin_at):
    """Lanes come and go between the pages. Each lane that was there all the time since the beginning has been read."""
    circle = LaneCircle()
    stable, read = set(range(0, 13, 3)), set()
    step = 0
    for step in range(200):
        if step == begin_at:
            circle.begin(0.0)
            read.clear()
        lanes = sorted(stable | changes[step % len(changes)])
        after = -1 if circle.position is None else int(circle.position.queue_name)
        found = [number for number in lanes if number > after][:page]
        read.update(found)
        circle.after_page(ReadyPlace(f"{found[-1]:02}", 0) if len(found) == page else None)
        if step >= begin_at and circle.is_complete:
            break
    assert circle.is_complete
    assert stable <= read
    assert step - begin_at <= 2 * 13 + 3


@given(st.integers(1, 8), st.integers(1, 5), st.lists(st.integers(0, 9), max_size=20))
def test_due_lanes_of_one_priority_take_turns(count, most, added_at):
    lanes = DueLanes(lambda queue_name: None)
    for number in range(count):
        lanes.add(Lane(name(number), 0), 0)
    lanes.add(Lane("low", -1), 0)
    served = Counter()
    for turn in range(1, 10 * count + 1):
        if turn in added_at:
            lanes.add(Lane(name(turn % count), 0), turn)  # it is known
        for lane in lanes.pick(most, lambda queue_name: False):
            if lane.priority == 0:
                served[lane] += 1
                lanes.had_turn(lane, turn)
    assert len(served) == count
    assert max(served.values()) - min(served.values()) <= 1


def test_crowded_due_lanes_leave_their_place_after_a_turn(monkeypatch):
    monkeypatch.setattr(lane_walk, "MOST_LANES", 2)
    lanes = DueLanes(lambda queue_name: None)
    every = [Lane(name(number), 0) for number in range(5)]
    served = Counter()
    for turn in range(50):
        for lane in every:
            lanes.add(lane, turn)
        [picked] = lanes.pick(1, lambda queue_name: False)
        served[picked] += 1
        lanes.had_turn(picked, turn)
    assert not lanes.pick(5, lambda queue_name: True)
    assert min(served[lane] for lane in every[:2]) > 0


def test_later_lanes_forget_what_two_rounds_have_not_seen():
    later, due_at = LaterLanes(), 50.0
    gone, kept = Lane("gone", 0), Lane("kept", 0)
    later.note(gone, due_at, 0.0)
    later.note(kept, due_at + 1, 0.0)
    later.end_round()
    assert later.next_due_at == due_at
    later.note(kept, due_at + 2, 0.0)
    later.end_round()
    assert later.next_due_at == due_at + 2
    assert later.take_due(due_at + 10) == [kept]
    assert later.take_due(due_at + 10) == []
    assert later.next_due_at == float("inf")


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize(("before", "now"), [(5.0, 50.0), (50.0, 5.0), (5.0, 2 * lane_walk.SOON_SECONDS)])
def test_later_lane_is_due_when_it_was_read_last(rounds, before, now):
    later, began = LaterLanes(), 7.0
    lane = Lane("lane", 0)
    later.note(lane, began + before, began)
    for _ in range(rounds):
        later.end_round()
    later.note(lane, began + now, began)
    assert min(later.next_due_at, later.others_due_at) == began + now
