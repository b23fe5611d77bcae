"""Test what ends the fetcher's sleep.

No wake-up is lost, notifications are received, and a lost connection is reported.
"""

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
"""A timeout in seconds that no successful test reaches."""


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


def test_wake_before_or_during_a_wait_ends_one_wait(waker):
    waker.wake()
    waker.wake()
    assert seconds_to(lambda: waker.wait_for_notification(LONG)) < LONG / 2
    assert seconds_to(lambda: waker.wait_for_notification(0.05)) >= 0.05
    waiting = helpers.Background(lambda: waker.wait_for_notification(LONG))
    waker.wake()
    assert waiting.result() is False


def test_wake_from_many_threads_is_never_lost(waker):
    """Several threads add an entry and call `wake()`, while one thread waits and then takes all entries.

    If a wake-up were lost, the waiting thread would sleep although there is an entry. Each wait must end early,
    until all entries are taken.
    """
    queued, taken, per_thread, thread_count = deque(), 0, 2_000, 4

    def add_and_wake():
        for _ in range(per_thread):
            queued.append(None)
            waker.wake()

    threads = [threading.Thread(target=add_and_wake) for _ in range(thread_count)]
    for thread in threads:
        thread.start()
    while taken < per_thread * thread_count:
        assert seconds_to(lambda: waker.wait_for_notification(LONG)) < LONG / 2
        while queued:
            queued.popleft()
            taken += 1
    for thread in threads:
        thread.join()


def test_wait_for_notification_sent_once_returns_true_once(waker, listening, engine):
    waker.listen(listening, lambda: None)
    waker.wait_for_notification(0.0)
    engine.execute(f"NOTIFY {CHANNEL}")
    assert waker.wait_for_notification(LONG)
    assert not waker.wait_for_notification(0.05)


def test_listen_new_connection_counts_as_one_notification(waker, listening):
    """Notifications that were sent before did not reach this process, so a new connection counts as a notification.

    A notification that was not sent also relies on this, because the scans after another notification replace it.
    """
    waker.listen(listening, lambda: None)
    assert waker.wait_for_notification(LONG)
    assert not waker.wait_for_notification(0.05)


def test_listen_during_a_wait_ends_the_wait(waker, listening):
    """The waiting thread does not read from the new connection yet, so `listen()` must wake it."""
    waiting = helpers.Background(lambda: waker.wait_for_notification(LONG))
    waker.listen(listening, lambda: None)
    assert waiting.result(LONG / 2)


def test_waker_lost_connection_is_reported_and_wake_works(waker, listening, engine):
    lost = []
    waker.listen(listening, lambda: lost.append(waker.error))
    waker.wait_for_notification(0.0)
    engine.execute("SELECT pg_terminate_backend(%s)", (listening.info.backend_pid,))
    helpers.wait_until(lambda: not waker.wait_for_notification(0.05) and waker.error)
    assert lost == [waker.error]
    assert is_lost(listening)
    waker.wake()
    assert seconds_to(lambda: waker.wait_for_notification(LONG)) < LONG / 2


def test_listen_new_connection_assumes_all_payloads(waker, listening, engine):
    waker.listen(listening, lambda: None)
    waker.wait_for_notification(0.0)
    assert waker.payloads == PAYLOADS
    waker.payloads = set()
    engine.execute(f"NOTIFY {CHANNEL}")
    engine.execute(f"NOTIFY {CHANNEL}, '{CANCEL_REQUESTED}'")
    helpers.wait_until(lambda: waker.wait_for_notification(LONG) and CANCEL_REQUESTED in waker.payloads)
    assert waker.payloads == {"", CANCEL_REQUESTED}


def test_stop_listening_connection_is_no_longer_read(waker, listening, engine):
    waker.listen(listening, lambda: None)
    waker.wait_for_notification(0.0)
    waker.stop_listening()
    engine.execute(f"NOTIFY {CHANNEL}")
    assert not waker.wait_for_notification(0.05)
    assert list(listening.notifies(timeout=LONG, stop_after=1))


def test_wake_after_close_does_nothing():
    waker = NotificationWaker()
    waker.close()
    waker.wake()


def test_wait_for_notification_huge_timeout_is_accepted(waker):
    waker.wake()
    assert waker.wait_for_notification(10.0**9) is False


def test_listener_lost_connection_raises_before_reconnect(waker, listening, monkeypatch):
    """A connection attempt to an unreachable server lasts as long as the system allows, so the error comes first."""
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


def test_cancel_running_job_notifies_workers(listening, engine):
    running = helpers.make_job(engine)
    helpers.claim_one(engine)
    waiting = helpers.make_job(engine)
    assert Job.objects.get(pk=waiting).cancel()
    assert Job.objects.filter(pk=running).cancel() == 1
    assert [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=1)] == [CANCEL_REQUESTED]


def test_pause_without_autocommit_notifies_at_commit(committing, listening):
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
