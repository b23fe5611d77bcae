"""What the watch over running jobs does in moments that no test can bring about from outside."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import psycopg
import pytest

from django_pgqueue import lifecycle
from django_pgqueue.worker import heartbeat
from django_pgqueue.worker.hand import Hand, Running, Waiting
from django_pgqueue.worker.heartbeat import Watch


@pytest.fixture
def watch():
    """One that holds something, hears notifications, and compares nothing for a while."""
    link = SimpleNamespace(use=lambda: contextlib.nullcontext())
    hand = Hand(1)
    hand.running[1] = Running(SimpleNamespace(), 0.0, 0)
    own = Watch(link, hand, SimpleNamespace(ids=set), SimpleNamespace(ask_to_cancel=set), None, 1)
    own.hears, own._compare_at = True, float("inf")
    return own


@pytest.mark.parametrize("fails", [False, True])
def test_a_look_that_failed_or_found_what_is_not_here_yet_is_done_again(watch, monkeypatch, fails):
    """The answer of a claim may be under way."""
    looks = []

    def look(connection, worker_ids, *, first_id):
        looks.append(worker_ids)
        if len(looks) == 1 and fails:
            raise psycopg.OperationalError
        return [(1, 99)] if len(looks) == 1 else []

    watch.pool.ask_to_cancel = lambda ids: set()
    monkeypatch.setattr(lifecycle, "cancel_requests", look)
    watch.look_for_requests()
    with contextlib.suppress(psycopg.OperationalError):
        watch.tick()
    watch.tick()
    watch.tick()
    assert len(looks) == 2


def test_what_waits_for_a_slot_is_given_back_at_once(watch, monkeypatch):
    claimed, given = SimpleNamespace(execution_id=2), []
    watch.hand.waiting[2] = Waiting(claimed, 0.0)
    watch.pool.ask_to_cancel = set
    monkeypatch.setattr(lifecycle, "cancel_requests", lambda *args, **options: [(1, 2)])
    monkeypatch.setattr(heartbeat, "give_back", lambda connection, held, events: given.extend(held))
    watch.look_for_requests()
    watch.tick()
    assert given == [claimed]
    assert not watch.hand.waiting


@pytest.mark.parametrize("fails", [False, True])
def test_a_word_that_comes_during_a_look_is_answered_by_another(watch, monkeypatch, fails):
    """It may be of a request that the look's statement came too early to see."""
    looks = []

    def look(connection, worker_ids, *, first_id):
        looks.append((worker_ids, first_id))
        if len(looks) == 1:
            watch.look_for_requests()
            if fails:
                raise psycopg.OperationalError
        return []

    monkeypatch.setattr(lifecycle, "cancel_requests", look)
    watch.look_for_requests()
    with contextlib.suppress(psycopg.OperationalError):
        watch.tick()
    watch.tick()
    watch.tick()
    assert looks == [([1], 1)] * 2


def test_a_job_that_is_just_being_started_is_told_at_the_next_look(watch, monkeypatch):
    """It has left the hand, and its slot does not run it yet: nobody was there to tell."""
    monkeypatch.setattr(lifecycle, "cancel_requests", lambda *args, **options: [(1, 1)])
    asked, told = [], [set(), {1}]

    def ask_to_cancel(ids):
        asked.append(ids)
        return told[len(asked) - 1]

    watch.pool.ask_to_cancel = ask_to_cancel
    watch.look_for_requests()
    for _ in range(4):
        watch.tick()
    assert asked == [{1}, {1}]
