"""Test how the processes of one supervisor share their scans, and that no due job is missed because of that."""

from __future__ import annotations

import time

import pytest

from django_pgqueue.db import statements
from django_pgqueue.lifecycle import claims, pauses
from django_pgqueue.states import Pausable
from django_pgqueue.worker.claiming import fetcher as module
from django_pgqueue.worker.claiming import lanes as lanes_module
from django_pgqueue.worker.claiming import next_scan
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.claiming.next_scan import UNDER_WAY_SECONDS, NextScan, SharedScans
from tests import helpers
from tests.worker.test_fetcher import drain, make_fetcher, take

__all__ = ["make_fetcher"]

NEVER = float("inf")


def siblings(count):
    """Return one `SharedScans` for each process of a supervisor. All of them share one memory."""
    first = SharedScans(count)
    others = [SharedScans(count) for _ in range(count - 1)]
    for place, other in enumerate(others, start=1):
        other._memory, other._rooms, other.place = first._memory, first._rooms, place
    return [first, *others]


@pytest.fixture
def make_pair(make_fetcher):
    def make(*queue_names):
        pair = [make_fetcher(*queue_names), make_fetcher(*queue_names)]
        for fetcher, shared in zip(pair, siblings(2), strict=True):
            fetcher.lanes.shared = shared
            fetcher.may_sleep(30.0)
            for walk in (fetcher.lanes, fetcher.lanes.keyed):
                walk._rest.after = lambda seconds: 0.0  # on a slow machine, the next scan would have to wait
            drain(fetcher)
        return pair

    return make


def notify(fetcher):
    """Change a fetcher as a notification changes a sleeping one."""
    fetcher._idle_steps, fetcher._announced = 0, True
    fetcher._follow_up.moment = time.monotonic()


@pytest.fixture
def scans_made(monkeypatch):
    scans = []
    scan = claims.scan_lanes
    monkeypatch.setattr(claims, "scan_lanes", lambda *args, **options: scans.append(1) or scan(*args, **options))
    return scans


# ------------------------------------------------------------------ the memory


def test_shared_scans_answer_covers_earlier_moments_only():
    own, sibling = siblings(2)
    before = time.monotonic()
    sibling.begin()
    sibling.end(NEVER)
    after = time.monotonic()
    assert own.answer(before) == NEVER
    assert own.answer(after) is None
    assert sibling.answer(before) is None, "a process must not use its own scan as an answer"


def test_shared_scans_due_job_found_gives_no_answer():
    own, sibling = siblings(2)
    before = time.monotonic()
    sibling.begin()
    sibling.end(None)
    assert own.answer(before) is None


def test_shared_scans_unfinished_scan_answers_for_short_time():
    """The answer must expire, because the sibling can die before its scan ends."""
    own, sibling = siblings(2)
    before = time.monotonic()
    sibling.begin()
    assert own.answer(before) <= time.monotonic() + UNDER_WAY_SECONDS


def test_shared_scans_answer_returns_next_due_time():
    own, _, third = siblings(3)
    before = time.monotonic()
    third.begin()
    third.end(before + 7.0)
    assert own.answer(before) == before + 7.0


def test_shared_scans_first_is_the_first_place_with_room():
    first, second, third = siblings(3)
    assert first.is_first()
    second.set_room(has_room=True)
    assert [each.is_first() for each in (first, second, third)] == [True, True, False]
    second.set_room(has_room=False)
    assert third.is_first()


# ------------------------------------------------------------------ the fetcher


def test_fetcher_notification_only_the_first_with_room_claims_at_once(engine, make_pair):
    """All processes are woken. A second claim would find nothing, or would take the job from the first process."""
    first, second = make_pair()
    for fetcher in (first, second):  # each has found jobs in this lane before
        helpers.make_job(engine)
        fetcher.restart_scans()
        drain(fetcher)
    helpers.make_job(engine)
    notify(second)
    second.tick()
    assert not second.in_flight.waiting
    first.lanes.shared.set_room(has_room=False)
    notify(second)
    second.tick()
    assert len(second.in_flight.waiting) == 1


def test_fetcher_sibling_has_scanned_skips_its_scan(make_pair, scans_made):
    first, second = make_pair()
    notify(second)
    notify(first)
    first.tick()
    scan_count = len(scans_made)
    assert second.tick() <= 0.01, "after a notification the second process waits for the scan of a sibling"
    second.tick()
    assert scan_count == len(scans_made)
    assert second._idle_steps == 1


def test_fetcher_sibling_scanned_too_early_scans_itself(make_pair, scans_made):
    first, second = make_pair()
    first.tick()
    notify(second)
    scan_count = len(scans_made)
    second.tick()
    second.tick()
    assert len(scans_made) == scan_count + 1


def test_fetcher_sibling_found_due_job_scans_itself(engine, make_pair):
    first, second = make_pair()
    notify(second)
    helpers.make_job(engine, queue_name="new")
    first.lanes._scan(engine)
    helpers.wait_until(lambda: second.tick() is not None and take(second))


@pytest.mark.promise("shared-poll-starts-in-time")
def test_fetcher_sibling_found_later_job_starts_it_in_time(engine, make_pair, monkeypatch):
    """The sibling can be busy when the job is due, so the process that skipped its scan must start the job."""
    first, second = make_pair()
    notify(second)
    clock = helpers.Clock(monkeypatch, module, lanes_module, next_scan)
    helpers.make_job(engine, delay_seconds=20.0)
    first.lanes._scan(engine)
    due_at = clock.now + 20.0
    second._announced, second._idle_steps = False, 4
    sleep_seconds = second.tick()
    assert 10.0 < sleep_seconds <= 20.0
    assert second.lanes._due_at == {}, "the fetcher must not have scanned itself"
    clock.pass_by(sleep_seconds)
    statements.clock.shift_seconds = 20.0
    while second.tick() is not None and not take(second):
        clock.pass_by(0.001)
        assert clock.now < due_at + 0.1


def test_fetcher_pause_notification_scans_itself(engine, make_pair):
    first, second = make_pair()
    pauses.pause(engine, Pausable.TASK, helpers.NOOP)
    notify(second)
    second.lanes.scan_again()
    first.lanes._scan(engine)
    helpers.wait_until(lambda: second.tick() is not None and second._idle_steps > 0)
    assert second.lanes.paused_tasks == [helpers.NOOP]


def test_fetcher_own_scan_is_old_scans_itself(engine, make_pair):
    """A fetcher must notice a pause without a notification in time, even if siblings always scan first."""
    first, second = make_pair()
    pauses.pause(engine, Pausable.TASK, helpers.NOOP)
    second.lanes._scanned_at -= 5.0
    notify(second)
    first.lanes._scan(engine)
    helpers.wait_until(lambda: second.tick() is not None and second._idle_steps > 0)
    assert second.lanes.paused_tasks == [helpers.NOOP]


def test_fetcher_wake_without_news_continues_idle_interval(make_pair, scans_made):
    first, _ = make_pair()
    first._idle_steps = 2
    first._follow_up.after(60.0)
    scan_count = len(scans_made)
    assert first.tick() >= 50.0
    assert len(scans_made) == scan_count
    first.restart_scans()
    first.tick()
    assert len(scans_made) == scan_count + 1


def test_next_scan_constant_notifications_scan_is_due():
    first, second = siblings(2)
    first.set_room(has_room=True)
    lanes = Lanes([], second)
    own_next_scan, began = NextScan(lanes), time.monotonic()
    helpers.wait_until(lambda: own_next_scan.hold_back(time.monotonic(), announced=True) is None)
    assert time.monotonic() - began > next_scan.HELD_BACK_SECONDS


def test_next_scan_follows_the_moment_of_the_last_one(monkeypatch):
    """All processes count from the notification. Otherwise their moments drift apart, and no scan answers for all."""
    first, second = siblings(2)
    first.set_room(has_room=True)
    clock = helpers.Clock(monkeypatch, next_scan)
    for shared in (first, second):
        own_next_scan = NextScan(Lanes([], shared))
        own_next_scan.moment = notified_at = clock.now
        own_next_scan.take_moment(0)
        clock.pass_by(0.004)
        own_next_scan.after(0.005)
        assert own_next_scan.moment == notified_at + 0.005


def test_next_scan_of_the_first_process_has_no_extra_wait(monkeypatch):
    """It scans for the others. After a stall longer than the interval, it waits for a whole interval."""
    first, second = siblings(2)
    first.set_room(has_room=True)
    clock = helpers.Clock(monkeypatch, next_scan)
    own_next_scan, sibling_next_scan = NextScan(Lanes([], first)), NextScan(Lanes([], second))
    assert own_next_scan.after(0.005) == pytest.approx(0.005)
    assert sibling_next_scan.after(0.005) >= 0.005 + next_scan.APART_SECONDS
    clock.pass_by(1.0)
    own_next_scan.take_moment(0)
    assert own_next_scan.after(0.015) == pytest.approx(0.015)


def test_next_scan_without_siblings_keeps_the_intervals(make_fetcher):
    own_next_scan = NextScan(Lanes([]))
    assert [own_next_scan.after(seconds) for seconds in module.IDLE_PAUSES_SECONDS] == list(module.IDLE_PAUSES_SECONDS)
    assert own_next_scan.take_moment(0) is None
