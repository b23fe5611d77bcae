"""What ends the fetcher's sleep: rings are never lost, notifications are heard, a lost connection is told of."""

from __future__ import annotations

import threading
import time
from collections import deque

import psycopg
import pytest
from django.db import transaction

from django_pgqueue import control, db
from django_pgqueue.models import Job
from django_pgqueue.worker.claiming.listener import Listener
from django_pgqueue.worker.claiming.waker import Waker
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers

LONG = 30.0
"""Seconds that no test would wait in vain."""


@pytest.fixture
def waker():
    waker = Waker()
    yield waker
    waker.take_back()
    waker.close()


@pytest.fixture
def listening(committing):
    with db.connect("default", "listener") as connection:
        connection.execute(f"LISTEN {db.CHANNEL}")
        yield connection


def seconds_to(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_a_ring_ends_the_present_wait_and_the_next_but_only_one(waker):
    waker.ring()
    waker.ring()
    assert seconds_to(lambda: waker.wait(LONG)) < LONG / 2
    assert seconds_to(lambda: waker.wait(0.05)) >= 0.05
    waiting = helpers.Background(lambda: waker.wait(LONG))
    waker.ring()
    assert waiting.result() is False


def test_of_many_rings_at_once_none_is_lost(waker):
    """Whoever waits looks after each wait: then it has seen all that was there before a ring."""
    there, seen, each, ringers = deque(), 0, 2_000, 4

    def ring():
        for _ in range(each):
            there.append(None)
            waker.ring()

    threads = [threading.Thread(target=ring) for _ in range(ringers)]
    for thread in threads:
        thread.start()
    while seen < each * ringers:
        assert seconds_to(lambda: waker.wait(LONG)) < LONG / 2
        while there:
            there.popleft()
            seen += 1
    for thread in threads:
        thread.join()


def test_a_notification_is_heard_and_does_not_ring_twice(waker, listening, engine):
    waker.listen(listening)
    waker.wait(0.0)
    engine.execute(f"NOTIFY {db.CHANNEL}")
    assert waker.wait(LONG)
    assert not waker.wait(0.05)


def test_to_begin_to_listen_counts_as_one(waker, listening):
    """What was told before has told nobody; and a notification that was left out relies on the looks after another."""
    waker.listen(listening)
    assert waker.wait(LONG)
    assert not waker.wait(0.05)


def test_to_begin_to_listen_ends_the_present_wait(waker, listening):
    """The one that waits does not look at the new connection yet."""
    waiting = helpers.Background(lambda: waker.wait(LONG))
    waker.listen(listening)
    assert waiting.result(LONG / 2)


def test_a_lost_connection_is_told_of_and_rings_go_on(waker, listening, engine):
    lost = []
    waker.on_lost = lambda: lost.append(waker.error)
    waker.listen(listening)
    waker.wait(0.0)
    engine.execute("SELECT pg_terminate_backend(%s)", (listening.info.backend_pid,))
    helpers.wait_until(lambda: not waker.wait(0.05) and waker.error)
    assert lost == [waker.error]
    assert db.is_lost(listening)
    waker.ring()
    assert seconds_to(lambda: waker.wait(LONG)) < LONG / 2


def test_words_are_heard_and_all_of_them_assumed_where_some_may_have_been_missed(waker, listening, engine):
    waker.listen(listening)
    waker.wait(0.0)
    assert waker.words == db.WORDS
    waker.words = set()
    engine.execute(f"NOTIFY {db.CHANNEL}")
    engine.execute(f"NOTIFY {db.CHANNEL}, '{db.CANCEL_ASKED}'")
    helpers.wait_until(lambda: waker.wait(LONG) and db.CANCEL_ASKED in waker.words)
    assert waker.words == {"", db.CANCEL_ASKED}


def test_what_was_taken_back_is_not_used(waker, listening, engine):
    waker.listen(listening)
    waker.wait(0.0)
    waker.take_back()
    engine.execute(f"NOTIFY {db.CHANNEL}")
    assert not waker.wait(0.05)
    assert list(listening.notifies(timeout=LONG, stop_after=1))


def test_a_ring_after_the_end_does_nothing():
    waker = Waker()
    waker.close()
    waker.ring()


def test_no_wait_is_too_long_for_the_system(waker):
    waker.ring()
    assert waker.wait(10.0**9) is False


def test_a_listener_tells_of_a_loss_before_it_tries_to_connect(waker, listening, monkeypatch):
    """Into a black hole that takes as long as the system likes."""
    listener = Listener(Link("default", "listener"), waker, lambda hears: None)
    with listener.link.use():
        pass
    waker.error = psycopg.OperationalError("lost")
    with monkeypatch.context() as unreachable:
        unreachable.delattr(db, "connect")
        with pytest.raises(psycopg.OperationalError, match="lost"):
            listener.tick()
    assert waker.error is None
    listener.tick()
    assert waker._connection is listener.link._connection is not None
    listener.at_end()
    assert waker._connection is None


def test_a_running_job_that_is_asked_to_stop_is_told_of_in_a_word_and_one_that_waits_is_not(listening, engine):
    running = helpers.make_job(engine)
    helpers.claim_one(engine)
    waiting = helpers.make_job(engine)
    assert Job.objects.get(pk=waiting).cancel()
    assert Job.objects.filter(pk=running).cancel() == 1
    assert [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=1)] == [db.CANCEL_ASKED]


def test_without_autocommit_the_word_goes_along_with_the_transaction(committing, listening):
    transaction.set_autocommit(False)
    try:
        control.pause("mail")
        assert not list(listening.notifies(timeout=0.05))
        transaction.commit()
        assert [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=1)] == [db.LOOK_AGAIN]
        control.resume("mail")
        transaction.rollback()
        assert not list(listening.notifies(timeout=0.05))
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
