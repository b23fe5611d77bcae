"""The listener that notifies a waiting process when the jobs it waits for are finished.

The test itself plays the worker that sends the notifications, or that fails to send them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import override_settings

from django_pgqueue.db import engine_connection
from django_pgqueue.lifecycle import claims, completions
from django_pgqueue.waiting import completion_listener, result_wait
from tests import helpers
from tests.app import tasks
from tests.process.harness import environment

pytestmark = pytest.mark.slow

LONG = 20.0
"""A timeout in seconds that no test should reach."""
SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgqueue:waiting' AND datname = current_database()"
)


@pytest.fixture(autouse=True)
def fresh(committing, monkeypatch):
    """Close the listener before and after each test, and let it retry soon after an error."""
    monkeypatch.setattr(completion_listener, "PAUSE_LIMIT_SECONDS", 0.02)
    completion_listener.close()
    yield
    completion_listener.close()


@pytest.fixture
def only_told(monkeypatch):
    """Fail a wait that finds the end by polling. The wait starts to listen after its first poll."""
    original = result_wait._pauses

    def pauses(job, timeout_seconds):
        for pause_seconds in original(job, timeout_seconds):
            began = time.monotonic()
            yield pause_seconds
            assert time.monotonic() - began < pause_seconds, "no notification of the end arrived"

    monkeypatch.setattr(result_wait, "_pauses", pauses)
    monkeypatch.setattr(result_wait, "FIRST_PAUSE_SECONDS", LONG)
    monkeypatch.setattr(result_wait, "LOOKS_ALONE", 1)


@pytest.fixture
def overhears(new_connection):
    """Return a function that listens on a channel. It returns a function for the next payloads, at least `count`."""

    def listen(channel):
        listening = new_connection()
        listening.execute(f"LISTEN {channel}")
        return lambda count=1: [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=count)]

    return listen


def in_background(call):
    """Run a call in a thread, and close the Django connection of the thread at its end."""

    def run():
        try:
            return call()
        finally:
            connection.close()

    return helpers.Background(run)


def succeed(engine, job):
    claimed = claims.claim_one(engine, job.pk, worker_id=1, lease_seconds=60.0)
    completions.succeed(engine, helpers.succeeded(claimed.key, result="7"))


def reloaded(job):
    """Return another object of the same job, as another thread would have it."""
    return type(job).objects.get(pk=job.pk)


def end(engine, job):
    """Finish a job and notify its waiters, as a worker does that knows of them."""
    succeed(engine, job)
    completion_listener.notify(engine, completion_listener.OVER, [job.pk])


def wait_until_asked(asked, jobs):
    """Wait until the workers were notified that these jobs are awaited."""
    left = {job.pk for job in jobs}
    while left:
        left.difference_update(*map(completion_listener.ids_in, asked()))


def listening_threads():
    return [thread for thread in threading.enumerate() if thread.name == "pgqueue-waiting"]


# ------------------------------------------------------------------ with notifications


@pytest.mark.quick
def test_wait_finished_job_ends_by_notification(engine, only_told, overhears):
    job, asked = tasks.add.enqueue(2, 3), overhears(completion_listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    assert asked() == [str(job.pk)]
    end(engine, job)
    assert waits.result() == 7


@pytest.mark.promise("waits-share-one-connection")
def test_waits_sync_and_async_share_one_connection(engine, only_told, overhears):
    jobs, asked = [tasks.add.enqueue(2, 3) for _ in range(24)], overhears(completion_listener.AWAITED)

    async def all_of(some):
        return await asyncio.gather(*[job.await_result(LONG * 2) for job in some])

    waits = [in_background(lambda: async_to_sync(all_of)(jobs[4:]))]
    waits += [in_background(lambda job=job: job.wait(LONG * 2)) for job in (*jobs[:4], reloaded(jobs[3]))]
    wait_until_asked(asked, jobs)
    assert len(engine.execute(SESSIONS).fetchall()) == len(listening_threads()) == 1
    for job in jobs:
        succeed(engine, job)
    completion_listener.notify(engine, completion_listener.OVER, [job.pk for job in jobs])
    assert [wait.result() for wait in waits] == [[7] * 20, 7, 7, 7, 7, 7]


@pytest.mark.promise("no-end-missed")
def test_wait_job_finished_before_worker_is_notified_ends(engine, only_told, monkeypatch):
    job, original = tasks.add.enqueue(2, 3), completion_listener.notify

    def finish_and_notify(*arguments):
        if helpers.state_of(engine, job.pk) == "ready":
            succeed(engine, job)
        original(*arguments)

    monkeypatch.setattr(completion_listener, "notify", finish_and_notify)
    assert job.wait(LONG * 2) == 7


def test_wait_false_notification_does_not_end_it(engine, only_told, overhears):
    job, asked = tasks.add.enqueue(2, 3), overhears(completion_listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    asked()
    for payload in ("", "x", "-1", "٣", "9" * 5000, f"{job.pk}", f"{job.pk},{job.pk}"):
        engine.execute("SELECT pg_notify(%s, %s)", (completion_listener.OVER, payload))
    end(engine, job)
    assert waits.result() == 7


def test_listener_notifies_workers_repeatedly(engine, only_told, overhears, monkeypatch):
    monkeypatch.setattr(completion_listener, "REPEAT_SECONDS", 0.05)
    job, asked = tasks.add.enqueue(2, 3), overhears(completion_listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    assert set(asked(3)) == {str(job.pk)}
    end(engine, job)
    waits.result()


def test_notify_many_ids_sends_several_notifications(engine, overhears):
    asked, many = (
        overhears(completion_listener.AWAITED),
        list(range(10**18, 10**18 + 2 * completion_listener.IDS_A_WORD + 1)),
    )
    completion_listener.notify(engine, completion_listener.AWAITED, many)
    assert [job_id for payload in asked(3) for job_id in completion_listener.ids_in(payload)] == many


# ------------------------------------------------------------------ without notifications


@pytest.mark.promise("no-end-missed")
def test_wait_without_notification_ends_by_polling(engine, overhears):
    """A worker that starts after the wait began was not notified of it, and does not announce the end."""
    job, asked = tasks.add.enqueue(2, 3), overhears(completion_listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG))
    asked()
    succeed(engine, job)
    assert waits.result() == 7


@pytest.mark.promise("no-end-missed")
def test_listener_terminated_session_listens_again(engine, only_told, overhears):
    job, asked = tasks.add.enqueue(2, 3), overhears(completion_listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    asked()
    [[pid]] = engine.execute(SESSIONS).fetchall()
    engine.execute("SELECT pg_terminate_backend(%s)", [pid])
    assert asked() == [str(job.pk)]
    end(engine, job)
    assert waits.result() == 7


@pytest.mark.parametrize("where", ["connect", "notify"])
def test_wait_failing_listener_polls_and_retries(engine, monkeypatch, where):
    job, tries = tasks.add.enqueue(2, 3), []

    def fail(*_):
        tries.append(where)
        raise psycopg.OperationalError("as asked")

    monkeypatch.setattr(completion_listener, where, fail)
    waits = in_background(lambda: job.wait(LONG))
    helpers.wait_until(lambda: len(tries) > 1)
    succeed(engine, job)
    assert waits.result() == 7


def test_listener_behind_pooler_executes_no_listen(engine, monkeypatch):
    """Behind a pooler, LISTEN would stay on a server connection that other clients use."""
    monkeypatch.setattr(engine_connection, "PLANNER", "-c jit=off")  # as a pooler that ignores the options leaves them
    job, opened, executed, original = tasks.add.enqueue(2, 3), [], [], completion_listener.connect

    def connect(*arguments):
        opened.append(original(*arguments))
        monkeypatch.setattr(opened[-1], "execute", executed.append)
        return opened[-1]

    monkeypatch.setattr(completion_listener, "connect", connect)
    waits = in_background(lambda: job.wait(LONG))
    helpers.wait_until(lambda: len(opened) > 1)
    succeed(engine, job)
    assert waits.result() == 7
    assert opened[0].closed
    assert executed == []


def test_wait_notify_off_starts_no_listener(engine):
    job = tasks.add.enqueue(2, 3)
    with override_settings(PGQUEUE={"NOTIFY": False}):
        with pytest.raises(TimeoutError):
            job.wait(0.1)
        assert listening_threads() == []


def test_listener_connects_to_listen_database(engine, other, only_told, overhears, monkeypatch):
    aliases, original = [], completion_listener.connect
    monkeypatch.setattr(
        completion_listener, "connect", lambda alias, *rest: aliases.append(alias) or original(alias, *rest)
    )
    job, asked = tasks.add.enqueue(2, 3), overhears(completion_listener.AWAITED)
    with override_settings(PGQUEUE={"LISTEN_DATABASE": "other"}):
        waits = in_background(lambda: job.wait(LONG * 2))
        asked()
        end(engine, job)
        waits.result()
    assert aliases == ["other"]
    completion_listener.close()


def test_wait_thread_start_failure_polls(engine, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    job = tasks.add.enqueue(2, 3)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        with pytest.raises(TimeoutError):
            job.wait(0.1)
    assert completion_listener._all["default"]._thread is None


def test_wait_without_free_descriptor_polls(engine, monkeypatch):
    def socketpair(*_):
        raise OSError(errno.EMFILE, "too many open files")

    job = tasks.add.enqueue(2, 3)
    with monkeypatch.context() as full:
        full.setattr(socket, "socketpair", socketpair)
        with pytest.raises(TimeoutError):
            job.wait(0.1)


def test_listener_failed_connect_without_wait_is_not_retried(engine, monkeypatch):
    monkeypatch.setattr(completion_listener, "PAUSE_LIMIT_SECONDS", 2.0)
    job, tries = tasks.add.enqueue(2, 3), []

    def connect(*_):
        tries.append(threading.current_thread())
        raise psycopg.NotSupportedError("as asked")  # after a lost connection, the first retry comes at once

    monkeypatch.setattr(completion_listener, "connect", connect)
    while not tries:  # on a loaded machine, a short wait can end before the listener connects
        with pytest.raises(TimeoutError):
            job.wait(0.1)
    tries[0].join(LONG)
    assert len(tries) == 1


# ------------------------------------------------------------------ no listener without a wait


def test_wait_short_timeout_notifies_no_worker(engine, overhears, monkeypatch):
    job, asked = tasks.add.enqueue(2, 3), overhears(completion_listener.AWAITED)
    with pytest.raises(TimeoutError):
        job.wait(0.02)
    with monkeypatch.context() as early, pytest.raises(TimeoutError):
        early.setattr(result_wait, "LOOKS_ALONE", 1)
        job.wait(0)
    succeed(engine, job)
    assert job.wait(LONG) == 7
    assert listening_threads() == []
    engine.execute(f"NOTIFY {completion_listener.AWAITED}, 'the first word'")
    assert asked() == ["the first word"]


def test_wait_refused_or_immediate_starts_no_listener(committing):
    with transaction.atomic(), suppress(result_wait.CannotWait):
        tasks.add.enqueue(2, 3).wait(LONG)
    with override_settings(PGQUEUE={"IMMEDIATE": True}):
        assert tasks.add.enqueue(2, 3).wait(LONG) == 5
    assert listening_threads() == []


def test_listener_closes_after_last_wait_and_starts_again(engine, monkeypatch):
    monkeypatch.setattr(completion_listener, "KEEP_SECONDS", 0.05)
    for _ in range(2):
        notified = threading.Event()
        with completion_listener.awaiting("default", 1, notified.set):
            assert notified.wait(LONG)
            assert len(engine.execute(SESSIONS).fetchall()) == 1
        helpers.wait_until(lambda: not engine.execute(SESSIONS).fetchall())
        helpers.wait_until(lambda: not listening_threads())


@pytest.fixture
def scratch(engine):
    """Provide an alias for a separate database."""
    name = f"{engine.info.dbname}_scratch"
    engine.execute(f"DROP DATABASE IF EXISTS {name}")  # left by a test run that was killed
    engine.execute(f"CREATE DATABASE {name}")
    connections.settings["scratch"] = {**connections.settings["default"], **connection.settings_dict, "NAME": name}
    yield "scratch"
    del connections.settings["scratch"]


def test_listener_closes_in_time_to_drop_its_database(engine, scratch, monkeypatch):
    """`DROP DATABASE` waits 5 s for the sessions of the database to end."""
    assert completion_listener.KEEP_SECONDS < 4
    monkeypatch.setattr(completion_listener, "KEEP_SECONDS", 0.05)
    notified = threading.Event()
    with completion_listener.awaiting(scratch, 1, notified.set):
        assert notified.wait(LONG)
    engine.execute(f"DROP DATABASE {engine.info.dbname}_scratch")


# ------------------------------------------------------------------ processes


@pytest.mark.promise("waits-share-one-connection")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_listener_after_fork_child_and_parent_both_listen(engine):
    in_parent, in_child = [], []
    with completion_listener.awaiting("default", 1, lambda: in_parent.append(os.getpid())):
        helpers.wait_until(lambda: in_parent)
        child = os.fork()
        if child == 0:
            with ExitStack() as stack:
                stack.callback(os._exit, 1)
                with completion_listener.awaiting("default", 1, lambda: in_child.append(os.getpid())):
                    helpers.wait_until(lambda: in_child)
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        count = len(in_parent)
        completion_listener.notify(engine, completion_listener.OVER, [1])
        helpers.wait_until(lambda: len(in_parent) > count)
    assert set(in_parent) == {os.getpid()}


QUIET = """
import atexit
import threading
atexit.register(lambda: [print(one) for one in threading.enumerate() if one.name == "pgqueue-waiting"])  # called last
import django
django.setup()
from django_pgqueue.waiting import completion_listener
notified = threading.Event()
wait = completion_listener.awaiting("default", 1, notified.set)
wait.__enter__()
assert notified.wait(20)
"""


def test_listener_process_exit_closes_without_output(engine):
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", QUIET]
    done = subprocess.run(command, env=environment(None), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
