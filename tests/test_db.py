"""Engine connections: what they take from the project's settings, what a pooler allows, what a failover leaves."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from django.db import connection, transaction

from django_pgqueue.db import engine_connection, server
from django_pgqueue.db.transactions import read_committed
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution import atomic
from tests.app import tasks
from tests.helpers import scalar


@pytest.fixture
def engine_threshold(transactional_db):
    def threshold() -> int | None:
        opened = engine_connection.connect("default", "test")
        opened.close()
        return opened.prepare_threshold

    return threshold


def test_a_direct_connection_prepares_its_statements(engine_threshold):
    assert engine_threshold() == 1


def test_where_the_options_do_not_arrive_nothing_is_prepared(engine_threshold, monkeypatch):
    monkeypatch.setattr(engine_connection, "PLANNER", "-c jit=off")  # what a pooler that ignores options leaves of them
    assert engine_threshold() is None


def wait_for_a_commit() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        return str(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_the_server_waits_for_the_commit_of_an_atomic_finish_for_10_s_only(monkeypatch):
    waits = []
    finish_one = atomic._finish

    def noting(*arguments):
        waits.append(wait_for_a_commit())
        return finish_one(*arguments)

    monkeypatch.setattr(atomic, "_finish", noting)
    tasks.create_group.enqueue("made")
    assert run_jobs() == 1
    assert waits == ["10s"]
    assert wait_for_a_commit() == "0"


@pytest.mark.django_db
def test_a_transaction_around_it_is_left_alone():
    with transaction.atomic(), read_committed(connection) as commits:
        assert not commits
    tasks.create_group.enqueue("made")
    assert run_jobs() == 1
    assert wait_for_a_commit() == "0"


def test_a_primary_that_was_left_behind_is_refused(engine_threshold, monkeypatch):
    monkeypatch.setattr(server, "_newest_timeline", {})
    engine_threshold()
    assert server._newest_timeline == {"default": "00000001"}
    server._newest_timeline["default"] = "0000000A"
    with pytest.raises(psycopg.OperationalError, match="timeline 1, and this process has worked on 10"):
        engine_threshold()


def test_a_process_that_holds_claims_ends_at_a_promotion(engine_threshold, monkeypatch):
    monkeypatch.setattr(server, "_newest_timeline", {})
    monkeypatch.setattr(server, "_promotions", {"end this process": False, "seen": False})
    server.end_at_promotion()
    engine_threshold()  # the first timeline that it knows is the one it works on
    assert not server.was_promoted()
    server._newest_timeline["default"] = "00000000"
    with pytest.raises(psycopg.OperationalError, match="was promoted"):
        engine_threshold()
    assert server.was_promoted()


def test_a_standby_has_no_timeline_to_compare_nor_has_a_service_that_tells_none(engine_threshold, monkeypatch):
    monkeypatch.setattr(server, "_newest_timeline", {"default": "0000000A"})
    for answer in ("SELECT NULL", "SELECT no_such_function()"):
        monkeypatch.setattr(server, "TIMELINE", answer)
        assert engine_threshold() == 1


@pytest.mark.django_db(transaction=True)
def test_a_read_only_database_is_known_as_such():
    assert not server.is_read_only("default")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        assert server.is_read_only("default")


@pytest.fixture
def impatient(committing):
    """A database that gives its applications a millisecond."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        for setting in ("statement_timeout", "lock_timeout", "idle_session_timeout"):
            cursor.execute(f"ALTER DATABASE {name} SET {setting} = '1ms'")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} RESET ALL")


@pytest.mark.django_db
def test_timeouts_of_the_database_are_for_its_applications(impatient):
    with closing(engine_connection.connect("default", "test")) as engine:
        scalar(engine, "SELECT pg_sleep(0.05)::text")
        names = ("statement_timeout", "lock_timeout", "idle_session_timeout")
        assert [scalar(engine, f"SHOW {name}") for name in names] == ["31s", "2s", "0"]
