"""The whole life of jobs with a role or a database that has odd settings: see `tests.odd_settings`."""

from __future__ import annotations

from contextlib import closing

import pytest
from django.contrib.auth.models import Group, User
from django.db import connections
from django.test import Client

from django_pgqueue import Batch, chain, control
from django_pgqueue.db import engine_connection
from django_pgqueue.models import Execution, Job
from django_pgqueue.testing import run_jobs
from tests.app import tasks
from tests.helpers import scalar
from tests.odd_settings import READABLE, UNREADABLE, odd_database
from tests.startup_proxy import StartupProxy

STATED = {"array_nulls", "transform_null_equals", "default_transaction_isolation"}
"""Settings that connections.md asks for, because nothing can set them behind a pooler that refuses options."""
ALL = {**READABLE, **UNREADABLE}
PINNED = {
    "extra_float_digits": "1",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "default_transaction_isolation": "read committed",
}


def test_engine_connection_overrides_odd_settings(engine):
    with odd_database(engine, ALL), closing(engine_connection.connect("default", "test")) as opened:
        assert {name: scalar(opened, f"SHOW {name}") for name in PINNED} == PINNED


@pytest.mark.parametrize("name", ["DateStyle", "TimeZone"])
def test_engine_connection_overrides_format_of_times_in_environment(engine, monkeypatch, name):
    """libpq sends these variables after the options."""
    monkeypatch.setenv("PGDATESTYLE", "German")
    monkeypatch.setenv("PGTZ", "Asia/Kathmandu")
    with closing(engine_connection.connect("default", "test")) as opened:
        assert scalar(opened, f"SHOW {name}").startswith(("ISO", "UTC"))


def test_engine_connection_usual_settings_need_no_statement(engine, monkeypatch):
    """Setting them by statements would cost each new connection round trips."""
    statements, execute = [], engine_connection.EngineConnection.execute

    def record(self, statement, *args, **options):
        statements.append(statement)
        return execute(self, statement, *args, **options)

    monkeypatch.setattr(engine_connection.EngineConnection, "execute", record)
    engine_connection.connect("default", "test").close()
    assert len(statements) == 2, "one checks the options, one the timeline"


def enqueue_each_kind() -> dict[int, str]:
    """Enqueue jobs of many kinds. Return the expected state of each."""
    batch = Batch()
    with batch:
        in_batch = tasks.add.using(batch=batch).enqueue_many([((1, n), {}) for n in range(3)])
    chained = chain(tasks.add.s(1, 2)).then(tasks.add, 3).enqueue()
    return {
        tasks.noop.enqueue("a\\b'c").pk: "succeeded",
        tasks.create_group.enqueue("atomic").pk: "succeeded",
        tasks.fail.enqueue().pk: "dead",
        tasks.fail_until.enqueue(2).pk: "succeeded",
        tasks.add.using(unique_key="once").enqueue(1, 2).pk: "succeeded",
        tasks.add.using(run_after=0.05).enqueue(1, 2).pk: "succeeded",
        **dict.fromkeys(in_batch, "succeeded"),
        **dict.fromkeys(chained.job_ids, "succeeded"),
    }


def states(expected: dict[int, str]) -> dict[int, str]:
    return dict(Job.objects.filter(pk__in=expected).values_list("pk", "state"))


@pytest.mark.parametrize("setting", [*READABLE, "all"])
def test_jobs_with_odd_settings_run_on_djangos_connection(engine, setting):
    """Enqueue, claim, complete, retry: the testing kit runs the worker's statements on Django's connection."""
    with odd_database(engine, READABLE if setting == "all" else {setting: READABLE[setting]}):
        expected = enqueue_each_kind()
        run_jobs(until=60)
        assert states(expected) == expected
        assert Group.objects.filter(name="atomic").exists()
        assert not Execution.objects.filter(outcome=None).exists()


@pytest.mark.django_db(transaction=True)
def test_operator_with_odd_settings_changes_jobs(engine):
    """The console finds jobs, and retries, cancels, moves and pauses on Django's connection."""
    with odd_database(engine, READABLE):
        client = Client()
        client.force_login(User.objects.create_superuser("operator"))
        dead, later, kept = tasks.fail.enqueue(), tasks.noop.using(run_after=3600).enqueue(), tasks.noop.enqueue()
        control.pause(task="tests.app.tasks.noop")
        run_jobs(until=60)
        for words in ("ready", "due", "scheduled", "paused", "retrying", "dead", "running"):
            assert client.get(f"/admin/pgqueue/job/?state={words}").status_code == 200
        for page in ("overview", "tasks", "queues", "limits"):
            assert client.get(f"/admin/pgqueue/job/{page}/", follow=True).status_code == 200, page
        for job in (dead, later, kept):
            assert client.get(f"/admin/pgqueue/job/{job.pk}/change/").status_code == 200
        assert Job.objects.filter(pk=dead.pk).retry() == 1
        assert Job.objects.filter(pk=later.pk).cancel() == 1
        control.resume(task="tests.app.tasks.noop")
        run_jobs(until=60)
        assert states({dead.pk: "", later.pk: "", kept.pk: ""}) == {
            dead.pk: "dead",
            later.pk: "cancelled",
            kept.pk: "succeeded",
        }
        assert Execution.objects.filter(job=dead, outcome="failed").count() == 4


@pytest.mark.process
def test_worker_with_odd_settings_runs_jobs(engine, start):
    """The report of this fault: every completion was refused, and the jobs stayed `running`."""
    with odd_database(engine, READABLE):
        expected = enqueue_each_kind()
        assert start("--until-empty").has_drained()
        assert states(expected) == expected


@pytest.mark.process
def test_worker_with_odd_settings_and_without_options_runs_jobs(engine, start):
    """A pooler that refuses options keeps the worker from setting anything, so the statements must not depend on it."""
    where = connections["default"].get_connection_params()
    with closing(StartupProxy(f"{where['host']}/.s.PGSQL.{where['port']}")) as proxy:
        proxy.answer = lambda startup: ("0A000", "no command-line options") if "options" in startup else None
        through = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": where["dbname"],
            "USER": where["user"],
            "HOST": "127.0.0.1",
            "PORT": str(proxy.port),
        }
        with odd_database(engine, {name: value for name, value in READABLE.items() if name not in STATED}):
            expected = enqueue_each_kind()
            assert start("--until-empty", database=through).has_drained()
            assert states(expected) == expected
        assert proxy.with_options().count(True) >= 2 and proxy.with_options().count(False) >= 2
