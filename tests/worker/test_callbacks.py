"""Test that signal receivers of a worker process run in their own thread, in order, and cannot harm the worker."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_pgqueue.signals import TaskSignal
from django_pgqueue.worker.completion import receiver_thread as module
from django_pgqueue.worker.completion.receiver_thread import CallbackRunner
from django_pgqueue.worker.execution.job_events import IN_JOB_THREAD, Events
from django_pgqueue.worker.runtime import django_connections
from tests.helpers import Clock, wait_until

EXCEPTION_TYPES = [SystemExit, asyncio.CancelledError, KeyboardInterrupt, GeneratorExit, RuntimeError]


@pytest.fixture
def signal():
    return TaskSignal()


@pytest.fixture
def runner():
    runner = CallbackRunner()
    yield runner
    if (thread := runner._thread) is not None:
        thread.is_abandoned = True  # makes the thread end and close its connection
        runner.wake()
        if not thread.busy_seconds:
            thread.join(10.0)


@pytest.fixture
def received(signal):
    received = []

    def receive(sender, number, **about):
        received.append(number)

    signal.connect(receive, weak=False)
    return received


def send(runner, signal, *numbers):
    for number in numbers:
        runner.submit(signal, "a.task", {"job_id": number, "number": number})


@pytest.mark.promise("receivers-in-order")
def test_callbacks_many_events_keep_order_in_their_own_thread(runner, signal, received):
    threads = set()
    signal.connect(lambda **about: threads.add(threading.current_thread().name), weak=False)
    send(runner, signal, *range(500))
    runner.drain(10.0)
    assert received == list(range(500))
    assert threads == {"pgqueue-callbacks"}


def test_event_without_listeners_starts_no_thread(runner, signal):
    Events(runner.submit).publish(signal, "a.task", {"job_id": 1})
    assert len(runner) == 0
    assert runner._thread is None


@pytest.mark.parametrize("kind", EXCEPTION_TYPES)
def test_receiver_raises_other_receivers_are_called(runner, signal, kind, caplog):
    first, last = [], []

    def bad(**about):
        raise kind("from a receiver")

    signal.connect(lambda **about: first.append(about["number"]), weak=False)
    signal.connect(bad)
    signal.connect(lambda **about: last.append(about["number"]), weak=False)
    send(runner, signal, 1, 2, 3)
    runner.drain(10.0)
    assert first == last == [1, 2, 3]
    assert sum("bad raised" in record.getMessage() for record in caplog.records) == 3


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, GeneratorExit, RuntimeError])
def test_foreground_receiver_raises_publish_returns(signal, received, kind):
    def bad(**about):
        raise kind("from a receiver")

    signal.connect(bad)
    for events in (Events(), IN_JOB_THREAD):
        events.publish(signal, "a.task", {"number": 1})
    assert received == [1, 1]


def test_foreground_receiver_ctrl_c_reaches_the_caller(signal):
    def interrupted(**about):
        raise KeyboardInterrupt

    signal.connect(interrupted)
    with pytest.raises(KeyboardInterrupt):
        Events().publish(signal, "a.task", {})


def test_coroutine_receivers_are_called(runner, signal):
    received = []

    async def receive(number, **about):
        received.append(number)

    signal.connect(receive)
    send(runner, signal, 1)
    runner.drain(10.0)
    assert received == [1]


@pytest.fixture
def hanging(signal):
    """Connect a receiver that hangs until the test ends, at each event with a negative number. Return these numbers."""
    release = threading.Event()
    entered = []

    def hang(number, **about):
        if number < 0:
            entered.append(number)
            release.wait(60)

    signal.connect(hang)
    yield entered
    release.set()


def test_hanging_receiver_is_abandoned_and_others_are_called(runner, signal, hanging, received, monkeypatch, caplog):
    clock = Clock(monkeypatch, module)
    send(runner, signal, 1, -1, 2, 3)
    wait_until(lambda: hanging)
    clock.pass_by(module.CALLBACK_SECONDS - 1)
    runner.watch()
    assert received == [1]
    clock.pass_by(2)
    wait_until(lambda: runner.watch() or received == [1, -1, 2, 3])
    [line] = [record for record in caplog.records if "has not returned" in record.getMessage()]
    assert "release.wait(60)" in line.getMessage(), "the logged stack shows where the receiver hangs"


def test_hanging_receivers_use_a_limited_number_of_threads(runner, signal, hanging, monkeypatch):
    monkeypatch.setattr(module, "CALLBACK_SECONDS", 0.02)
    before = threading.active_count()
    send(runner, signal, *[-1] * 20)
    runner.wait_until_called(20.0)
    assert len(hanging) == module.ABANDONED_LIMIT
    assert threading.active_count() <= before + module.ABANDONED_LIMIT + 1


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_hanging_receiver_is_left_out_and_others_are_called(runner, signal, hanging, received, monkeypatch, caplog):
    monkeypatch.setattr(module, "CALLBACK_SECONDS", 0.02)
    send(runner, signal, *[-1] * 10)
    wait_until(lambda: runner.watch() or len(received) == 10)
    runner.watch()
    assert len(hanging) == module.ABANDONED_LIMIT
    left_out = [record.count for record in caplog.records if "left out" in record.getMessage()]
    assert sum(left_out) == 7


class Subscriber:
    """An object with two receivers, of which one waits for the test."""

    def __init__(self, release: threading.Event) -> None:
        self.release = release
        self.received: list[int] = []

    def hang(self, **about: object) -> None:
        """Wait for the end of the test."""
        self.release.wait(60)

    def receive(self, number: int, **about: object) -> None:
        """Note a number."""
        self.received.append(number)


@pytest.mark.promise("hanging-code-blocks-only-its-owner")
def test_hanging_method_is_left_out_and_its_object_is_called(runner, signal, monkeypatch):
    monkeypatch.setattr(module, "CALLBACK_SECONDS", 0.02)
    release = threading.Event()
    subscriber = Subscriber(release)
    signal.connect(subscriber.hang)
    signal.connect(subscriber.receive)
    send(runner, signal, *range(10))
    wait_until(lambda: runner.watch() or subscriber.received == list(range(10)))
    assert len(runner._abandoned) == module.ABANDONED_LIMIT
    release.set()
    wait_until(lambda: runner.watch() or not runner._abandoned)


def test_hanging_receivers_return_later_events_are_sent(runner, signal, received, monkeypatch):
    monkeypatch.setattr(module, "CALLBACK_SECONDS", 0.02)
    release = threading.Event()
    signal.connect(lambda **about: release.wait(60), weak=False)
    send(runner, signal, *range(6))
    wait_until(lambda: runner.watch() or len(runner._abandoned) == module.ABANDONED_LIMIT)
    release.set()
    wait_until(lambda: runner.watch() or received == list(range(6)))
    wait_until(lambda: runner.watch() or not runner._abandoned)
    send(runner, signal, 6)
    runner.drain(10.0)
    assert received == list(range(7))


@pytest.mark.promise("receivers-in-order")
def test_event_without_room_is_dropped_and_counted(runner, signal, hanging, monkeypatch, caplog):
    monkeypatch.setattr(module, "QUEUE_LIMIT", 10)
    began = time.monotonic()
    send(runner, signal, *[-1] * 30)
    assert time.monotonic() - began < 20, "submitting an event does not block the engine thread"
    assert (len(runner), runner.dropped) == (10, 20)
    runner.watch()
    runner.watch()
    assert [record.getMessage() for record in caplog.records if "did not send" in record.getMessage()] == [
        "the receivers are too slow: did not send 20 signals, 10 more wait"
    ]


def test_drain_with_hanging_receiver_ends_in_time(runner, signal, hanging):
    send(runner, signal, -1)
    wait_until(lambda: hanging)
    began = time.monotonic()
    runner.drain(0.1)
    assert time.monotonic() - began < 20
    runner.drain(60.0, lambda: True)
    assert time.monotonic() - began < 40


def test_dead_callback_thread_is_replaced(runner, signal, received):
    send(runner, signal, 1)
    runner.drain(10.0)
    thread = runner._thread
    thread.is_abandoned = True  # makes the thread end without notifying the runner
    runner.wake()
    wait_until(lambda: not thread.is_alive())
    send(runner, signal, 2)
    runner.drain(10.0)
    assert received == [1, 2]


def test_runner_is_behind_until_receiver_counts_as_hanging(runner, signal, hanging, monkeypatch):
    monkeypatch.setattr(module, "QUEUE_LIMIT", 10)
    send(runner, signal, *[-1] * 8)
    assert runner.is_behind
    wait_until(lambda: not runner.is_behind)
    assert len(runner) == 8, "the events still wait, but claims do not wait for a hanging receiver"


@pytest.fixture
def watched():
    """Watch what happens on connections, as a worker process does from its start."""
    connection_created.connect(django_connections._watch_connection)
    yield
    connection_created.disconnect(django_connections._watch_connection)


def test_receiver_that_raises_leaves_no_open_transaction(committing, watched, runner, signal):
    in_transaction = []

    def begin_and_raise(number, **about):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
        in_transaction.append(not connection.get_autocommit())
        connection.set_autocommit(False)
        raise ValueError

    signal.connect(begin_and_raise)
    send(runner, signal, 1, 2)
    runner.drain(10.0)
    assert in_transaction == [False, False]


@pytest.mark.promise("lost-session-fails-one-receiver")
def test_terminated_session_fails_one_receiver_at_most(committing, engine, watched, runner, signal):
    pids, failures = [], []

    def record_pid(number, **about):
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                pids.append(cursor.fetchone()[0])
        except BaseException:
            failures.append(number)
            raise

    signal.connect(record_pid)
    send(runner, signal, 0)
    runner.drain(10.0)
    engine.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": pids[0]})
    send(runner, signal, *range(1, 16))
    runner.drain(10.0)
    assert len(failures) <= 1
    assert len(pids) >= 15
    assert len(set(pids)) == 2, "all later receivers share one new session"


@pytest.mark.promise("ended-session-costs-no-attempt")
def test_receiver_after_its_idle_session_ended_succeeds(committing, engine, watched, runner, signal):
    pids = []

    def record_pid(number, **about):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            pids.append(cursor.fetchone()[0])

    signal.connect(record_pid)
    send(runner, signal, 0)
    runner.drain(10.0)
    engine.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": pids[0]})
    living = "SELECT FROM pg_stat_activity WHERE pid = %(pid)s"
    wait_until(lambda: not engine.execute(living, {"pid": pids[0]}).rowcount)
    send(runner, signal, 1)
    runner.drain(10.0)
    assert len(set(pids)) == 2
