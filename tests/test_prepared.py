"""Prepared statements on Django's connections: when they are used, and what ends them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest
from django.db import connection, transaction

from django_pgqueue.db import engine_connection, prepared
from django_pgqueue.db.startup_options import StartupOptions

STATEMENT = "/* measured */ SELECT number FROM numbers WHERE id = %(id)s::bigint"
NAMES = "SELECT name FROM pg_prepared_statements WHERE statement LIKE '/* measured */%'"


@pytest.fixture(autouse=True)
def numbers(committing, monkeypatch):
    """A table of one row, and a process that knows that no pooler is in between."""
    monkeypatch.setattr(engine_connection, "_startup", known(are_accepted=True))
    connection.close()  # so that nothing is prepared yet
    run("CREATE TEMPORARY TABLE numbers (id bigint PRIMARY KEY, number integer)", "INSERT INTO numbers VALUES (1, 7)")
    yield
    connection.close()


def known(*, are_accepted: bool) -> defaultdict[str, StartupOptions]:
    """Return what a process knows whose server, or pooler, accepts or refuses the options of engine connections."""
    options = StartupOptions()
    options.are_accepted = are_accepted
    return defaultdict(StartupOptions, default=options)


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def read(number: int = 1) -> list[tuple[int]]:
    return prepared.execute_prepared(connection, STATEMENT, {"id": number})


def failing(failed: list[Exception], execute: Callable[..., object], *args: object) -> object:
    """Run a statement, and note its error."""
    try:
        return execute(*args)
    except Exception as error:
        failed.append(error)
        raise


def prepared_names() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(NAMES)
        return [name for (name,) in cursor.fetchall()]


def test_frequent_statement_is_prepared_once():
    assert [read() for _ in range(4)] == [[(7,)]] * 4
    assert len(prepared_names()) == 1


def test_statement_behind_a_pooler_is_not_prepared(monkeypatch):
    monkeypatch.setattr(engine_connection, "_startup", known(are_accepted=False))
    assert [read() for _ in range(4)] == [[(7,)]] * 4
    assert not prepared_names()


def test_statement_in_a_transaction_is_not_prepared():
    with transaction.atomic():
        assert [read() for _ in range(4)] == [[(7,)]] * 4
        assert not prepared_names()


def test_own_statements_of_the_application_stay_unprepared():
    raw = connection.connection
    before = raw.cursor_factory, raw.prepare_threshold
    for _ in range(4):
        read()
    assert (raw.cursor_factory, raw.prepare_threshold) == before
    for _ in range(4):
        run("/* measured */ SELECT 1")
    assert len(prepared_names()) == 1


@pytest.mark.parametrize("change", ["DEALLOCATE ALL", "ALTER TABLE numbers ALTER number TYPE bigint"])
def test_lost_or_outdated_statement_runs_again(change):
    for _ in range(4):
        read()
    run(change)
    assert [read() for _ in range(4)] == [[(7,)]] * 4
    assert len(prepared_names()) == 1
    failed = []
    with connection.execute_wrapper(lambda execute, *args: failing(failed, execute, *args)):
        read()
    assert not failed, "it was not prepared again"


def test_wrong_statement_raises_its_error():
    run("DROP TABLE numbers")
    with pytest.raises(Exception, match="numbers"):
        read()


@pytest.mark.parametrize(("plan_seconds", "plan"), [(600.0, "Seq Scan"), (0.0, "Index Scan")])
def test_plans_are_made_anew_now_and_then(monkeypatch, plan_seconds, plan):
    """A plan from a time when the table had few rows reads all of it."""
    monkeypatch.setattr(prepared, "PLAN_SECONDS", 600.0)
    run("ANALYZE numbers")
    for _ in range(10):
        read()
    run("INSERT INTO numbers SELECT n, n FROM generate_series(2, 20000) AS n")
    [name] = prepared_names()
    monkeypatch.setattr(prepared, "PLAN_SECONDS", plan_seconds)
    assert read(20) == [(20,)]
    with connection.cursor() as cursor:
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        cursor.execute(f"EXPLAIN EXECUTE {name} (20)")
        assert plan in str(cursor.fetchall())


def test_engine_connection_tells_whether_a_pooler_is_between(monkeypatch):
    monkeypatch.setattr(engine_connection, "_startup", known(are_accepted=False))
    engine_connection.connect("default", "test").close()
    assert engine_connection.is_direct("default")
    monkeypatch.setattr(engine_connection, "_has_its_options", lambda opened: False)
    engine_connection.connect("default", "test").close()
    assert not engine_connection.is_direct("default")
