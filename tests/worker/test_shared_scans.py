"""How processes of one supervisor answer for each other's looks, and that nothing is missed by it."""

from __future__ import annotations

import time

import pytest

from django_pgqueue import lifecycle
from django_pgqueue.states import Pausable
from django_pgqueue.worker.claiming import fetcher as module
from django_pgqueue.worker.claiming import next_scan
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.claiming.next_scan import NextScan
from django_pgqueue.worker.claiming.shared_scans import UNDER_WAY_SECONDS, SharedScans
from tests import helpers
from tests.worker.test_fetcher import drain, make_fetcher, take

__all__ = ["make_fetcher"]

NEVER = float("inf")


def siblings(count):
    """The same memory, as each process of a supervisor has it."""
    first = SharedScans(count)
    others = [SharedScans(count) for _ in range(count - 1)]
    for place, other in enumerate(others, start=1):
        other._memory, other.place = first._memory, place
    return [first, *others]


@pytest.fixture
def make_pair(make_fetcher):
    def make(*queue_names):
        pair = [make_fetcher(*queue_names), make_fetcher(*queue_names)]
        for fetcher, looks in zip(pair, siblings(2), strict=True):
            fetcher.lanes.shared = looks
            fetcher.may_sleep(30.0)
            drain(fetcher)
        return pair

    return make


def notify(fetcher):
    """What a notification does to a sleeping fetcher."""
    fetcher._idle_steps, fetcher._announced = 0, True
    fetcher._follow_up.moment = time.monotonic()


@pytest.fixture
def count_looks(monkeypatch):
    looks = []
    look = lifecycle.scan_lanes
    monkeypatch.setattr(lifecycle, "scan_lanes", lambda connection: looks.append(1) or look(connection))
    return looks


# ------------------------------------------------------------------ the memory


def test_look_answers_for_moments_before_it_began():
    own, sibling = siblings(2)
    before = time.monotonic()
    sibling.begin()
    sibling.end(NEVER)
    after = time.monotonic()
    assert own.answer(before) == NEVER
    assert own.answer(after) is None
    assert sibling.answer(before) is None, "its own look"


def test_look_that_found_a_due_job_answers_for_nobody():
    own, sibling = siblings(2)
    before = time.monotonic()
    sibling.begin()
    sibling.end(None)
    assert own.answer(before) is None


def test_look_under_way_answers_for_a_short_time():
    """The sibling may die before its look ends."""
    own, sibling = siblings(2)
    before = time.monotonic()
    sibling.begin()
    assert own.answer(before) <= time.monotonic() + UNDER_WAY_SECONDS


def test_answer_tells_when_the_next_job_is_due():
    own, _, third = siblings(3)
    before = time.monotonic()
    third.begin()
    third.end(before + 7.0)
    assert own.answer(before) == before + 7.0


# ------------------------------------------------------------------ the fetcher


def test_fetcher_skips_a_look_that_a_sibling_made(make_pair, count_looks):
    first, second = make_pair()
    notify(second)
    notify(first)
    first.tick()
    looked = len(count_looks)
    assert second.tick() <= 0.01, "it is held back after the announced claim"
    second.tick()
    assert looked == len(count_looks)
    assert second._idle_steps == 1


def test_fetcher_looks_itself_if_the_sibling_looked_earlier(make_pair, count_looks):
    first, second = make_pair()
    first.tick()
    notify(second)
    looked = len(count_looks)
    second.tick()
    second.lanes._rest.seconds = 0.0
    second.tick()
    assert len(count_looks) == looked + 1


def test_fetcher_looks_itself_if_the_sibling_found_a_due_job(engine, make_pair):
    first, second = make_pair()
    notify(second)
    helpers.make_job(engine, queue_name="new")
    first.lanes._scan(engine)
    helpers.wait_until(lambda: second.tick() is not None and take(second))


@pytest.mark.promise("shared-poll-starts-in-time")
def test_fetcher_starts_a_scheduled_job_that_a_sibling_saw(engine, make_pair):
    """The sibling is busy when the job comes due."""
    first, second = make_pair()
    notify(second)
    helpers.make_job(engine, delay_seconds=0.5)
    first.lanes._scan(engine)
    due_at = time.monotonic() + 0.5
    second._announced, second._idle_steps = False, 4
    assert second.tick() <= due_at - time.monotonic() + 0.01
    assert second.lanes._due_at == {}, "it has not looked itself"
    helpers.wait_until(lambda: time.monotonic() > second.lanes._sibling_due_at)
    helpers.wait_until(lambda: second.tick() is not None and take(second))
    assert time.monotonic() < due_at + 1.0


def test_fetcher_looks_itself_after_word_of_a_pause(engine, make_pair):
    first, second = make_pair()
    lifecycle.pause(engine, Pausable.TASK, helpers.NOOP)
    notify(second)
    second.lanes.scan_again()
    first.lanes._scan(engine)
    second.lanes._rest.seconds = 0.0
    helpers.wait_until(lambda: second.tick() is not None and second._idle_steps > 0)
    assert second.lanes.paused_tasks == [helpers.NOOP]


def test_fetcher_looks_itself_after_some_seconds(engine, make_pair):
    """A pause that no word came of is seen in time, also where siblings always look first."""
    first, second = make_pair()
    lifecycle.pause(engine, Pausable.TASK, helpers.NOOP)
    second.lanes._scanned_at -= 5.0
    notify(second)
    first.lanes._scan(engine)
    second.lanes._rest.seconds = 0.0
    helpers.wait_until(lambda: second.tick() is not None and second._idle_steps > 0)
    assert second.lanes.paused_tasks == [helpers.NOOP]


def test_ring_without_news_ends_no_idle_pause(make_pair, count_looks):
    first, _ = make_pair()
    first._idle_steps = 2
    first._follow_up.after(60.0)
    looked = len(count_looks)
    assert first.tick() >= 59.0
    assert len(count_looks) == looked
    first.restart_scans()
    first.tick()
    assert len(count_looks) == looked + 1


def test_follow_up_looks_however_fast_notifications_come():
    lanes = Lanes([], siblings(2)[1])
    one, began = NextScan(lanes), time.monotonic()
    helpers.wait_until(lambda: one.hold_back(time.monotonic(), announced=True) is None, 5.0)
    assert time.monotonic() - began > next_scan.HELD_BACK_SECONDS


def test_follow_up_alone_keeps_its_pauses(make_fetcher):
    one = NextScan(Lanes([]))
    assert [one.after(seconds) for seconds in module.IDLE_PAUSES_SECONDS] == list(module.IDLE_PAUSES_SECONDS)
    assert one.take_moment() is None
