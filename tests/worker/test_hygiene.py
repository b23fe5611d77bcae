"""What a job leaves on its thread's connection does not reach the next one."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.core.cache import caches
from django.db import connections

from django_pgqueue.conf import get_settings
from django_pgqueue.db import engine_connection
from django_pgqueue.db.engine_connection import KEEPALIVE, EngineConnection
from django_pgqueue.models import Job
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.django_connections import changes_the_session, notice_lost_servers
from tests.app import tasks
from tests.helpers import scalar, wait_until

CLEAN = ["0", "0", "0", "False", "True"]


@pytest.mark.parametrize(
    ("statement", "changes"),
    [
        ("SELECT 1", False),
        ('UPDATE "app_x" SET a = 1', False),
        ("  insert into x values (1)", False),
        ("SET LOCAL statement_timeout = 1", False),
        ("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", False),
        ("SAVEPOINT s1", False),
        ("SET statement_timeout = 1", True),
        ("set search_path to x", True),
        ("SELECT set_config('x.y', 'z', false)", True),
        ("SELECT pg_advisory_lock(1)", True),
        ("LISTEN x", True),
        ("CREATE TEMP TABLE x (a int)", True),
        ("PREPARE p AS SELECT 1", True),
        ("DECLARE c CURSOR WITH HOLD FOR SELECT 1", True),
    ],
)
def test_statements_that_last_are_told_from_those_that_do_not(statement, changes):
    assert changes_the_session(statement) is changes


@pytest.mark.process
@pytest.mark.parametrize(
    "kind",
    [
        "transaction",
        "atomic",
        "closed",
        "killed",
        "SET statement_timeout = '7s'",
        "SELECT set_config('statement_timeout', '7s', false)",
        "SELECT pg_advisory_lock(42)",
        "CREATE TEMP TABLE left_behind (a int)",
    ],
)
def test_the_next_job_finds_a_clean_connection(start, kind):
    tasks.spoil.using(priority=10).enqueue(kind)
    job = tasks.session_state.enqueue()
    assert start("--concurrency", "1", "--until-empty").has_drained()
    job.refresh_from_db()
    assert (job.state, job.result) == ("succeeded", CLEAN)
    assert not Group.objects.exists()


@pytest.mark.process
def test_connections_are_kept_between_jobs(start):
    jobs = [tasks.backend.enqueue() for _ in range(10)]
    assert start("--concurrency", "1", "--until-empty").has_drained()
    assert len(set(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("result", flat=True))) == 1


@pytest.mark.process
def test_the_asynchronous_orm_has_one_connection_on_one_thread(start):
    jobs = [tasks.async_orm.enqueue() for _ in range(10)]
    assert start("--until-empty").has_drained()
    where = {tuple(job.result) for job in Job.objects.filter(pk__in=[job.pk for job in jobs])}
    assert len(where) == 1
    [(thread, _)] = where
    assert thread != threading.current_thread().name


def test_the_jobs_connections_notice_a_server_that_is_gone_and_the_workers_own_sooner(monkeypatch):
    monkeypatch.setattr(engine_connection, "_for_django", {})
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {"keepalives_idle": 77})
    notice_lost_servers()
    jobs = connections["default"].get_connection_params()
    assert (jobs["keepalives_idle"], jobs["tcp_user_timeout"]) == (77, get_settings().LEASE * 1000)
    asked = {}
    monkeypatch.setattr(EngineConnection, "connect", lambda **params: asked.update(params) or SimpleNamespace())
    monkeypatch.setattr(engine_connection, "_has_its_options", lambda connection: True)
    monkeypatch.setattr(engine_connection, "refuse_an_old_primary", lambda connection, alias: None)
    engine_connection.connect("default", "test")
    assert (asked["keepalives_idle"], asked["tcp_user_timeout"]) == (77, KEEPALIVE["tcp_user_timeout"])


def test_a_server_lost_after_a_jobs_last_statement_is_no_error_of_the_cleaning(new_connection, monkeypatch):
    connection = connections["default"]
    connection.ensure_connection()
    monkeypatch.setattr(connection, "execute_wrappers", [])
    monkeypatch.setattr(django_connections._here, "watched", [django_connections.Watched(connection)])
    pid, other = connection.connection.info.backend_pid, new_connection()
    scalar(other, "SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: not other.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount)
    django_connections.after_job()
    assert connection.connection is None


def test_clean_context_has_nothing_of_its_thread():
    held: ContextVar[dict[str, str] | None] = ContextVar("held", default=None)
    held.set({"user": "of another job"})
    context = django_connections.clean_context()
    assert context.run(held.get) is None
    cache = context.run(lambda: caches["default"])
    assert context.copy().run(lambda: caches["default"]) is cache, "connected once for all jobs of a thread"
