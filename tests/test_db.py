"""Engine connections: what they take from the project's settings, and how they handle poolers and failovers."""

from __future__ import annotations

from contextlib import closing

import psycopg
import pytest
from django.db import connection, transaction

from django_pgqueue.db import engine_connection, server, statements
from django_pgqueue.db.transactions import read_committed
from django_pgqueue.lifecycle import completions, limits
from django_pgqueue.testing import run_jobs
from django_pgqueue.worker.execution import atomic
from tests import helpers
from tests.app import tasks
from tests.helpers import scalar


@pytest.fixture
def engine_threshold(transactional_db):
    def threshold() -> int | None:
        opened = engine_connection.connect("default", "test")
        opened.close()
        return opened.prepare_threshold

    return threshold


def test_connect_directly_prepares_statements(engine_threshold):
    assert engine_threshold() == 1


def test_connect_behind_pooler_prepares_no_statements(engine_threshold, monkeypatch):
    monkeypatch.setattr(engine_connection, "PLANNER", "-c jit=off")  # as a pooler that ignores the options leaves them
    assert engine_threshold() is None


def idle_in_transaction_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        return str(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_atomic_completion_limits_wait_for_commit_to_10_s(monkeypatch):
    timeouts = []
    finish = atomic._finish

    def record_timeout(*arguments):
        timeouts.append(idle_in_transaction_timeout())
        return finish(*arguments)

    monkeypatch.setattr(atomic, "_finish", record_timeout)
    tasks.create_group.enqueue("made")
    assert run_jobs() == 1
    assert timeouts == ["10s"]
    assert idle_in_transaction_timeout() == "0"


@pytest.mark.django_db
def test_read_committed_leaves_outer_transaction_unchanged():
    with transaction.atomic(), read_committed(connection) as commits:
        assert not commits
    tasks.create_group.enqueue("made")
    assert run_jobs() == 1
    assert idle_in_transaction_timeout() == "0"


def test_connect_to_former_primary_is_refused(engine_threshold, monkeypatch):
    monkeypatch.setattr(server, "_newest_timeline", {})
    engine_threshold()
    assert server._newest_timeline == {"default": "00000001"}
    server._newest_timeline["default"] = "0000000A"
    with pytest.raises(psycopg.OperationalError, match="timeline 1, and this process has worked on 10"):
        engine_threshold()


def test_connect_after_promotion_marks_process_to_end(engine_threshold, monkeypatch):
    monkeypatch.setattr(server, "_newest_timeline", {})
    monkeypatch.setattr(server, "_promotions", {"end this process": False, "seen": False})
    server.end_at_promotion()
    engine_threshold()  # the first timeline that the process sees is the one that it works on
    assert not server.was_promoted()
    server._newest_timeline["default"] = "00000000"
    with pytest.raises(psycopg.OperationalError, match="was promoted"):
        engine_threshold()
    assert server.was_promoted()


def test_connect_to_standby_is_refused_in_processes_of_a_worker(engine_threshold, monkeypatch):
    """Its session would continue after the promotion, and the process would not see the new timeline."""
    monkeypatch.setattr(server, "_standbys", {"refuse": False})
    monkeypatch.setattr(server, "TIMELINE", "SELECT NULL")
    engine_threshold()
    server.refuse_standbys()
    with pytest.raises(psycopg.OperationalError, match="is a standby"):
        engine_threshold()
    with connection.cursor():
        server.refuse_an_old_primary(connection.connection, "default")  # a job may read from a standby


def test_connect_without_known_timeline_is_accepted(engine_threshold, monkeypatch):
    monkeypatch.setattr(server, "_newest_timeline", {"default": "0000000A"})
    for answer in ("SELECT NULL", "SELECT no_such_function()"):
        monkeypatch.setattr(server, "TIMELINE", answer)
        assert engine_threshold() == 1


@pytest.mark.django_db(transaction=True)
def test_is_read_only_detects_read_only_transaction():
    assert not server.is_read_only("default")
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        assert server.is_read_only("default")


def test_execute_on_engine_uses_one_cursor(engine, monkeypatch):
    """A new cursor copies the types of the connection. An error does not spoil the cursor."""
    assert statements.execute(engine, "SELECT 1", {}) == [(1,)]
    monkeypatch.setattr(type(engine), "cursor", lambda *args: pytest.fail("a second cursor"))
    with pytest.raises(psycopg.errors.DivisionByZero):
        statements.execute(engine, "SELECT 1 / 0", {})
    assert statements.execute(engine, "SELECT %(number)s::int", {"number": 2}) == [(2,)]


@pytest.mark.parametrize(("statement", "rows"), [("SELECT 1, 2", [(1, 2)]), ("DISCARD SEQUENCES", [])])
def test_execute_on_engine_makes_no_objects_of_columns(engine, monkeypatch, statement, rows):
    """psycopg makes them anew for each answer, and nobody reads them. A claim has 17 columns."""
    monkeypatch.setattr(psycopg.Cursor, "description", property(lambda cursor: pytest.fail("read")), raising=False)
    assert statements.execute(engine, statement, {}) == rows


@pytest.mark.promise("defect-engine-reads-settings")
@pytest.mark.django_db(transaction=True)
def test_engine_connection_reads_no_settings(monkeypatch):
    """The fault suite and other tools use engine connections in processes without Django's settings."""
    with closing(engine_connection.connect("default", "test")) as engine:
        monkeypatch.setattr(statements, "settings", None)
        monkeypatch.setattr(type(engine), "record_statement", None)
        assert statements.execute(engine, "SELECT 1", {}) == [(1,)]


def plan_of_completions(engine):
    """Return the plan that the server has for the prepared statement of this connection."""
    [[name, count]] = engine.execute(
        "SELECT name, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement LIKE '%:succeed */%'",
        prepare=False,
    ).fetchall()
    nulls = ", ".join(["NULL"] * count)
    return str(engine.execute(f"EXPLAIN EXECUTE {name} ({nulls})", prepare=False).fetchall())


@pytest.mark.parametrize(("slow_seconds", "is_made_anew"), [(60.0, False), (0.0, True)])
def test_slow_statement_lets_the_server_plan_anew(engine, committing, monkeypatch, slow_seconds, is_made_anew):
    """A plan from a time of few rows reads a whole table for each completion."""
    monkeypatch.setattr(engine_connection, "SLOW_SECONDS", 60.0)
    monkeypatch.setattr(engine_connection, "SPENT_SECONDS", 600.0)  # a busy machine needs more than a second for all
    helpers.empty_tables(engine)  # otherwise, the indexes keep the pages of earlier tests
    for _ in range(3):
        helpers.make_job(engine)
        engine.execute("VACUUM ANALYZE pgqueue_job, pgqueue_execution", prepare=False)
        completions.succeed(engine, helpers.succeeded(helpers.claim_one(engine).key))
    helpers.make_jobs(engine, 5000)
    claimed, *_ = [helpers.claim_all(engine) for _ in range(10)]
    assert "Join Filter" in plan_of_completions(engine)
    monkeypatch.setattr(engine_connection, "SLOW_SECONDS", slow_seconds)
    completions.succeed(engine, helpers.succeeded(*(job.key for job in claimed)))
    assert ("Join Filter" not in plan_of_completions(engine)) == is_made_anew


def test_slow_statements_make_plans_anew_only_now_and_then(engine, monkeypatch):
    monkeypatch.setattr(engine_connection, "SLOW_SECONDS", 0.0)
    executed = []
    monkeypatch.setattr(engine, "execute", lambda statement, **options: executed.append(statement))
    for _ in range(3):
        engine.after_statement("SELECT 1", 1.0)
    assert executed == ["DISCARD PLANS"]


def test_statements_that_take_long_together_make_plans_anew(engine, monkeypatch):
    """A plan from a time of few rows also makes small batches slow, each by far less than a slow statement."""
    monkeypatch.setattr(engine_connection, "REPLAN_INTERVAL_SECONDS", 0.0)
    executed = []
    monkeypatch.setattr(engine, "execute", lambda statement, **options: executed.append(statement))
    engine._spent_seconds = 0.0
    for _ in range(60):
        engine.after_statement("SELECT 1", 0.04)
    assert executed == ["DISCARD PLANS"] * 2


FAILING = ["SELECT 1 / 0", "SELECT pg_terminate_backend(pg_backend_pid())"]
"""An aborted transaction, and a lost connection."""


@pytest.mark.django_db
@pytest.mark.parametrize("statement", FAILING)
def test_plans_not_made_anew_in_a_transaction_raise(monkeypatch, statement):
    """Otherwise the block would end without an error and without a commit: a worker ran jobs of a lost claim."""
    monkeypatch.setattr(engine_connection, "SLOW_SECONDS", 0.0)
    with closing(engine_connection.connect("default", "test")) as engine:
        execute = engine.execute
        monkeypatch.setattr(engine, "execute", lambda discard, **options: execute(statement, **options))
        with pytest.raises(psycopg.Error), engine.transaction():
            limits.lock_keys(engine, [])


@pytest.mark.django_db
@pytest.mark.parametrize("statement", FAILING)
def test_plans_not_made_anew_outside_a_transaction_pass(monkeypatch, statement):
    """The statement before is committed."""
    monkeypatch.setattr(engine_connection, "SLOW_SECONDS", 0.0)
    with closing(engine_connection.connect("default", "test")) as engine:
        execute = engine.execute
        monkeypatch.setattr(engine, "execute", lambda discard, **options: execute(statement, **options))
        assert limits.lock_keys(engine, []) == []


@pytest.fixture
def short_timeouts(committing):
    """Set the timeouts that the database has for its applications to 1 ms."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection.cursor() as cursor:
        for setting in ("statement_timeout", "lock_timeout", "idle_session_timeout"):
            cursor.execute(f"ALTER DATABASE {name} SET {setting} = '1ms'")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} RESET ALL")


@pytest.mark.promise("defect-abandoned-statement-waits")
@pytest.mark.django_db
def test_engine_connection_overrides_database_timeouts(short_timeouts):
    with closing(engine_connection.connect("default", "test")) as engine:
        scalar(engine, "SELECT pg_sleep(0.05)::text")
        names = ("statement_timeout", "lock_timeout", "idle_session_timeout")
        assert [scalar(engine, f"SHOW {name}") for name in names] == ["31s", "2s", "0"]
