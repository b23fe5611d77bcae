"""How a process hears that jobs it waits for are over; here the test itself is the worker that tells, or does not."""

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

from django_pgqueue import lifecycle
from django_pgqueue.db import engine_connection
from django_pgqueue.waiting import listener, results
from tests import helpers
from tests.app import tasks
from tests.process.harness import environment

LONG = 20.0
"""Seconds that no test would wait in vain."""
SESSIONS = (
    "SELECT pid FROM pg_stat_activity WHERE application_name = 'pgqueue:waiting' AND datname = current_database()"
)


@pytest.fixture(autouse=True)
def fresh(committing, monkeypatch):
    """Nobody listens before a test, nor after it; after an error it is tried again soon."""
    monkeypatch.setattr(listener, "PAUSE_LIMIT_SECONDS", 0.02)
    listener.close()
    yield
    listener.close()


@pytest.fixture
def only_told(monkeypatch):
    """Has a wait fail that finds the end by looking; it listens after its first look."""
    original = results._pauses

    def pauses(job, timeout_seconds):
        for pause_seconds in original(job, timeout_seconds):
            began = time.monotonic()
            yield pause_seconds
            assert time.monotonic() - began < pause_seconds, "nobody has told of the end"

    monkeypatch.setattr(results, "_pauses", pauses)
    monkeypatch.setattr(results, "FIRST_PAUSE_SECONDS", LONG)
    monkeypatch.setattr(results, "LOOKS_ALONE", 1)


@pytest.fixture
def overhears(new_connection):
    """Listens to what is said on a channel: returns how to have the next words, at least so many."""

    def listen(channel):
        listening = new_connection()
        listening.execute(f"LISTEN {channel}")
        return lambda count=1: [notice.payload for notice in listening.notifies(timeout=LONG, stop_after=count)]

    return listen


def in_background(call):
    """Call it in a thread, which leaves no connection of Django's behind."""

    def run():
        try:
            return call()
        finally:
            connection.close()

    return helpers.Background(run)


def succeed(engine, job):
    claimed = lifecycle.claim_one(engine, job.pk, worker_id=1, lease_seconds=60.0)
    lifecycle.succeed(engine, helpers.succeeded(claimed.key, result="7"))


def again(job):
    """The same job, as another thread has it."""
    return type(job).objects.get(pk=job.pk)


def end(engine, job):
    """Do as a worker that has heard somebody wait for it."""
    succeed(engine, job)
    listener.notify(engine, listener.OVER, [job.pk])


def wait_until_asked(asked, jobs):
    """Wait until the workers were told that these are awaited."""
    left = {job.pk for job in jobs}
    while left:
        left.difference_update(*map(listener.ids_in, asked()))


def listening_threads():
    return [thread for thread in threading.enumerate() if thread.name == "pgqueue-waiting"]


# ------------------------------------------------------------------ being told


def test_the_end_is_heard_of(engine, only_told, overhears):
    job, asked = tasks.add.enqueue(2, 3), overhears(listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    assert asked() == [str(job.pk)]
    end(engine, job)
    assert waits.result() == 7


@pytest.mark.promise("waits-share-one-connection")
def test_many_waits_of_both_kinds_share_one_connection(engine, only_told, overhears):
    jobs, asked = [tasks.add.enqueue(2, 3) for _ in range(24)], overhears(listener.AWAITED)

    async def all_of(some):
        return await asyncio.gather(*[job.await_result(LONG * 2) for job in some])

    waits = [in_background(lambda: async_to_sync(all_of)(jobs[4:]))]
    waits += [in_background(lambda job=job: job.wait(LONG * 2)) for job in (*jobs[:4], again(jobs[3]))]
    wait_until_asked(asked, jobs)
    assert len(engine.execute(SESSIONS).fetchall()) == len(listening_threads()) == 1
    for job in jobs:
        succeed(engine, job)
    listener.notify(engine, listener.OVER, [job.pk for job in jobs])
    assert [one.result() for one in waits] == [[7] * 20, 7, 7, 7, 7, 7]


@pytest.mark.promise("no-end-missed")
def test_an_end_before_anybody_knew_of_the_wait_is_found_when_they_are_told(engine, only_told, monkeypatch):
    job, original = tasks.add.enqueue(2, 3), listener.notify

    def tell(*arguments):
        if helpers.state_of(engine, job.pk) == "ready":
            succeed(engine, job)
        original(*arguments)

    monkeypatch.setattr(listener, "notify", tell)
    assert job.wait(LONG * 2) == 7


def test_a_word_that_is_no_end_ends_no_wait(engine, only_told, overhears):
    job, asked = tasks.add.enqueue(2, 3), overhears(listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    asked()
    for word in ("", "x", "-1", "٣", "9" * 5000, f"{job.pk}", f"{job.pk},{job.pk}"):
        engine.execute("SELECT pg_notify(%s, %s)", (listener.OVER, word))
    end(engine, job)
    assert waits.result() == 7


def test_the_workers_are_told_again_for_those_who_came_later(engine, only_told, overhears, monkeypatch):
    monkeypatch.setattr(listener, "REPEAT_SECONDS", 0.05)
    job, asked = tasks.add.enqueue(2, 3), overhears(listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    assert set(asked(3)) == {str(job.pk)}
    end(engine, job)
    waits.result()


def test_many_ids_go_in_several_words(engine, overhears):
    asked, many = overhears(listener.AWAITED), list(range(10**18, 10**18 + 2 * listener.IDS_A_WORD + 1))
    listener.notify(engine, listener.AWAITED, many)
    assert [one for word in asked(3) for one in listener.ids_in(word)] == many


# ------------------------------------------------------------------ not being told


@pytest.mark.promise("no-end-missed")
def test_an_end_that_nobody_tells_of_is_found_by_looking(engine, overhears):
    """As with a worker that was not there to hear of the wait."""
    job, asked = tasks.add.enqueue(2, 3), overhears(listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG))
    asked()
    succeed(engine, job)
    assert waits.result() == 7


@pytest.mark.promise("no-end-missed")
def test_after_its_session_was_ended_it_listens_again(engine, only_told, overhears):
    job, asked = tasks.add.enqueue(2, 3), overhears(listener.AWAITED)
    waits = in_background(lambda: job.wait(LONG * 2))
    asked()
    [[pid]] = engine.execute(SESSIONS).fetchall()
    engine.execute("SELECT pg_terminate_backend(%s)", [pid])
    assert asked() == [str(job.pk)]
    end(engine, job)
    assert waits.result() == 7


@pytest.mark.parametrize("where", ["connect", "notify"])
def test_where_nothing_can_be_heard_it_looks_and_tries_again(engine, monkeypatch, where):
    job, tries = tasks.add.enqueue(2, 3), []

    def fail(*_):
        tries.append(where)
        raise psycopg.OperationalError("as asked")

    monkeypatch.setattr(listener, where, fail)
    waits = in_background(lambda: job.wait(LONG))
    helpers.wait_until(lambda: len(tries) > 1)
    succeed(engine, job)
    assert waits.result() == 7


def test_behind_a_pooler_nothing_is_listened_to(engine, monkeypatch):
    """There LISTEN would be left on a connection that is somebody else's."""
    monkeypatch.setattr(engine_connection, "PLANNER", "-c jit=off")  # what a pooler that ignores options leaves of them
    job, opened, said, original = tasks.add.enqueue(2, 3), [], [], listener.connect

    def connect(*arguments):
        opened.append(original(*arguments))
        monkeypatch.setattr(opened[-1], "execute", said.append)
        return opened[-1]

    monkeypatch.setattr(listener, "connect", connect)
    waits = in_background(lambda: job.wait(LONG))
    helpers.wait_until(lambda: len(opened) > 1)
    succeed(engine, job)
    assert waits.result() == 7
    assert opened[0].closed
    assert said == []


def test_where_notifications_are_off_it_looks(engine):
    job = tasks.add.enqueue(2, 3)
    with override_settings(PGQUEUE={"NOTIFY": False}):
        with pytest.raises(TimeoutError):
            job.wait(0.1)
        assert listening_threads() == []


def test_another_alias_leads_past_a_pooler(engine, other, only_told, overhears, monkeypatch):
    aliases, original = [], listener.connect
    monkeypatch.setattr(listener, "connect", lambda alias, *rest: aliases.append(alias) or original(alias, *rest))
    job, asked = tasks.add.enqueue(2, 3), overhears(listener.AWAITED)
    with override_settings(PGQUEUE={"LISTEN_DATABASE": "other"}):
        waits = in_background(lambda: job.wait(LONG * 2))
        asked()
        end(engine, job)
        waits.result()
    assert aliases == ["other"]
    listener.close()


def test_where_no_thread_can_be_started_it_looks(engine, monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    job = tasks.add.enqueue(2, 3)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        with pytest.raises(TimeoutError):
            job.wait(0.1)
    assert listener._all["default"]._thread is None


def test_where_no_descriptor_is_left_it_looks(engine, monkeypatch):
    def socketpair(*_):
        raise OSError(errno.EMFILE, "too many open files")

    job = tasks.add.enqueue(2, 3)
    with monkeypatch.context() as full:
        full.setattr(socket, "socketpair", socketpair)
        with pytest.raises(TimeoutError):
            job.wait(0.1)


def test_what_could_not_be_heard_is_not_tried_again_for_nobody(engine, monkeypatch):
    monkeypatch.setattr(listener, "PAUSE_LIMIT_SECONDS", 0.4)
    job, tries = tasks.add.enqueue(2, 3), []

    def connect(*_):
        tries.append(threading.current_thread())
        raise psycopg.OperationalError("as asked")

    monkeypatch.setattr(listener, "connect", connect)
    with pytest.raises(TimeoutError):
        job.wait(0.1)
    tries[0].join(LONG)
    assert len(tries) == 1


# ------------------------------------------------------------------ paid by nobody who does not wait


def test_a_short_wait_asks_nobody(engine, overhears, monkeypatch):
    job, asked = tasks.add.enqueue(2, 3), overhears(listener.AWAITED)
    with pytest.raises(TimeoutError):
        job.wait(0.02)
    with monkeypatch.context() as early, pytest.raises(TimeoutError):
        early.setattr(results, "LOOKS_ALONE", 1)
        job.wait(0)
    succeed(engine, job)
    assert job.wait(LONG) == 7
    assert listening_threads() == []
    engine.execute(f"NOTIFY {listener.AWAITED}, 'the first word'")
    assert asked() == ["the first word"]


def test_none_is_begun_where_to_wait_is_refused_nor_where_jobs_run_in_their_caller(committing):
    with transaction.atomic(), suppress(results.CannotWait):
        tasks.add.enqueue(2, 3).wait(LONG)
    with override_settings(PGQUEUE={"IMMEDIATE": True}):
        assert tasks.add.enqueue(2, 3).wait(LONG) == 5
    assert listening_threads() == []


def test_it_is_closed_soon_after_the_last_wait_and_another_begins_anew(engine, monkeypatch):
    monkeypatch.setattr(listener, "KEEP_SECONDS", 0.05)
    for _ in range(2):
        told = threading.Event()
        with listener.awaiting("default", 1, told.set):
            assert told.wait(LONG)
            assert len(engine.execute(SESSIONS).fetchall()) == 1
        helpers.wait_until(lambda: not engine.execute(SESSIONS).fetchall())
        helpers.wait_until(lambda: not listening_threads())


@pytest.fixture
def scratch(engine):
    """An alias that leads to a database of its own."""
    name = f"{engine.info.dbname}_scratch"
    engine.execute(f"DROP DATABASE IF EXISTS {name}")  # of a run that was killed
    engine.execute(f"CREATE DATABASE {name}")
    connections.settings["scratch"] = {**connections.settings["default"], **connection.settings_dict, "NAME": name}
    yield "scratch"
    del connections.settings["scratch"]


def test_a_test_database_can_be_dropped_right_after_a_wait(engine, scratch, monkeypatch):
    """PostgreSQL gives sessions 5 s to leave it."""
    assert listener.KEEP_SECONDS < 4
    monkeypatch.setattr(listener, "KEEP_SECONDS", 0.05)
    told = threading.Event()
    with listener.awaiting(scratch, 1, told.set):
        assert told.wait(LONG)
    engine.execute(f"DROP DATABASE {engine.info.dbname}_scratch")


# ------------------------------------------------------------------ processes


@pytest.mark.promise("waits-share-one-connection")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_after_a_fork_the_child_listens_by_itself_and_the_parent_goes_on(engine):
    heard, in_child = [], []
    with listener.awaiting("default", 1, lambda: heard.append(os.getpid())):
        helpers.wait_until(lambda: heard)
        child = os.fork()
        if child == 0:
            with ExitStack() as stack:
                stack.callback(os._exit, 1)
                with listener.awaiting("default", 1, lambda: in_child.append(os.getpid())):
                    helpers.wait_until(lambda: in_child)
                os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        told = len(heard)
        listener.notify(engine, listener.OVER, [1])
        helpers.wait_until(lambda: len(heard) > told)
    assert set(heard) == {os.getpid()}


QUIET = """
import atexit
import threading
atexit.register(lambda: [print(one) for one in threading.enumerate() if one.name == "pgqueue-waiting"])  # called last
import django
django.setup()
from django_pgqueue.waiting import listener
told = threading.Event()
wait = listener.awaiting("default", 1, told.set)
wait.__enter__()
assert told.wait(20)
"""


def test_a_process_that_ends_while_it_listens_closes_and_says_nothing(engine):
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", QUIET]
    done = subprocess.run(command, env=environment(None), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
