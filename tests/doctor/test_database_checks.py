"""Checks of other sessions, of the tables and of the indexes, each with its condition made real in PostgreSQL."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
from django.db import connection

from django_pgqueue.doctor import Level, sequence_checks, session, session_checks, storage_checks
from django_pgqueue.lifecycle import workers
from tests import helpers

from .conftest import assert_finding, find, run_sql


def process_of(connected) -> int:
    return int(connected.info.backend_pid)


# ------------------------------------------------------------------ sessions


def test_pinned_rows_names_the_session_until_it_ends(second, monkeypatch):
    second.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    second.execute("SELECT id FROM pgqueue_job")
    assert find("pinned_rows").level is Level.OK
    monkeypatch.setattr(session_checks, "PINNED_WARNING_SECONDS", 0.0)
    process = process_of(second)
    texts = (f"process {process}", "'pgqueue:test'", f"SELECT pg_terminate_backend({process});")
    assert_finding(find("pinned_rows"), Level.WARNING, *texts)
    monkeypatch.setattr(session_checks, "PINNED_ERROR_SECONDS", 0.0)
    assert find("pinned_rows").level is Level.ERROR
    second.execute("ROLLBACK")
    assert find("pinned_rows").level is Level.OK


def test_pinned_rows_slot_and_prepared_transaction_are_named(db, monkeypatch):
    """Neither can be made on the server of the tests, so the statement answers as if they existed."""
    rows = (
        "SELECT 'slot', 'a''b', NULL::int, '', 'inactive', NULL::float8, 200000 "
        "UNION ALL SELECT 'prepared', 'x', NULL, 'web', 'prepared', 4000, 5"
    )
    monkeypatch.setattr(session_checks, "PINNING", rows)
    texts = ("prepared transaction 'x'", "1 more", "ROLLBACK PREPARED 'x';", "pg_drop_replication_slot('a''b')")
    assert_finding(find("pinned_rows"), Level.ERROR, *texts)


@pytest.mark.parametrize("kind", ["slot", "session"])
def test_pinned_rows_running_standby_keeps_its_connection(db, monkeypatch, kind):
    """With hot_standby_feedback, a query on a standby pins rows. The server knows no start of it."""
    row = f"SELECT '{kind}', 'standby', 7, '', 'active', NULL::float8, 200000"
    monkeypatch.setattr(session_checks, "PINNING", row)
    texts = ("pinned row versions for 200,000 transactions", "End the long query on the standby")
    assert_finding(find("pinned_rows"), Level.WARNING, *texts)


def test_pinning_statement_reads_prepared_transactions_and_slots(db):
    """Its columns have one type in each part, also for the parts without rows here."""
    for part in ("pg_prepared_xacts", "pg_replication_slots", "pg_stat_progress_vacuum"):
        assert part in session_checks.PINNING


@pytest.mark.parametrize("check_id", ["pinned_rows", "idle_in_transaction"])
def test_hidden_sessions_are_never_reported_as_ok(role, check_id):
    with closing(helpers.connect()):
        assert find(check_id).level is Level.OK
        run_sql(f"SET LOCAL ROLE {role}")
        assert_finding(find(check_id), Level.WARNING, "Cannot see", f"GRANT pg_read_all_stats TO {role};")
        fix = find(check_id).fix
        run_sql("RESET ROLE")
        run_sql(fix)
        run_sql(f"SET LOCAL ROLE {role}")
        assert find(check_id).level is Level.OK


def test_idle_in_transaction_names_the_session_until_it_ends(second, monkeypatch):
    second.execute("BEGIN")
    assert find("idle_in_transaction").level is Level.OK
    monkeypatch.setattr(session_checks, "IDLE_WARNING_SECONDS", 0.0)
    texts = (f"process {process_of(second)}", f"pg_terminate_backend({process_of(second)})")
    assert_finding(find("idle_in_transaction"), Level.WARNING, "1 session idles", *texts)
    second.execute("COMMIT")
    assert find("idle_in_transaction").level is Level.OK


def test_replication_slot_unused_is_a_warning_until_dropped(engine):
    name = connection.settings_dict["NAME"][-60:]
    engine.execute("SELECT pg_create_physical_replication_slot(%s, true)", [name])
    try:
        finding = find("replication_slots")
        assert_finding(finding, Level.WARNING, f"'{name}' is unused and holds", f"pg_drop_replication_slot('{name}')")
    finally:
        engine.execute("SELECT pg_drop_replication_slot(%s)", [name])
    assert name not in str(find("replication_slots").data)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, Level.OK),
        ({"is_active": False}, Level.WARNING),
        ({"wal_status": "lost"}, Level.ERROR),
        ({"held_bytes": 10 * 1024**3}, Level.ERROR),
    ],
)
def test_slot_level_depends_on_use_and_size(changes, level):
    slot = {"is_active": True, "wal_status": "reserved", "held_bytes": 0, **changes}
    assert session_checks._slot_level(slot) is level


def test_notify_queue_fills_while_a_listener_is_in_a_transaction(engine, second, monkeypatch):
    monkeypatch.setattr(session_checks, "NOTIFY_WARNING", 1e-5)
    assert find("notify_queue").level is Level.OK
    second.execute("LISTEN doctor")
    second.execute("BEGIN")
    second.execute("SELECT 1")
    engine.execute("SELECT pg_notify('doctor', repeat('a', 7900) || n) FROM generate_series(1, 100) AS n")
    assert_finding(find("notify_queue"), Level.WARNING, "full", "End the oldest transaction")
    second.execute("ROLLBACK")
    second.execute("UNLISTEN doctor")
    assert find("notify_queue").level is Level.OK


# ------------------------------------------------------------------ tables and indexes


def fill_and_empty(engine, rows: int) -> None:
    """Insert and delete ready jobs, and write the statistics of this session at once."""
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, queue_name) "
        "SELECT 'noop', '{}', 'queue' || n FROM generate_series(1, %s) AS n",
        [rows],
    )
    engine.execute("DELETE FROM pgqueue_job")
    engine.execute("SELECT pg_stat_force_next_flush()")


def test_dead_rows_are_reported_until_vacuumed(engine, monkeypatch):
    engine.execute(f"VACUUM ANALYZE {', '.join(helpers.TABLES)}")
    engine.execute("ALTER TABLE pgqueue_job SET (autovacuum_enabled = off)")
    try:
        fill_and_empty(engine, 3000)
        monkeypatch.setattr(storage_checks, "DEAD_WARNING_FACTOR", 2.0)
        assert find("dead_rows").level is Level.OK
        monkeypatch.setattr(storage_checks, "DEAD_ROWS", 1000)
        finding = find("dead_rows")
        assert_finding(finding, Level.WARNING, "pgqueue_job, last vacuumed", "VACUUM (VERBOSE) pgqueue_job;")
        monkeypatch.setattr(storage_checks, "DEAD_ERROR_FACTOR", 2.0)
        assert find("dead_rows").level is Level.ERROR
        engine.execute(re.findall("VACUUM.*;", finding.fix)[0])
        assert find("dead_rows").level is Level.OK
    finally:
        engine.execute("ALTER TABLE pgqueue_job RESET (autovacuum_enabled)")


def test_dead_rows_limit_follows_the_options_of_the_table(db):
    def limits() -> dict[str, float]:
        return {each["table"]: each["autovacuum_at"] for each in find("dead_rows").data["tables"]}

    assert limits()["pgqueue_pause"] == pytest.approx(50, abs=5), "the server's defaults"
    run_sql("ALTER TABLE pgqueue_pause SET (autovacuum_vacuum_threshold = 777, autovacuum_vacuum_scale_factor = 0)")
    assert limits()["pgqueue_pause"] == 777


def test_autovacuum_disabled_for_a_table_is_an_error(db):
    assert_finding(find("autovacuum"), Level.OK, "Autovacuum is on for all")
    run_sql("ALTER TABLE pgqueue_execution SET (autovacuum_enabled = off)")
    finding = find("autovacuum")
    assert_finding(finding, Level.ERROR, "disabled for 'pgqueue_execution'")
    run_sql(finding.fix)
    assert find("autovacuum").level is Level.OK


def test_autovacuum_off_for_the_server_is_an_error(db, monkeypatch):
    """The server's setting would change for all tests that run at the same time, so only the answer is changed."""
    monkeypatch.setattr(storage_checks, "AUTOVACUUM", "SELECT false, true")
    assert_finding(find("autovacuum"), Level.ERROR, "autovacuum is off", "ALTER SYSTEM SET autovacuum = on;")
    run_sql("SET LOCAL track_counts = off")
    monkeypatch.undo()
    assert_finding(find("autovacuum"), Level.ERROR, "track_counts is off")


def test_autovacuum_behind_with_freezing_is_an_error(db, monkeypatch):
    monkeypatch.setattr(storage_checks, "FREEZE_FACTOR", 0.0)
    assert_finding(find("autovacuum"), Level.ERROR, "does not keep up with freezing", "VACUUM (FREEZE) pgqueue_job;")


def test_index_bloat_is_reported_until_reindexed(engine, monkeypatch):
    fill_and_empty(engine, 10_000)
    engine.execute("VACUUM ANALYZE pgqueue_job")
    assert find("index_bloat").level is Level.OK
    monkeypatch.setattr(storage_checks, "BLOAT_BYTES", 100_000)
    finding = find("index_bloat")
    assert_finding(finding, Level.WARNING, "bloated", "REINDEX INDEX CONCURRENTLY pgqueue_job_ready;")
    for statement in finding.fix.split(";")[:-1]:
        engine.execute(statement)
    assert find("index_bloat").level is Level.OK


def test_index_bloat_estimate_is_close_for_a_new_index(engine):
    """The estimate of an index that was just built is within a third of its size."""
    engine.execute(
        "INSERT INTO pgqueue_job (task_name, arguments, queue_name) "
        "SELECT 'noop', '{}', 'queue' || n FROM generate_series(1, 10000) AS n"
    )
    engine.execute("REINDEX TABLE pgqueue_job")
    engine.execute("ANALYZE pgqueue_job")
    sizes = {
        name: (size, estimate)
        for name, _, size, estimate in engine.execute(storage_checks.BLOAT, {"tables": ["pgqueue_job"]}).fetchall()
    }
    for name in ("pgqueue_job_ready", "pgqueue_job_pkey"):
        size, estimate = sizes[name]
        assert estimate == pytest.approx(size, rel=1 / 3), name


def test_index_bloat_never_analyzed_index_cannot_be_seen(db, monkeypatch):
    monkeypatch.setattr(storage_checks, "BLOAT", "SELECT 'pgqueue_job_ready', -1, 1000000000, 8192")
    assert_finding(find("index_bloat"), Level.WARNING, "Cannot see the entries of 'pgqueue_job_ready'", "ANALYZE")


def definition(name: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_indexdef(to_regclass(%s))", [name])
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("name", ["pgqueue_job_ready", "pgqueue_job_unique", "pgqueue_pause_name"])
def test_indexes_missing_one_is_named_and_its_fix_restores_it(db, name):
    assert_finding(find("indexes"), Level.OK, "exist and are valid")
    before = definition(name)
    run_sql("ALTER TABLE pgqueue_pause DROP CONSTRAINT pgqueue_pause_name" if "pause" in name else f"DROP INDEX {name}")
    finding = find("indexes")
    assert_finding(finding, Level.ERROR, f"Missing: '{name}'")
    assert ("INDEX CONCURRENTLY" in finding.fix) == ("pause" not in name)
    run_sql(finding.fix.replace("CONCURRENTLY ", ""))  # a transaction allows no concurrent build
    assert definition(name) == before
    assert find("indexes").level is Level.OK


def test_indexes_interrupted_build_is_reported_until_reindexed(engine, second):
    """A concurrent build of a unique index that fails leaves an invalid index behind."""
    helpers.make_jobs(engine, 2)
    with pytest.raises(Exception, match="could not create unique index"):
        engine.execute("CREATE UNIQUE INDEX CONCURRENTLY doctor_invalid ON pgqueue_job (task_name)")
    try:
        finding = find("indexes")
        assert_finding(finding, Level.ERROR, "Invalid: 'doctor_invalid'")
        engine.execute("DELETE FROM pgqueue_job WHERE id = (SELECT min(id) FROM pgqueue_job)")
        engine.execute(finding.fix)
        assert find("indexes").level is Level.OK
    finally:
        engine.execute("DROP INDEX doctor_invalid")


@pytest.mark.parametrize("check_id", ["dead_rows", "autovacuum", "index_bloat", "indexes"])
def test_storage_checks_without_tables_cannot_see_them(db, monkeypatch, check_id):
    monkeypatch.setattr(storage_checks, "tables", lambda: ["no_such_table"])
    assert_finding(find(check_id), Level.WARNING, "Cannot see the tables", "manage.py migrate")


def test_locked_table_does_not_block_the_doctor(engine, second, monkeypatch):
    monkeypatch.setattr(session, "LOCK_TIMEOUT_SECONDS", 0.1)
    second.execute("BEGIN")
    second.execute("LOCK TABLE pgqueue_worker IN ACCESS EXCLUSIVE MODE")
    finding = find("stale_workers")
    second.execute("ROLLBACK")
    assert_finding(finding, Level.WARNING, "Could not be examined: canceling statement due to lock timeout")


# ------------------------------------------------------------------ ids


@pytest.mark.promise("ids-ahead-reported")
def test_ids_row_ahead_of_its_sequence_is_reported_until_fixed(db):
    assert find("ids").level is Level.OK
    helpers.make_job(connection)
    assert find("ids").level is Level.OK
    run_sql("INSERT INTO pgqueue_job (id, task_name, arguments) VALUES (4000000000000000000, 't', '{}')")
    found = find("ids")
    fix = "SELECT setval(pg_get_serial_sequence('pgqueue_job', 'id'), 4000000000000000000);"
    assert_finding(found, Level.ERROR, "'pgqueue_job'", fix)
    run_sql(found.fix)
    assert find("ids").level is Level.OK
    assert helpers.make_job(connection) == 4000000000000000001


def test_ids_tables_are_all_that_draw_ids(db):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name FROM information_schema.columns WHERE table_schema = current_schema() "
            "AND column_name = 'id' AND is_identity = 'YES' AND table_name ~ '^pgqueue_'"
        )
        tables = {name for (name,) in cursor.fetchall()}
    drawn = tables - {"pgqueue_remote_token", *sequence_checks.OF_CLOCK}
    assert drawn == set(sequence_checks.TABLES)


def test_ids_of_workers_are_times_and_ahead_of_no_sequence(db):
    run_sql("SELECT nextval(pg_get_serial_sequence('pgqueue_worker', 'id'))")
    registered = workers.register_worker(
        connection, hostname="web-1", pid=1, version="1", queue_names="", concurrency=1
    )
    assert registered > 10**15
    assert find("ids").level is Level.OK
