"""Test which sessions are replaced after the server has ended them, without a failure of the job that uses them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.db.backends.signals import connection_created

from django_pgqueue.worker.runtime import django_connections
from tests.helpers import wait_until


@pytest.fixture(autouse=True)
def _watched(committing):
    """Watch what happens on connections, as a worker process does from its start."""
    connection_created.connect(django_connections._watch_connection)
    yield
    connection_created.disconnect(django_connections._watch_connection)


@pytest.fixture
def thread():
    """Return a function that makes a thread with a name, as an executor that closes its connections at the end."""
    executors = []

    def named(name):
        executors.append(ThreadPoolExecutor(1, initializer=lambda: setattr(threading.current_thread(), "name", name)))
        return executors[-1]

    yield named
    for executor in executors:
        executor.submit(django_connections.close_all).result(20)
        executor.shutdown()


@pytest.fixture
def end_session(engine):
    """Return a function that ends a session and waits until its process is gone."""

    def end(pid):
        engine.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": pid})
        living = "SELECT FROM pg_stat_activity WHERE pid = %(pid)s"
        wait_until(lambda: not engine.execute(living, {"pid": pid}).rowcount)

    return end


def ask(statement="SELECT pg_backend_pid()"):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0] if cursor.description else None


def ask_atomically():
    with transaction.atomic():
        return ask()


@pytest.mark.parametrize("use", [ask, ask_atomically])
@pytest.mark.parametrize("when", ["before the job", "before its first statement"])
def test_session_that_ended_before_its_use_is_replaced(thread, end_session, use, when):
    slot = thread("pgqueue-job-test")
    slot.submit(django_connections.before_job).result(20)
    first = slot.submit(ask).result(20)
    if when == "before the job":
        end_session(first)
    slot.submit(django_connections.before_job).result(20)
    if when != "before the job":
        end_session(first)
    assert slot.submit(use).result(20) != first


@pytest.mark.parametrize("earlier_jobs", [0, 1])
def test_session_that_the_job_has_used_is_not_replaced(thread, end_session, earlier_jobs):
    """The job may rely on the session: for example, a function in the database may have taken an advisory lock."""
    slot = thread("pgqueue-job-test")
    for _ in range(earlier_jobs):
        slot.submit(django_connections.before_job).result(20)
        slot.submit(ask).result(20)
    slot.submit(django_connections.before_job).result(20)
    end_session(slot.submit(ask).result(20))
    with pytest.raises((DatabaseError, InterfaceError)):
        slot.submit(ask).result(20)


def test_session_of_the_orm_thread_is_replaced_at_any_time(thread, end_session):
    """Coroutines share it. One that waits for a minute must not fail because the session ended meanwhile."""
    orm = thread("ThreadPoolExecutor-0_0")
    first, again = orm.submit(ask).result(20), orm.submit(ask).result(20)
    assert again == first
    end_session(first)
    second = orm.submit(ask).result(20)
    assert second != first
    end_session(second)
    assert orm.submit(ask_atomically).result(20) != second


def test_changed_session_of_another_thread_is_not_replaced(thread, end_session):
    """A thread of the application may hold a lock of its session."""
    other = thread("of the application")
    first = other.submit(ask).result(20)
    other.submit(ask, "SELECT pg_advisory_lock(42)").result(20)
    end_session(first)
    with pytest.raises((DatabaseError, InterfaceError)):
        other.submit(ask).result(20)


def test_session_that_ends_in_a_transaction_fails_it(thread, end_session):
    def transact():
        with transaction.atomic():
            end_session(ask())
            ask()

    with pytest.raises((DatabaseError, InterfaceError)):
        thread("of the application").submit(transact).result(20)


def test_session_that_has_not_ended_is_kept(thread):
    slot = thread("pgqueue-job-test")
    pids = set()
    for _ in range(3):
        slot.submit(django_connections.before_job).result(20)
        pids.add(slot.submit(ask).result(20))
    assert len(pids) == 1
