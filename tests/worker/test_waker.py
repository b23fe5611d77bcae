"""Test what ends the fetcher's sleep.

No wake-up is lost, notifications are received, and a lost connection is reported.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from contextlib import ExitStack

import psycopg
import pytest
from django.db import transaction

from django_pgqueue import control
from django_pgqueue.db.engine_connection import connect, is_lost
from django_pgqueue.db.notifications import CANCEL_REQUESTED, CHANNEL, PAUSES_CHANGED, PAYLOADS
from django_pgqueue.ground.waker import is_readable
from django_pgqueue.models import Job
from django_pgqueue.worker.claiming.waking import listener as listener_module
from django_pgqueue.worker.claiming.waking.fetcher_sleep import NotificationWaker
from django_pgqueue.worker.claiming.waking.listener import Listener
from django_pgqueue.worker.runtime import connection as connection_module
from django_pgqueue.worker.runtime.shared_connections import Preference, SharedConnections
from tests import helpers

LONG = 30.0
"""A timeout in seconds that no successful test reaches."""


@pytest.fixture
def waker():
    waker = NotificationWaker()
    yield waker
    waker.close()


@pytest.fixture
def connections(committing, waker):
    """The connections of a worker process, whose first one the waker observes. It does not listen yet."""
    connections = SharedConnections("default", ("fetcher", "completer"), waker)
    yield connections
    connections.close()


@pytest.fixture
def first(connections, waker):
    """What uses the first connection, which listens. The waker has no notification."""
    share = connections.share(Preference.ONLY_FIRST)
    with share.use() as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        waker.expect_notifications(connection)
        connection.on_wait = None  # a statement that a busy machine makes slow would count as a notification
    waker.wait_for_notifications(0.0)
    return share


@pytest.fixture
def listening(committing):
    with connect("default", "listener") as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        yield connection


def seconds_to(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began


def notify(engine, connection, payload=""):
    """Send a notification, and wait until it has reached the client's socket."""
    engine.execute(f"NOTIFY {CHANNEL}, '{payload}'")
    assert is_readable(connection.fileno(), LONG)


def test_wake_before_or_during_a_wait_ends_one_wait(waker):
    waker.wake()
    waker.wake()
    assert seconds_to(lambda: waker.wait_for_notifications(LONG)) < LONG / 2
    assert seconds_to(lambda: waker.wait_for_notifications(0.05)) >= 0.05
    waiting = helpers.Background(lambda: waker.wait_for_notifications(LONG))
    waker.wake()
    assert waiting.result() == set()


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
        assert seconds_to(lambda: waker.wait_for_notifications(LONG)) < LONG / 2
        while queued:
            queued.popleft()
            taken += 1
    for thread in threads:
        thread.join()


def test_notification_sent_once_ends_one_wait(waker, first, engine):
    engine.execute(f"NOTIFY {CHANNEL}")
    assert waker.wait_for_notifications(LONG) == {""}
    assert not waker.wait_for_notifications(0.05)


def test_new_connection_counts_as_one_notification_of_all_kinds(waker, connections):
    """Notifications that were sent before did not reach this process, so a new connection counts as a notification.

    A notification that was not sent also relies on this, because the scans after another notification replace it.
    """
    with connections.share(Preference.ONLY_FIRST).use() as connection:
        waker.expect_notifications(connection)
    assert waker.wait_for_notifications(LONG) == PAYLOADS | {""}
    assert not waker.wait_for_notifications(0.05)


def test_connection_opened_during_a_wait_is_waited_for(waker, connections, engine):
    """The waiting thread does not wait for the new connection's socket yet, so `opened()` must wake it."""
    waiting = helpers.Background(lambda: waker.wait_for_notifications(LONG))
    time.sleep(0.01)
    with connections.share(Preference.ONLY_FIRST).use() as connection:
        connection.execute(f"LISTEN {CHANNEL}")
    engine.execute(f"NOTIFY {CHANNEL}")
    assert waiting.result(LONG / 2) == {""}


def test_waker_lost_connection_is_reported_and_wake_works(waker, first, connections, engine):
    changes = []
    waker._on_change = lambda: changes.append(waker.error)
    with first.use() as connection:
        process = connection.info.backend_pid
    before = connections.connected_at
    engine.execute("SELECT pg_terminate_backend(%s)", (process,))
    helpers.wait_until(lambda: not waker.wait_for_notifications(0.05) and waker.error)
    assert changes == [waker.error]
    assert is_lost(connection)
    waker.wake()
    assert seconds_to(lambda: waker.wait_for_notifications(LONG)) < LONG / 2
    with first.use() as connection:
        assert connections.connected_at > before


def test_wait_returns_the_payloads_since_the_last_one(waker, first, engine):
    with first.use() as connection:
        notify(engine, connection)
        notify(engine, connection, CANCEL_REQUESTED)
    received = set()
    helpers.wait_until(lambda: received.update(waker.wait_for_notifications(0.05)) or len(received) == 2)
    assert received == {"", CANCEL_REQUESTED}


@pytest.mark.parametrize("sender", ["before_return", "answer"])
def test_notification_that_arrives_with_an_answer_ends_the_wait(waker, first, connections, engine, monkeypatch, sender):
    """libpq has read the notification from the socket, so the socket does not become readable for it.

    The waiting thread has tried to read before, and failed because the connection was in use.
    """
    attempts, use = [], connections.use_first_if_free
    monkeypatch.setattr(connections, "use_first_if_free", lambda read: attempts.append(use(read)))
    waiting = helpers.Background(lambda: waker.wait_for_notifications(LONG))
    with first.use() as connection:
        notify(engine, connection)
        helpers.wait_until(lambda: attempts)
        if sender == "answer":
            connection.execute("SELECT 1")
        else:
            connection.pgconn.consume_input()
    assert waiting.result(LONG / 2) == {""}


STEPS = ("borrow", "statement", "return", "notify", "wait")
ORDERS = [
    order
    for order in itertools.permutations(STEPS)
    if order.index("borrow") < order.index("statement") < order.index("return")
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_notification_ends_the_wait_in_any_interleaving(waker, first, engine, order):
    """Another thread's use of the connection, a notification and the fetcher's wait, in every order."""
    used = ExitStack()
    connection = first._connections._first.open_connection
    do = {
        "borrow": lambda: used.enter_context(first.use()),
        "statement": lambda: connection.execute("SELECT 1"),
        "return": used.close,
        "notify": lambda: notify(engine, connection) if "wait" not in done else engine.execute(f"NOTIFY {CHANNEL}"),
        "wait": lambda: waits.append(helpers.Background(lambda: waker.wait_for_notifications(LONG))),
    }
    waits, done = [], []
    for step in order:
        do[step]()
        done.append(step)
        time.sleep(0.002)  # lets the waiting thread react to the step
    assert waits[0].result(LONG / 2) == {""}


def test_no_notification_is_lost_while_others_use_the_connection(waker, first, engine):
    """Each notification is sent while another thread executes statements, and the waiting thread sees each."""
    ended = threading.Event()

    def use():
        while not ended.is_set():
            with first.use() as connection:
                connection.execute("SELECT 1")

    users = [helpers.Background(use) for _ in range(2)]
    try:
        for number in range(200):
            engine.execute(f"NOTIFY {CHANNEL}, '{number}'")
            received = waker.wait_for_notifications(LONG)
            while str(number) not in received:
                received = waker.wait_for_notifications(LONG)
                assert received, f"notification {number} is lost"
    finally:
        ended.set()
        for user in users:
            user.result()


def test_waiting_thread_tries_once_while_another_uses_the_connection(waker, first, connections, engine, monkeypatch):
    """The socket stays readable meanwhile, so a second attempt would be one of many."""
    attempts, use = [], connections.use_first_if_free
    monkeypatch.setattr(connections, "use_first_if_free", lambda read: attempts.append(read) or use(read))
    with first.use() as connection:
        notify(engine, connection)
        assert not waker.wait_for_notifications(0.05)
        assert len(attempts) == 1
    assert waker.wait_for_notifications(LONG) == {""}


def test_return_right_after_a_failed_attempt_ends_the_wait(waker, first, connections, engine, monkeypatch):
    used, use = ExitStack(), connections.use_first_if_free

    def fail_before_the_return(read):
        is_free = use(read)
        used.close()
        return is_free

    monkeypatch.setattr(connections, "use_first_if_free", fail_before_the_return)
    notify(engine, used.enter_context(first.use()))
    assert helpers.Background(lambda: waker.wait_for_notifications(LONG)).result(LONG / 2) == {""}


def test_statements_of_others_do_not_end_the_wait(waker, first):
    def wait():
        began = time.monotonic()
        return waker.wait_for_notifications(0.1), time.monotonic() - began

    waiting = helpers.Background(wait)
    while waiting.thread.is_alive():
        with first.use() as connection:
            connection.execute("SELECT 1")
    received, seconds = waiting.result()
    assert not received
    assert seconds >= 0.1


def test_slow_statement_of_another_service_makes_the_fetcher_poll(waker, first, engine):
    """The server delivers no notification during a statement, so the waiting thread assumes that there was one."""
    with first.use() as connection:
        waker.expect_notifications(connection)
        connection.execute("SET lock_timeout = 0")
    waker.wait_for_notifications(0.0)
    with engine.transaction():
        engine.execute("SELECT pg_advisory_xact_lock(1)")
        used = helpers.Background(lambda: _execute(first, "SELECT pg_advisory_lock(1)"))
        assert waker.wait_for_notifications(LONG) == PAYLOADS | {""}
        assert used.thread.is_alive()
    used.result()


def _execute(share, statement):
    with share.use() as connection:
        connection.execute(statement)


def test_wake_after_close_does_nothing():
    waker = NotificationWaker()
    waker.close()
    waker.wake()


def test_wait_huge_timeout_is_accepted(waker):
    waker.wake()
    assert not waker.wait_for_notifications(10.0**9)


# ------------------------------------------------------------------ the listener


@pytest.fixture
def changes():
    return []


@pytest.fixture
def listener(connections, waker, changes, monkeypatch):
    monkeypatch.setattr(listener_module, "SELF_TEST_SECONDS", LONG)
    return Listener(connections, waker, lambda listens: changes.append(listens))


def name_and_channels(listener):
    with listener.first.use() as connection:
        [[name]] = connection.execute("SHOW application_name").fetchall()
        return name, sorted(channel for (channel,) in connection.execute("SELECT pg_listening_channels()"))


def test_listener_notifications_arrive_and_the_name_says_so(listener, waker, connections, changes, engine):
    listener.tick()
    assert changes == [True]
    assert waker.wait_for_notifications(0.0) == PAYLOADS | {""}
    engine.execute(f"NOTIFY {CHANNEL}")
    assert waker.wait_for_notifications(LONG) == {""}
    assert name_and_channels(listener) == ("pgqueue:fetcher (listens)", ["pgqueue", "pgqueue_awaited"])
    listener.tick()
    assert changes == [True]


def test_listener_replaced_connection_is_listened_on(listener, waker, changes, engine):
    """A statement's error closes the connection. The listener is woken, and listens on the next one."""
    waker._on_change = listener.wake
    listener.tick()
    listener._wake.clear()
    with pytest.raises(psycopg.errors.DivisionByZero):
        _execute(listener.first, "SELECT 1 / 0")
    assert listener._wake.is_set()
    listener.tick()
    assert changes == [True, True]
    waker.wait_for_notifications(0.0)
    engine.execute(f"NOTIFY {CHANNEL}")
    assert waker.wait_for_notifications(LONG) == {""}


def test_listener_second_connection_lost_too_listens_without_a_pause(listener, changes, engine):
    """Nobody has used the second connection since the server ended both, so the self-test finds out."""
    listener.tick()
    for share in (listener.second, listener.first):
        with share.use() as connection:
            engine.execute("SELECT pg_terminate_backend(%s)", (connection.info.backend_pid,))
    with pytest.raises(psycopg.OperationalError):
        _execute(listener.first, "SELECT 1")
    listener.tick()
    assert changes == [True, True]


@pytest.mark.promise("defect-listener-blocks-fetcher")
def test_listener_never_waits_for_the_second_connection_while_it_uses_the_first(listener, changes):
    """Maintenance and schedules may use the second one for seconds. The fetcher needs the first meanwhile."""
    with listener.second.use():
        assert helpers.Background(listener.tick).result() == listener_module.SELF_TEST_RETRY_SECONDS
    assert changes == [False]
    listener.tick()
    assert changes == [False, True]


def test_listener_without_a_second_connection_keeps_the_first(listener, changes, monkeypatch):
    """If the server accepts no more connections, the fetcher needs the one that is open."""
    with listener.first.use() as connection:
        pass
    with monkeypatch.context() as full:
        full.setattr(connection_module, "connect", _refuse)
        with pytest.raises(psycopg.OperationalError, match="too many") as refused:
            listener.tick()
    assert changes == [False]
    with listener.first.use() as still_open:
        assert still_open is connection
    helpers.wait_until(lambda: time.monotonic() >= refused.value.retry_at)  # as the service does
    listener.tick()
    assert changes == [False, True]


def _refuse(*arguments):
    raise psycopg.OperationalError("too many connections")


def test_listener_without_notifications_polls_and_keeps_the_connection(listener, changes, caplog, monkeypatch):
    monkeypatch.setattr(listener_module, "SELF_TEST_SECONDS", 0.05)
    monkeypatch.setattr(listener.waker, "read", lambda connection: [])
    for _ in range(2):
        assert listener.tick() == listener_module.SELF_TEST_AGAIN_SECONDS
    assert changes == [False, False]
    assert len([record for record in caplog.records if "do not arrive" in record.message]) == 1
    with listener.first.use() as connection:
        assert connection.execute("SHOW application_name").fetchall() == [("pgqueue:fetcher",)]


@pytest.fixture
def flood(listener, waker, engine):
    """Return a function that sends notifications until the waker reports a flood to the listener."""
    waker._on_change = listener.wake

    def send():
        while not listener._wake.is_set():
            engine.execute(f"SELECT pg_notify('{CHANNEL}', 'flood ' || n) FROM generate_series(1, 1000) n")
            waker.wait_for_notifications(LONG)

    return send


def test_listener_flood_of_notifications_ends_listening_for_a_while(listener, changes, flood, caplog, monkeypatch):
    """The answers of other statements would come after thousands of notifications."""
    listener.tick()
    listener._wake.clear()
    flood()
    assert listener.tick() == listener_module.FLOOD_REST_SECONDS
    assert name_and_channels(listener) == ("pgqueue:fetcher", [])
    assert 0 < listener.tick() <= listener_module.FLOOD_REST_SECONDS
    assert changes == [True, False]
    monkeypatch.setattr(listener, "_flooded_until", 0.0)
    listener.tick()
    assert changes == [True, False, True]
    assert name_and_channels(listener) == ("pgqueue:fetcher (listens)", ["pgqueue", "pgqueue_awaited"])
    listener._wake.clear()
    flood()
    listener.tick()
    assert [record.event for record in caplog.records] == ["notifications_flood"]


def test_listener_refused_listen_counts_as_no_notifications(listener, changes, monkeypatch):
    monkeypatch.setattr(listener_module, "CHANNEL", "not a name")
    with listener.first.use() as connection:
        pass
    listener.tick()
    assert changes == [False]
    assert not is_lost(connection)


def test_listener_lost_connection_raises_before_reconnect(listener, waker, changes, monkeypatch):
    """A connection attempt to an unreachable server lasts as long as the system allows, so the error comes first."""
    listener.tick()
    waker.error = psycopg.OperationalError("lost")
    listener._stopping.set()  # so that it does not pause
    with monkeypatch.context() as unreachable:
        unreachable.delattr(connection_module, "connect")
        assert listener._survive() == 0.0
    assert waker.error is None
    assert changes == [True, False]
    listener.tick()
    assert changes == [True, False, True]


def test_cancel_running_job_notifies_workers(listening, engine):
    running = helpers.make_job(engine)
    helpers.claim_one(engine)
    waiting = helpers.make_job(engine)
    assert Job.objects.get(pk=waiting).cancel()
    assert Job.objects.filter(pk=running).cancel() == 1
    assert [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=1)] == [CANCEL_REQUESTED]


@pytest.mark.promise("defect-notice-without-autocommit")
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
        control.limits.end_hold("stripe")
        transaction.commit()
        assert [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=1)] == [PAUSES_CHANGED]
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
