"""Checks of the server, of the way to it, and of what the role may do."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from django.db import connection, connections
from django.test import override_settings
from django.utils import timezone

from django_pgqueue.db.engine_connection import connect
from django_pgqueue.db.notifications import LISTENS
from django_pgqueue.doctor import Level, access_checks, server_checks
from django_pgqueue.doctor.access_checks import PURPOSES, needed_for
from django_pgqueue.doctor.server_checks import reset_statement
from django_pgqueue.doctor.session import Session
from django_pgqueue.models import Worker
from example_project.embedded.server import service_account
from tests.documents import blocks

from .conftest import assert_finding, change_alias, find, run_sql

SECURITY = "docs/production/security.md"
ROLES = {
    "enqueue jobs": "queue_enqueuer",
    "send events": "queue_sender",
    "run jobs": "queue_worker",
    "change jobs": "queue_operator",
    "archive and erase jobs": "queue_archivist",
    "fire schedules": "queue_scheduler",
}
VIEWING = ("queue_operator", "queue_archivist")
"""The roles that are members of `queue_viewer`."""


# ------------------------------------------------------------------ the server


def test_server_read_only_default_is_an_error(db):
    assert_finding(find("server"), Level.OK, "PostgreSQL")
    run_sql("SET default_transaction_read_only = on")
    assert_finding(find("server"), Level.ERROR, "default_transaction_read_only is on")


def test_server_old_version_is_an_error(db, monkeypatch):
    monkeypatch.setattr(server_checks, "MIN_VERSION", 99)
    assert_finding(find("server"), Level.ERROR, "not supported", "PostgreSQL 99")


def test_durability_asynchronous_commit_is_a_warning(db):
    assert_finding(find("durability"), Level.OK)
    run_sql("SET LOCAL synchronous_commit = off")
    assert_finding(find("durability"), Level.WARNING, "synchronous_commit is off")


def test_durability_without_fsync_is_an_error(db, monkeypatch):
    """Only a restart changes `fsync`, so the statement answers with the values of such a server."""
    monkeypatch.setattr(server_checks, "DURABILITY", "SELECT 'off', 'on', 'on'")
    assert_finding(find("durability"), Level.ERROR, "Off: fsync", "ALTER SYSTEM SET fsync = on;")


def test_connections_close_to_the_limit_are_reported(db):
    assert_finding(find("connections"), Level.OK)
    database = connection.settings_dict["NAME"]
    run_sql(f"ALTER DATABASE {database} CONNECTION LIMIT 1")
    assert_finding(find("connections"), Level.ERROR, "connections of the database", "ALTER DATABASE")
    run_sql(f"ALTER DATABASE {database} CONNECTION LIMIT 10000")
    run_sql("ALTER ROLE CURRENT_USER CONNECTION LIMIT 1")
    assert_finding(find("connections"), Level.ERROR, "connections of the role", "ALTER ROLE")


@pytest.mark.parametrize(("ahead", "level"), [(1.0, Level.OK), (10.0, Level.WARNING), (-100.0, Level.ERROR)])
def test_clock_difference_is_reported(db, monkeypatch, ahead, level):
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + ahead)
    finding = find("clock")
    assert_finding(finding, level)
    assert finding.data["difference_seconds"] == pytest.approx(-ahead, abs=0.5)


def test_role_settings_of_new_sessions_are_reported(alias):
    database = connection.settings_dict["NAME"]
    try:
        assert_finding(find("role_settings", alias), Level.OK)
        run_sql(f"ALTER DATABASE {database} SET statement_timeout = '1s'")
        run_sql(f"ALTER DATABASE {database} SET default_transaction_isolation = 'serializable'")
        change_alias(alias)
        texts = (
            "statement_timeout is 1000 ms",
            "'serializable'",
            f"ALTER DATABASE {database} RESET statement_timeout;",
        )
        finding = find("role_settings", alias)
        assert_finding(finding, Level.WARNING, *texts)
        run_sql(finding.fix)
        change_alias(alias)
        assert_finding(find("role_settings", alias), Level.OK)
    finally:
        run_sql(f"ALTER DATABASE {database} RESET ALL")


@pytest.mark.parametrize(
    ("stored", "fix"),
    [
        ("", "Reset jit in postgresql.conf, or in OPTIONS of DATABASES['default']."),
        ("DATABASE {database}", "ALTER DATABASE {database} RESET jit;"),
        ("ROLE {role}", "ALTER ROLE {role} RESET jit;"),
        ("ROLE {role} IN DATABASE {database}", "ALTER ROLE {role} IN DATABASE {database} RESET jit;"),
    ],
)
def test_reset_statement_names_the_place_of_the_setting(db, stored, fix):
    names = {"database": connection.settings_dict["NAME"], "role": connection.settings_dict["USER"]}
    if stored:
        run_sql(f"ALTER {stored.format(**names)} SET jit = off")
    if "ROLE" in stored:
        run_sql("ALTER DATABASE {database} SET jit = off".format(**names))
    assert reset_statement(Session("default"), "jit") == fix.format(**names)


# ------------------------------------------------------------------ a pooler, and LISTEN_DATABASE


@contextmanager
def pooler(mode: str, port: int) -> Iterator[dict[str, str]]:
    """Run PgBouncer in front of the test's server, and yield the settings that lead through it."""
    server, account = connection.settings_dict, service_account()  # PgBouncer refuses to run as root
    target = f"* = host={server['HOST']} port={server['PORT'] or 5432} user={server['USER']}"
    options = f"listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\nauth_type=any\npool_mode={mode}\n"
    with TemporaryDirectory(prefix="pgqd", dir="/tmp") as home:
        (Path(home) / "ini").write_text(
            f"[databases]\n{target}\n[pgbouncer]\n{options}ignore_startup_parameters=options\n"
        )
        if account:
            shutil.chown(home, account.pw_uid, account.pw_gid)
        process = subprocess.Popen(
            ["pgbouncer", "-q", f"{home}/ini"],
            stderr=subprocess.DEVNULL,
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
        )
        through = {"HOST": "127.0.0.1", "PORT": str(port)}
        try:
            wait_for(through | {"NAME": server["NAME"], "USER": server["USER"]})
            yield through
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(10)


def wait_for(settings: dict[str, str]) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            psycopg.connect(
                host=settings["HOST"], port=settings["PORT"], dbname=settings["NAME"], user=settings["USER"]
            ).close()
        except psycopg.OperationalError:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        else:
            return


@pytest.mark.skipif(shutil.which("pgbouncer") is None, reason="needs PgBouncer")
@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_pooler_and_its_mode_are_recognized(alias, unused_port, mode):
    assert_finding(find("pooler", alias), Level.OK, "No pooler")
    with pooler(mode, unused_port) as through:
        change_alias(alias, **through)
        finding = find("pooler", alias)
        if mode == "session":
            assert_finding(finding, Level.INFO, "keeps a server process")
        else:
            assert_finding(finding, Level.WARNING, "transaction mode", 'Set PGQUEUE["LISTEN_DATABASE"]')
            with override_settings(PGQUEUE={"LISTEN_DATABASE": "default"}):
                assert_finding(find("pooler", alias), Level.INFO, "names another alias")
                assert_finding(find("listen_database", alias), Level.OK, "same database")
            with override_settings(PGQUEUE={"LISTEN_DATABASE": "other"}):
                assert_finding(find("listen_database"), Level.WARNING, "pooler in transaction mode too")
            with override_settings(PGQUEUE={"NOTIFY": False}):
                assert_finding(find("pooler", alias), Level.INFO, "NOTIFY is off")
        connections[alias].close()


def test_listen_database_elsewhere_is_an_error(alias):
    with override_settings(PGQUEUE={"LISTEN_DATABASE": "other"}):
        assert_finding(find("listen_database"), Level.OK, "leads to the same database")
        change_alias(alias, NAME="postgres")
        assert_finding(find("listen_database"), Level.ERROR, "leads to another database than 'default'")
        change_alias(alias, NAME="no_such_database")
        assert_finding(find("listen_database"), Level.ERROR, "cannot be reached")
    with override_settings(PGQUEUE={"LISTEN_DATABASE": {"default": "other"}}):
        assert_finding(find("listen_database"), Level.ERROR, "cannot be reached")
    with override_settings(PGQUEUE={"LISTEN_DATABASE": {"other": "default"}}):
        assert_finding(find("listen_database"), Level.OK, "use the alias of the jobs")


def test_listening_reports_workers_that_poll(db):
    assert_finding(find("listening"), Level.OK)
    columns = {"hostname": "h", "pid": 1, "version": "v", "concurrency": 1}
    Worker.objects.create(**columns)
    assert_finding(find("listening"), Level.OK)  # it may still be testing its connection
    started = {"started_at": timezone.now() - timedelta(minutes=2)}
    Worker.objects.create(**columns, **started)
    assert_finding(find("listening"), Level.OK)  # a remote worker, or one job in the foreground: neither listens
    Worker.objects.create(**columns, **started, supervisor_pid=2)
    assert_finding(find("listening"), Level.WARNING, "1 worker is polling", "LISTEN_DATABASE")
    with closing(connect("default", f"remote-claims{LISTENS}")):
        run_sql("SELECT pg_stat_clear_snapshot()")
        assert_finding(find("listening"), Level.WARNING)  # the server of remote workers listens for them only
    with override_settings(PGQUEUE={"NOTIFY": False}):
        assert_finding(find("listening"), Level.OK, "NOTIFY is off")
    with closing(connect("default", f"fetcher{LISTENS}")):
        run_sql("SELECT pg_stat_clear_snapshot()")  # a transaction sees the sessions as it first read them
        assert_finding(find("listening"), Level.OK, "receive notifications: 1")


# ------------------------------------------------------------------ migrations and grants


def test_migrations_missing_one_is_an_error(db):
    assert_finding(find("migrations"), Level.OK)
    run_sql("DELETE FROM django_migrations WHERE app = 'pgqueue'")
    assert_finding(find("migrations"), Level.ERROR, "pgqueue.0001_initial", "manage.py migrate")


def grants() -> list[tuple[str, str, str]]:
    """Return the grants on page Security as role, privileges and relations, with the roles' names unchanged."""
    text = re.sub(r"--.*", "", blocks(SECURITY, "sql")[1])
    found = re.findall(r"GRANT ([^;]+?)\s+ON\s+(?:SEQUENCE )?([^;]+?)\s+TO (\w+);", text)
    return [(role, " ".join(privileges.split()), " ".join(relations.split())) for privileges, relations, role in found]


def privileges_of(role: str) -> set[tuple[str, str, str]]:
    """Return the privileges that the page gives a role: privilege, relation and column ("" for all)."""
    found = set()
    for of, privileges, relations in grants():
        for privilege, columns in re.findall(r"(\w+)(?: \(([^)]+)\))?", privileges):
            names = columns.split(", ") if columns else [""]
            if of == role:
                found |= {(privilege, table, name) for table in relations.split(", ") for name in names}
    return found


@pytest.mark.parametrize("purpose", PURPOSES)
def test_grants_of_each_purpose_are_those_of_the_page(purpose):
    """If this fails after a change of the page, change `PURPOSES` in `doctor/access_checks.py` in the same way."""
    needed = {
        (each.privilege, each.relation, column) for each in needed_for(purpose) for column in each.columns.split(", ")
    }
    inherited = "queue_viewer" if ROLES[purpose] in VIEWING else ""
    assert needed == privileges_of(ROLES[purpose]) | privileges_of(inherited)


def test_grants_first_privilege_belongs_to_one_purpose_only():
    needed_by = {purpose: needed_for(purpose) for purpose in PURPOSES}
    for purpose, needed in needed_by.items():
        first = access_checks._first(needed)
        others = {each for name, all_of in needed_by.items() if name != purpose for each in all_of}
        assert not [
            each
            for each in others
            if each[:2] == first[:2] and (not each.columns or first.columns in each.columns.split(", "))
        ], purpose


def test_grants_each_role_of_the_page_is_complete(db, role):
    run_sql(f"SET LOCAL ROLE {role}")
    assert_finding(find("grants"), Level.WARNING, "may neither enqueue")
    for purpose, group in ROLES.items():
        run_sql("RESET ROLE")
        for of, privileges, relations in grants():
            if of in (group, "queue_viewer" if group in VIEWING else ""):
                on = f"SEQUENCE {relations}" if relations.endswith("_id_seq") else relations
                run_sql(f"GRANT {privileges} ON {on} TO {role}")
        run_sql(f"SET LOCAL ROLE {role}")
        finding = find("grants")
        assert_finding(finding, Level.OK, purpose)
    assert finding.data["may"] == list(PURPOSES)


@pytest.mark.parametrize(
    ("revoked", "granted"),
    [
        ("UPDATE (progress_at) ON pgqueue_job", "UPDATE (state"),
        ("DELETE ON pgqueue_worker", "DELETE ON pgqueue_worker"),
        ("USAGE ON SEQUENCE pgqueue_execution_id_seq", "USAGE ON SEQUENCE pgqueue_execution_id_seq"),
    ],
)
def test_grants_missing_privilege_is_named_until_it_is_granted(db, role, revoked, granted):
    for of, privileges, relations in grants():
        if of == "queue_worker":
            on = f"SEQUENCE {relations}" if relations.endswith("_id_seq") else relations
            run_sql(f"GRANT {privileges} ON {on} TO {role}")
    run_sql(f"REVOKE {revoked} FROM {role}")
    run_sql(f"SET LOCAL ROLE {role}")
    finding = find("grants")
    assert_finding(finding, Level.ERROR, "may run jobs only in part", granted)
    run_sql("RESET ROLE")
    run_sql(finding.fix.partition("Or: ")[2])
    run_sql(f"SET LOCAL ROLE {role}")
    assert find("grants").level is Level.OK


def test_grants_without_tables_cannot_be_seen(db):
    run_sql("ALTER TABLE pgqueue_job RENAME TO gone")
    assert_finding(find("grants"), Level.WARNING, "Cannot see the tables", "manage.py migrate")


def test_check_without_privilege_says_what_it_cannot_see(db, role):
    run_sql(f"SET LOCAL ROLE {role}")
    for check_id in ("stale_workers", "unserved_queues", "leases", "schedules", "migrations"):
        finding = find(check_id)
        assert_finding(finding, Level.WARNING, "Cannot see", "security.md")
        assert "permission denied" in finding.what


# ------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("queue", "level", "text"),
    [
        ({}, Level.OK, "No settings conflict"),
        ({"NOTFY": True}, Level.ERROR, "PGQUEUE is invalid"),
        ({"IMMEDIATE": True}, Level.ERROR, "IMMEDIATE is on"),
        ({"LEASE": 3}, Level.WARNING, "LEASE is 3 s"),
        ({"NOTIFY": False}, Level.INFO, "NOTIFY is off"),
    ],
)
def test_settings_of_the_queue_are_reported(db, queue, level, text):
    with override_settings(PGQUEUE=queue):
        assert_finding(find("settings"), level, text)


def test_settings_debug_is_a_warning(db, settings):
    settings.DEBUG = True
    assert_finding(find("settings"), Level.WARNING, "DEBUG is on")


@pytest.mark.parametrize(
    ("database", "level", "text"),
    [
        ({"OPTIONS": {"pool": True}}, Level.WARNING, "has 4 connections for 10 jobs"),
        ({"OPTIONS": {"pool": {"max_size": 9}}}, Level.WARNING, "has 9 connections"),
        ({"OPTIONS": {"pool": {"max_size": 10}}}, Level.OK, ""),
        ({"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": False}, Level.INFO, "CONN_HEALTH_CHECKS is off"),
        ({"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}, Level.OK, ""),
        ({"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False}, Level.OK, ""),
    ],
)
def test_settings_of_the_database_are_reported(db, monkeypatch, database, level, text):
    for name, value in database.items():
        monkeypatch.setitem(connections["default"].settings_dict, name, value)
    assert_finding(find("settings"), level, text)
