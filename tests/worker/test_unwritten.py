"""Test what the completer does with completions that the database refuses."""

from __future__ import annotations

import time

import pytest
from django.core.management import call_command
from django.db import connections

from django_pgqueue.db import statements
from django_pgqueue.declared.steps import Suspension
from django_pgqueue.ground.endings import Ending
from django_pgqueue.states import StepKind
from django_pgqueue.worker.completion import unwritten as module
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.supervision.crash_charges import settle
from django_pgqueue.worker.supervision.heartbeat import ChildProcess
from django_pgqueue.worker.supervision.settlement import WITHOUT_SIGNALS
from tests import helpers

REFUSALS = ("P0001", "54000", "42501", "XX000", "42P01", "0A000", "55000")
"""SQLSTATEs that a user's trigger can raise. None of them is a data error or an integrity error."""


@pytest.fixture
def completer(committing):
    link = Link("default", "completer")
    yield Completer(link)
    link.close()


def report(claimed, ending=Ending.SUCCEEDED, **changes):
    now = time.monotonic()
    return Report(claimed, ending, now - 0.02, now - 0.01, **changes)


def write_all(completer):
    while len(completer):
        completer.tick()


def states(engine, claimed):
    return [helpers.state_of(engine, execution.job_id) for execution in claimed]


@pytest.mark.promise("bad-row-completions")
@pytest.mark.parametrize("sqlstate", REFUSALS)
def test_completer_trigger_refuses_one_others_succeed(engine, completer, sqlstate):
    helpers.make_jobs(engine, 201)
    claimed = helpers.claim_all(engine)
    bad = claimed[100]
    with helpers.users_trigger(engine, f"NEW.id = {bad.job_id} AND NEW.state = 'succeeded'", sqlstate):
        for execution in claimed:
            completer.hand_over(report(execution))
        write_all(completer)
    assert states(engine, [execution for execution in claimed if execution is not bad]) == ["succeeded"] * 200
    assert helpers.state_of(engine, bad.job_id) == "dead"
    error = helpers.execution_row(engine, bad.execution_id)["error"]
    assert "could not be stored" in error and "not this one" in error


@pytest.mark.promise("bad-row-completions")
@pytest.mark.parametrize("ending", [ending for ending in Ending if ending is not Ending.WRITTEN])
def test_completer_every_form_refused_others_are_written(engine, completer, ending):
    helpers.make_jobs(engine, 3)
    claimed = helpers.claim_all(engine)
    with helpers.users_trigger(engine, f"OLD.id = {claimed[1].job_id}", event="DELETE OR UPDATE"):
        for execution in claimed:
            suspension = Suspension("nap", 1.0, StepKind.SLEEP, 60.0) if ending is Ending.SUSPENDED else None
            completer.hand_over(report(execution, ending, suspension=suspension))
        write_all(completer)
        assert states(engine, [claimed[1]]) == ["running"]
        assert completer.ids() == {claimed[1].execution_id}
    assert "running" not in states(engine, [claimed[0], claimed[2]])


def test_completer_refused_completion_is_written_later(engine, completer, monkeypatch):
    monkeypatch.setattr(module, "LONGEST_PAUSE_SECONDS", 0.01)
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    changes = []
    completer = Completer(completer.link, on_unwritten=lambda ids: changes.append(list(ids)))
    with helpers.users_trigger(engine, "true"):
        completer.hand_over(report(claimed))
        write_all(completer)
        assert helpers.state_of(engine, claimed.job_id) == "running"
        assert completer.ids() == {claimed.execution_id}
    helpers.wait_until(lambda: completer.tick() and not completer.ids())
    assert helpers.state_of(engine, claimed.job_id) == "succeeded"
    assert changes == [[claimed.execution_id], []]


def test_completer_refused_completion_retries_with_backoff(engine, completer, caplog, monkeypatch):
    clock = helpers.Clock(monkeypatch, module)
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    with helpers.users_trigger(engine, "true"):
        completer.hand_over(report(claimed))
        intervals = []
        for _ in range(8):
            completer.tick()
            [kept] = completer.unwritten._waiting.values()
            intervals.append(round(kept.due_at - clock.now))
            kept.due_at = clock.now
    assert intervals == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (
        len([record for record in caplog.records if "the database refuses the results of 1 job" in record.message]) == 1
    )


def test_completer_refused_retry_still_counts_the_attempt(engine, completer):
    """A trigger that refuses the error text must not turn a failure with attempts left into a dead job."""
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    with helpers.users_trigger(engine, "NEW.error LIKE '%%secret%%'", table="pgqueue_execution"):
        completer.hand_over(report(claimed, Ending.FAILED, delay_seconds=5.0, error="a secret"))
        write_all(completer)
    row = helpers.job_row(engine, claimed.job_id)
    assert (row["state"], row["attempt"]) == ("ready", 1)
    assert "could not be stored" in helpers.execution_row(engine, claimed.execution_id)["error"]


def test_completer_arrow_in_latin1_keeps_the_attempts(engine, completer, monkeypatch):
    """A LATIN1 database refuses an arrow with this SQLSTATE. Another test below uses such a database."""
    helpers.make_job(engine)
    claimed = helpers.claim_one(engine)
    with helpers.users_trigger(engine, "NEW.error ~ '[^[:ascii:]]'", "22P05", table="pgqueue_execution"):
        completer.hand_over(report(claimed, Ending.FAILED, delay_seconds=5.0, error="a → b", traceback="→"))
        write_all(completer)
    assert helpers.job_row(engine, claimed.job_id)["state"] == "ready"
    execution = helpers.execution_row(engine, claimed.execution_id)
    assert (execution["error"], execution["traceback"]) == ("a \\u2192 b", "\\u2192")


@pytest.mark.parametrize("is_known", [True, False])
def test_completer_stale_prepared_statement_blames_no_row(engine, completer, monkeypatch, is_known):
    """A prepared statement can fail for every row, for example after a migration. The completion must not change.

    The server may also say so with an error that nobody knows.
    """
    if not is_known:
        monkeypatch.setattr(statements, "is_stale_plan", lambda error: False)
    helpers.make_jobs(engine, 4)
    claimed = helpers.claim_all(engine)
    for execution in claimed[:3]:
        completer.hand_over(report(execution))
        write_all(completer)
    with completer.link.use() as connection:
        connection.pgconn.exec_(b"DEALLOCATE ALL")  # psycopg does not notice this
    completer.hand_over(report(claimed[3]))
    write_all(completer)
    assert states(engine, claimed) == ["succeeded"] * 4
    with completer.link.use() as renewed:
        assert renewed is not connection, "the completer must reconnect, so that its statements are prepared again"


@pytest.fixture
def latin1_alias(engine, django_db_blocker):
    """The alias of a LATIN1 database that has the tables."""
    name = "test_pgqueue_latin1"
    engine.execute(f"DROP DATABASE IF EXISTS {name}")
    engine.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    settings = {**connections.settings["default"], **connections["default"].settings_dict, "NAME": name}
    connections.settings["latin"] = settings
    with django_db_blocker.unblock():
        connections["latin"].connect()
        call_command("migrate", "pgqueue", database="latin", verbosity=0)
        connections["latin"].close()
    yield "latin"
    del connections["latin"]
    del connections.settings["latin"]
    engine.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.mark.slow
@pytest.mark.promise("defect-latin1-database")
def test_completer_latin1_database_keeps_the_attempts(latin1_alias):
    link = Link(latin1_alias, "completer")
    completer = Completer(link)
    try:
        with link.use() as connection:
            helpers.make_jobs(connection, 2)
            failing, succeeding = helpers.claim_all(connection)
        completer.hand_over(report(failing, Ending.FAILED, delay_seconds=5.0, error="a → b", traceback="→"))
        completer.hand_over(report(succeeding, result='"\\u2192"'))
        write_all(completer)
        with link.use() as connection:
            row = helpers.job_row(connection, failing.job_id)
            assert (row["state"], row["attempt"]) == ("ready", 1)
            assert helpers.execution_row(connection, failing.execution_id)["error"] == "a \\u2192 b"
            assert helpers.state_of(connection, succeeding.job_id) == "succeeded"
    finally:
        link.close()


@pytest.mark.promise("defect-array-nulls-off")
def test_connect_array_nulls_off_is_overruled(engine, completer):
    helpers.make_jobs(engine, 2)
    claimed = helpers.claim_all(engine)
    [[database]] = engine.execute("SELECT quote_ident(current_database())").fetchall()
    names = ("array_nulls = off", "transform_null_equals = on", "DateStyle = 'SQL, DMY'")
    for name in names:
        engine.execute(f"ALTER DATABASE {database} SET {name}")
    try:
        completer.hand_over(report(claimed[0], Ending.FAILED))
        completer.hand_over(report(claimed[1], Ending.FAILED, delay_seconds=5.0))
        write_all(completer)
        with completer.link.use() as connection:
            assert helpers.scalar(connection, "SHOW array_nulls") == "on"
            assert helpers.scalar(connection, "SHOW DateStyle").startswith("ISO")
    finally:
        for name in names:
            engine.execute(f"ALTER DATABASE {database} RESET {name.split()[0]}")
    assert states(engine, claimed) == ["dead", "ready"]


@pytest.mark.parametrize("refused", [False, True])
def test_settle_unwritten_completion_counts_the_attempt(engine, refused):
    """Otherwise a job whose completion cannot be written would run again with each new process."""
    helpers.make_jobs(engine, 2)
    ended, other = helpers.claim_all(engine)
    process = ChildProcess(ProcessState(2), pid=1, orders=0, worker_id=1, expected_to_end=True)
    process.state.set_unwritten([ended.execution_id])
    link = Link("default", "supervisor")
    try:
        with helpers.users_trigger(engine, f"{refused} AND NEW.id = {ended.job_id}"):
            assert settle(link, process, WITHOUT_SIGNALS, by_default=True)
        rows = [helpers.job_row(engine, execution.job_id) for execution in (ended, other)]
        state = "running" if refused else "ready"
        assert [(row["state"], row["attempt"]) for row in rows] == [(state, 1), ("ready", 0)]
        helpers.end_lease(engine)
        helpers.rescue(engine)
        assert helpers.job_row(engine, ended.job_id)["attempt"] == 1
    finally:
        link.close()
