"""Test that what a job leaves on its thread's database connection does not reach the next job."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.core.cache import caches
from django.db import connections

from django_pgqueue.db import engine_connection
from django_pgqueue.db.engine_connection import KEEPALIVE, EngineConnection
from django_pgqueue.models import Job
from django_pgqueue.settings.conf import get_settings
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
def test_changes_the_session_detects_lasting_statements(statement, changes):
    assert changes_the_session(statement) is changes


SPOILED = [
    *("transaction", "atomic", "closed", "killed", "SET statement_timeout = '7s'"),
    *("SELECT set_config('statement_timeout', '7s', false)", "SELECT pg_advisory_lock(42)"),
    "CREATE TEMP TABLE left_behind (a int)",
]


@pytest.mark.process
def test_next_job_after_changed_session_gets_clean_connection(start):
    """Each job that changes its session is followed by a job that reads the session's state, in order, on one slot."""
    inspections = {}
    for kind in SPOILED:
        tasks.spoil.enqueue(kind)
        inspections[tasks.session_state.enqueue().pk] = kind
    assert start("--concurrency", "1", "--until-empty").has_drained()
    found = {kind: Job.objects.values_list("state", "result").get(pk=pk) for pk, kind in inspections.items()}
    assert found == dict.fromkeys(SPOILED, ("succeeded", CLEAN))
    assert not Group.objects.exists()


@pytest.mark.process
def test_connection_after_clean_job_is_reused(start):
    jobs = [tasks.backend.enqueue() for _ in range(10)]
    assert start("--concurrency", "1", "--until-empty").has_drained()
    assert len(set(Job.objects.filter(pk__in=[job.pk for job in jobs]).values_list("result", flat=True))) == 1


@pytest.mark.process
def test_async_orm_in_many_jobs_uses_one_connection_and_thread(start):
    jobs = [tasks.async_orm.enqueue() for _ in range(10)]
    assert start("--until-empty").has_drained()
    used = {tuple(job.result) for job in Job.objects.filter(pk__in=[job.pk for job in jobs])}
    assert len(used) == 1
    [(thread, _)] = used
    assert thread != threading.current_thread().name


def test_notice_lost_servers_sets_timeouts_and_keeps_options(monkeypatch):
    monkeypatch.setattr(engine_connection, "_for_django", {})
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {"keepalives_idle": 77})
    notice_lost_servers()
    job_params = connections["default"].get_connection_params()
    assert (job_params["keepalives_idle"], job_params["tcp_user_timeout"]) == (77, get_settings().LEASE * 1000)
    engine_params = {}
    monkeypatch.setattr(EngineConnection, "connect", lambda **params: engine_params.update(params) or SimpleNamespace())
    monkeypatch.setattr(engine_connection, "_has_its_options", lambda connection: True)
    monkeypatch.setattr(engine_connection, "refuse_an_old_primary", lambda *_, **__: None)
    engine_connection.connect("default", "test")
    assert (engine_params["keepalives_idle"], engine_params["tcp_user_timeout"]) == (77, KEEPALIVE["tcp_user_timeout"])


def test_after_job_server_lost_closes_the_connection(new_connection, monkeypatch):
    connection = connections["default"]
    connection.ensure_connection()
    monkeypatch.setattr(connection, "execute_wrappers", [])
    monkeypatch.setattr(django_connections._here, "watched", [django_connections.Watched(connection)])
    pid, other = connection.connection.info.backend_pid, new_connection()
    scalar(other, "SELECT pg_terminate_backend(%s)", [pid])
    wait_until(lambda: not other.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).rowcount)
    django_connections.after_job()
    assert connection.connection is None


def test_clean_context_omits_variables_of_its_thread():
    user: ContextVar[dict[str, str] | None] = ContextVar("held", default=None)
    user.set({"user": "of another job"})
    context = django_connections.clean_context()
    assert context.run(user.get) is None
    cache = context.run(lambda: caches["default"])
    assert context.copy().run(lambda: caches["default"]) is cache, "all jobs of a thread share one cache connection"
