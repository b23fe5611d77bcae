"""Test that a worker refuses the database of another installation, and that its check costs a claim nothing."""

from __future__ import annotations

import logging

import psycopg
import pytest
from django.test import override_settings

from django_pgqueue import health
from django_pgqueue.lifecycle import installations, workers
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime import clone_guard as module
from django_pgqueue.worker.runtime.clone_guard import CloneGuard, ForeignDatabase, clone_guard, difference
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from django_pgqueue.worker.supervision.health_thread import HealthFile
from django_pgqueue.worker.supervision.heartbeat import ChildProcess, HeartbeatSender
from tests import helpers

PRODUCTION = override_settings(PGQUEUE={"ENVIRONMENT": "production"})
STAGING = override_settings(PGQUEUE={"ENVIRONMENT": "staging"})


@pytest.fixture
def guard(committing, monkeypatch):
    """The guard of this process, on, as in a worker. Connections that the test opens itself are not guarded."""
    for name, value in vars(CloneGuard()).items():
        monkeypatch.setattr(clone_guard, name, value)
    clone_guard.start("default")
    return clone_guard


def restore_dump(connection) -> None:
    """Add the row of another server, as a restored dump does."""
    connection.execute(
        "INSERT INTO pgqueue_installation (id, system_identifier, database_oid, environment, adopted_by) "
        "VALUES (1, '7', 5, '', 'the first worker, on db1')"
    )


def test_first_worker_records_its_installation(engine):
    with PRODUCTION:
        assert difference(engine) == ""
        assert difference(engine) == ""
        own, [recorded] = installations.read_installations(engine, "production")
    installations.record_installation(engine, own._replace(environment="late"), "")
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_installation") == 1
    assert recorded.identity == own
    assert own.environment == "production"
    assert own.system_identifier == helpers.scalar(engine, "SELECT system_identifier::text FROM pg_control_system()")
    assert own.database_oid > 0
    assert recorded.adopted_by.startswith("the first worker, on ")


@pytest.mark.promise("clone-guard")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("environment = 'production'", "environment 'production', not 'staging'"),
        ("system_identifier = '7'", "server 7, not "),
        ("database_oid = 5", "database with OID 5, not "),
        ("id = id", ""),
    ],
)
def test_difference_in_each_part_is_reported(engine, change, words):
    with STAGING:
        difference(engine)
        engine.execute(f"UPDATE pgqueue_installation SET {change}")
        reason = difference(engine)
    assert words in reason
    assert bool(reason) is bool(words)


def test_dump_restored_into_own_tables_is_reported(engine):
    """The row of the dump has another id than the worker's own, so the restore adds it."""
    difference(engine)
    restore_dump(engine)
    assert "server 7, not " in difference(engine)
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_installation") == 2


def test_two_first_workers_at_once_refuse_each_other(engine, monkeypatch):
    original = installations.record_installation

    def record_both(connection, identity, adopted_by):
        original(connection, identity, adopted_by)
        restore_dump(connection)

    monkeypatch.setattr(installations, "record_installation", record_both)
    assert "server 7, not " in difference(engine)


def test_ordinary_role_reads_the_system_identifier(engine):
    engine.execute("BEGIN; CREATE ROLE pgqueue_ordinary; SET ROLE pgqueue_ordinary")
    try:
        [[identifier]] = engine.execute("SELECT system_identifier::text FROM pg_control_system()").fetchall()
    finally:
        engine.execute("ROLLBACK")
    assert identifier.isdigit()


def test_system_identifier_without_privilege_is_unknown(engine):
    engine.execute(
        "BEGIN; CREATE ROLE pgqueue_ordinary; GRANT SELECT ON pgqueue_installation TO pgqueue_ordinary; "
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; SET ROLE pgqueue_ordinary"
    )
    try:
        own, recorded = installations.read_installations(engine, "")
    finally:
        engine.execute("ROLLBACK")
    assert own.system_identifier == ""
    assert own.database_oid > 0
    assert recorded == []


def test_link_to_foreign_database_is_closed_before_use(engine, guard):
    restore_dump(engine)
    link = Link("default", "test")
    with pytest.raises(ForeignDatabase, match=r"belongs to another installation .* run `manage.py pgqueue adopt`"):
        link.use().__enter__()
    assert guard.is_foreign
    assert link.open_connection is None
    assert isinstance(ForeignDatabase(), psycopg.Error)  # services take it for a lost connection, and try again
    engine.execute("DELETE FROM pgqueue_installation")
    with link.use():
        assert not guard.is_foreign
    link.close()


def test_link_that_stays_connected_sends_no_further_check(engine, guard):
    link = Link("default", "test")
    with link.use():
        restore_dump(engine)
    with link.use() as connection:
        assert helpers.scalar(connection, "SELECT count(*) FROM pgqueue_installation") == 2
    link.close()


def test_link_without_supervisor_is_not_guarded(engine):
    """`manage.py pgqueue run` and the tests of applications use links too."""
    restore_dump(engine)
    link = Link("default", "foreground")
    with link.use() as connection:
        assert helpers.scalar(connection, "SELECT 1") == 1
    link.close()


def test_heartbeat_finds_dump_restored_under_the_worker(engine, guard):
    worker_id = workers.register_worker(engine, hostname="h", pid=1, version="v", queue_names="", concurrency=1)
    sender = HeartbeatSender(Link("default", "supervisor"), Options(database="default"))
    process = ChildProcess(ProcessState(1), 1, 0, worker_id)
    sender.send([process])
    lease = helpers.rows_of(engine, "pgqueue_worker")[worker_id]["lease_expires_at"]
    restore_dump(engine)
    sender.due_at = 0.0
    with pytest.raises(ForeignDatabase):
        sender.send([process])
    assert helpers.rows_of(engine, "pgqueue_worker")[worker_id]["lease_expires_at"] == lease
    assert guard.is_foreign


def test_guard_off_sends_no_statement(engine):
    restore_dump(engine)
    engine.close()
    with override_settings(PGQUEUE={"CLONE_GUARD": "off"}):
        off = CloneGuard()
        off.start("default")
        off.check(engine)
        assert off.reason_to_wait("default") == ""


def test_guard_warn_logs_and_allows(engine, caplog):
    restore_dump(engine)
    with override_settings(PGQUEUE={"CLONE_GUARD": "warn"}):
        warning = CloneGuard()
        warning.start("default")
        warning.check(engine)
        warning.check(engine)
    assert not warning.is_foreign
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "belongs to another installation" in record.message


def test_reason_to_wait_is_logged_once_a_minute(engine, guard, caplog, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    restore_dump(engine)
    for now[0] in (1000.0, 1002.0, 1059.0, 1061.0):
        assert "belongs to another installation" in guard.reason_to_wait("default")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    engine.execute("DELETE FROM pgqueue_installation")
    assert guard.reason_to_wait("default") == ""
    restore_dump(engine)
    assert guard.reason_to_wait("default")
    assert len(caplog.records) == 3


def test_health_file_of_foreign_database_is_alive_but_not_ready(tmp_path):
    path = str(tmp_path / "health.json")
    memory = WorkerMemory(1)
    memory.round_finished(is_foreign=True)
    HealthFile(path, HealthReport(memory)).write()
    assert health.judge(path)[0]
    is_ready, summary = health.judge(path, ready=True)
    assert not is_ready
    assert summary.startswith("foreign database since ")
