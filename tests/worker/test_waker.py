"""What ends the fetcher's sleep: rings are never lost, notifications are heard, a lost connection is told of."""

from __future__ import annotations

import threading
import time
from collections import deque

import psycopg
import pytest
from django.db import transaction

from django_pgqueue import control
from django_pgqueue.db.engine_connection import connect, is_lost
from django_pgqueue.db.notifications import CANCEL_REQUESTED, CHANNEL, PAUSES_CHANGED, PAYLOADS
from django_pgqueue.models import Job
from django_pgqueue.worker.claiming import listener as listener_module
from django_pgqueue.worker.claiming.listener import Listener
from django_pgqueue.worker.claiming.notification_waker import NotificationWaker
from django_pgqueue.worker.runtime import connection as connection_module
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers

LONG = 30.0
"""Seconds that no test would wait in vain."""


@pytest.fixture
def waker():
    waker = NotificationWaker()
    yield waker
    waker.stop_listening()
    waker.close()


@pytest.fixture
def listening(committing):
    with connect("default", "listener") as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield connection


def seconds_to(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def test_a_ring_ends_the_present_wait_and_the_next_but_only_one(waker):
    waker.wake()
    waker.wake()
    assert seconds_to(lambda: waker.wait_for_notification(LONG)) < LONG / 2
    assert seconds_to(lambda: waker.wait_for_notification(0.05)) >= 0.05
    waiting = helpers.Background(lambda: waker.wait_for_notification(LONG))
    waker.wake()
    assert waiting.result() is False


def test_of_many_rings_at_once_none_is_lost(waker):
    """Whoever waits looks after each wait: then it has seen all that was there before a ring."""
    there, seen, each, ringers = deque(), 0, 2_000, 4

    def ring():
        for _ in range(each):
            there.append(None)
            waker.wake()

    threads = [threading.Thread(target=ring) for _ in range(ringers)]
    for thread in threads:
        thread.start()
    while seen < each * ringers:
        assert seconds_to(lambda: waker.wait_for_notification(LONG)) < LONG / 2
        while there:
            there.popleft()
            seen += 1
    for thread in threads:
        thread.join()


def test_a_notification_is_heard_and_does_not_ring_twice(waker, listening, engine):
    waker.listen(listening, lambda: None)
    waker.wait_for_notification(0.0)
    engine.execute(f"NOTIFY {CHANNEL}")
    assert waker.wait_for_notification(LONG)
    assert not waker.wait_for_notification(0.05)


def test_to_begin_to_listen_counts_as_one(waker, listening):
    """What was told before has told nobody; and a notification that was left out relies on the looks after another."""
    waker.listen(listening, lambda: None)
    assert waker.wait_for_notification(LONG)
    assert not waker.wait_for_notification(0.05)


def test_to_begin_to_listen_ends_the_present_wait(waker, listening):
    """The one that waits does not look at the new connection yet."""
    waiting = helpers.Background(lambda: waker.wait_for_notification(LONG))
    waker.listen(listening, lambda: None)
    assert waiting.result(LONG / 2)


def test_a_lost_connection_is_told_of_and_rings_go_on(waker, listening, engine):
    lost = []
    waker.listen(listening, lambda: lost.append(waker.error))
    waker.wait_for_notification(0.0)
    engine.execute("SELECT pg_terminate_backend(%s)", (listening.info.backend_pid,))
    helpers.wait_until(lambda: not waker.wait_for_notification(0.05) and waker.error)
    assert lost == [waker.error]
    assert is_lost(listening)
    waker.wake()
    assert seconds_to(lambda: waker.wait_for_notification(LONG)) < LONG / 2


def test_words_are_heard_and_all_of_them_assumed_where_some_may_have_been_missed(waker, listening, engine):
    waker.listen(listening, lambda: None)
    waker.wait_for_notification(0.0)
    assert waker.payloads == PAYLOADS
    waker.payloads = set()
    engine.execute(f"NOTIFY {CHANNEL}")
    engine.execute(f"NOTIFY {CHANNEL}, '{CANCEL_REQUESTED}'")
    helpers.wait_until(lambda: waker.wait_for_notification(LONG) and CANCEL_REQUESTED in waker.payloads)
    assert waker.payloads == {"", CANCEL_REQUESTED}


def test_what_was_taken_back_is_not_used(waker, listening, engine):
    waker.listen(listening, lambda: None)
    waker.wait_for_notification(0.0)
    waker.stop_listening()
    engine.execute(f"NOTIFY {CHANNEL}")
    assert not waker.wait_for_notification(0.05)
    assert list(listening.notifies(timeout=LONG, stop_after=1))


def test_a_ring_after_the_end_does_nothing():
    waker = NotificationWaker()
    waker.close()
    waker.wake()


def test_no_wait_is_too_long_for_the_system(waker):
    waker.wake()
    assert waker.wait_for_notification(10.0**9) is False


def test_a_listener_tells_of_a_loss_before_it_tries_to_connect(waker, listening, monkeypatch):
    """Into a black hole that takes as long as the system likes."""
    listener = Listener(Link("default", "listener"), waker, lambda listens: None)
    with listener.link.use():
        pass
    waker.error = psycopg.OperationalError("lost")
    with monkeypatch.context() as unreachable:
        for module in (listener_module, connection_module):
            unreachable.delattr(module, "connect")
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
    assert [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=1)] == [CANCEL_REQUESTED]


def test_without_autocommit_the_word_goes_along_with_the_transaction(committing, listening):
    transaction.set_autocommit(False)
    try:
        control.pause("mail")
        assert not list(listening.notifies(timeout=0.05))
        transaction.commit()
        assert [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=1)] == [PAUSES_CHANGED]
        control.resume("mail")
        transaction.rollback()
        assert not list(listening.notifies(timeout=0.05))
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
