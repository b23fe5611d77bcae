"""Checks of workers, queues, leases, timeouts and schedules."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import F
from django.test import override_settings
from django.utils import timezone

from django_pgqueue import Limit, __version__, control
from django_pgqueue.doctor import Level, job_checks
from django_pgqueue.doctor.job_checks import TIMEOUT_CLASS
from django_pgqueue.exceptions import TaskTimeout
from django_pgqueue.models import Execution, Schedule, Worker
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.worker.execution.error_text import class_path
from tests.admin.conftest import add_execution
from tests.app import tasks

from .conftest import assert_finding, find, run_sql

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
INSTALLATION = (
    "INSERT INTO pgqueue_installation (id, system_identifier, database_oid, environment, adopted_by) "
    "VALUES (1, %s, %s, %s, 'the first worker, on db1')"
)


def add_worker(silent: timedelta = timedelta(), **columns: Any) -> Worker:
    values = {"hostname": "web-1", "pid": 7, "version": __version__, "concurrency": 1, **columns}
    return Worker.objects.create(last_heartbeat_at=timezone.now() - silent, **values)


def test_stale_workers_only_lost_ones_of_the_last_day():
    add_worker()
    add_worker(silent=3 * MINUTE, stopped_at=timezone.now())
    add_worker(silent=timedelta(days=3))
    add_worker(silent=5 * MINUTE, queue_names="job 7")
    finding = find("stale_workers")
    assert_finding(finding, Level.OK, "1 worker is running")
    assert (finding.data["live"], finding.data["older"]) == (1, 1)
    lost = add_worker(silent=3 * MINUTE, hostname="a\x1b[31m")
    assert_finding(find("stale_workers"), Level.WARNING, r"1 worker ended", r"'a\x1b[31m'", "silent for 3 min")
    with override_settings(PGQUEUE={"LEASE": 120}):
        assert find("stale_workers").level is Level.OK
    Worker.objects.filter(pk=lost.pk).update(stopped_at=timezone.now())
    assert find("stale_workers").level is Level.OK


def test_installation_of_a_restored_dump_is_reported(role):
    assert_finding(find("installation"), Level.OK, "to none yet")
    run_sql(INSTALLATION, "7", 5, "prod\x1b")
    found = find("installation")
    assert_finding(found, Level.ERROR, "wait and run no job", r"environment 'prod\x1b', not ''; server 7, not ")
    assert_finding(found, Level.ERROR, "database with OID 5, not ", "manage.py pgqueue adopt --dry-run")
    with override_settings(PGQUEUE={"CLONE_GUARD": "warn"}):
        assert_finding(find("installation"), Level.WARNING, "log a warning and run its jobs")
    with override_settings(PGQUEUE={"CLONE_GUARD": "off"}):
        assert_finding(find("installation"), Level.OK, "CLONE_GUARD is off")
    run_sql("UPDATE pgqueue_installation SET environment = '', database_oid = %s", own_oid())
    assert_finding(find("installation"), Level.ERROR, "installation: server 7, not ")
    run_sql("UPDATE pgqueue_installation SET system_identifier = (SELECT system_identifier FROM pg_control_system())")
    assert_finding(find("installation"), Level.OK, "belongs to this installation")
    run_sql("UPDATE pgqueue_installation SET system_identifier = ''")
    assert_finding(find("installation"), Level.WARNING, "Cannot see whether", "GRANT EXECUTE ON FUNCTION")
    run_sql("UPDATE pgqueue_installation SET environment = 'prod'")
    assert_finding(find("installation"), Level.ERROR, "installation: environment 'prod', not ''.")


def test_installation_without_the_identifier_of_the_server_compares_the_rest(role):
    run_sql(INSTALLATION, "7", own_oid(), "")
    run_sql("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    run_sql(f"GRANT SELECT ON pgqueue_installation TO {role}")
    run_sql(f"SET LOCAL ROLE {role}")
    assert_finding(find("installation"), Level.WARNING, "Cannot see whether", f"TO {role};")
    run_sql("RESET ROLE")
    run_sql("UPDATE pgqueue_installation SET database_oid = 5")
    run_sql(f"SET LOCAL ROLE {role}")
    assert_finding(find("installation"), Level.ERROR, "installation: database with OID 5, not ")


def own_oid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT oid::bigint FROM pg_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


def test_worker_versions_that_differ_are_reported():
    assert_finding(find("worker_versions"), Level.OK, "No worker")
    add_worker()
    assert_finding(find("worker_versions"), Level.OK, "version of this process")
    old = add_worker(version="0.0.9")
    assert_finding(find("worker_versions"), Level.WARNING, "'0.0.9'", "2 versions")
    Worker.objects.exclude(pk=old.pk).delete()
    assert_finding(find("worker_versions"), Level.INFO, "'0.0.9'")


def test_worker_versions_warn_of_mixed_releases():
    """The version of the package alone says nothing about the project's own code."""
    add_worker(release="v1", started_at=timezone.now() - 60 * MINUTE)
    new = add_worker(release="v2", started_at=timezone.now() - 10 * MINUTE)
    assert_finding(find("worker_versions"), Level.OK, "version of this process")
    Worker.objects.filter(pk=new.pk).update(started_at=timezone.now() - 20 * MINUTE)
    assert_finding(find("worker_versions"), Level.WARNING, "2 releases for 20 min", "'v1', 'v2'")


def test_unserved_queues_are_those_that_no_worker_serves(make_job):
    assert_finding(find("unserved_queues"), Level.INFO, "No worker is running")
    make_job(queue_name="reports", run_after=timezone.now() - 5 * MINUTE)
    assert_finding(find("unserved_queues"), Level.ERROR, "No worker is running for 1 queue", "'reports'", "5 min")
    add_worker(queue_names="mail,pdf")
    add_worker(silent=3 * MINUTE)
    assert_finding(find("unserved_queues"), Level.ERROR, "No worker serves 1 queue", "runworker --queues reports")
    some = add_worker(queue_names="mail,reports")
    assert find("unserved_queues").level is Level.OK
    some.delete()
    some = add_worker(queue_names="reports=2,mail=")
    assert find("unserved_queues").level is Level.OK
    some.delete()
    some = add_worker(queue_names="mail=2,*=5")
    assert find("unserved_queues").level is Level.OK
    some.delete()
    control.pause("reports")
    assert find("unserved_queues").level is Level.OK
    control.resume("reports")
    assert find("unserved_queues").level is Level.ERROR
    add_worker()
    assert find("unserved_queues").level is Level.OK


def test_unserved_queues_count_jobs_with_a_limit(make_job, monkeypatch):
    monkeypatch.setattr(registry, "_limits", {"imports": Limit("imports", key="{a}", concurrency=1)})
    make_job(queue_name="reports", run_after=timezone.now() - 5 * MINUTE, limit_key="imports:7")
    assert_finding(find("unserved_queues"), Level.ERROR, "No worker is running for 1 queue", "'reports'", "5 min")


def test_undeclared_limits_of_due_jobs_are_reported(make_job, monkeypatch):
    monkeypatch.setattr(registry, "_limits", {"imports": Limit("imports", concurrency=1)})
    make_job(limit_key="imports")
    make_job(limit_key="other", run_after=timezone.now() + MINUTE)
    assert find("undeclared_limits").level is Level.OK
    for key in ("import:7", "import:8", "reports"):
        make_job(limit_key=key)
    finding = find("undeclared_limits")
    assert_finding(finding, Level.WARNING, "have 2 limits that no task", "'import', 'reports'.", "mean 'imports' inst")
    assert finding.data == {"undeclared": {"import": 2, "reports": 1}}


def test_unserved_queues_new_and_scheduled_jobs_are_not_reported(make_job):
    make_job(queue_name="soon", run_after=timezone.now() + MINUTE)
    make_job(queue_name="new", run_after=timezone.now() - MINUTE / 2)
    assert find("unserved_queues").level is Level.INFO


@pytest.mark.parametrize(
    ("left", "level", "text"),
    [
        (50, Level.OK, "1 lease is open"),
        (20, Level.WARNING, "Heartbeats are late: 1 lease of 1"),
        (-5, Level.WARNING, "1 lease of 1 expired"),
        (-60, Level.ERROR, "no worker has rescued the jobs"),
    ],
)
def test_leases_late_and_expired_ones_are_reported(make_job, left, level, text):
    assert find("leases").level is Level.OK
    make_job("running")
    Execution.objects.update(
        lease_expires_at=timezone.now() + timedelta(seconds=left), started_at=timezone.now() - timedelta(seconds=300)
    )
    finding = find("leases")
    assert_finding(finding, level, text)
    assert finding.data["late_and_long"] == (left < 30)
    assert finding.data["longest_run_seconds"] == pytest.approx(300, abs=5)


def test_leases_recent_crashes_are_reported_for_an_hour(make_job):
    add_execution(make_job("dead"), outcome="crashed")
    assert_finding(find("leases"), Level.WARNING, "1 execution of the newest 1,000 crashed")
    Execution.objects.update(finished_at=F("finished_at") - timedelta(hours=1))
    assert find("leases").level is Level.OK


def add_runs(make_one, task_name: str, *, seconds: float, count: int = 20, **columns: Any) -> None:
    ended = timezone.now()
    for _ in range(count):
        started = ended - timedelta(seconds=seconds)
        job = make_one("succeeded", task_name=task_name)
        add_execution(job, **{"outcome": "succeeded", "started_at": started, "finished_at": ended, **columns})


def test_timeouts_close_to_the_run_times_are_reported(make_job, monkeypatch):
    limited: Task[..., None] = Task(func=tasks.noop.func, timeout=10)
    monkeypatch.setitem(registry._tasks, "app.limited", limited)
    monkeypatch.setitem(registry._tasks, "app.rare", limited)
    add_runs(make_job, "app.limited", seconds=7)
    add_runs(make_job, "app.rare", seconds=9.9, count=5)
    add_runs(make_job, "app.unknown", seconds=1000)
    assert find("timeouts").level is Level.OK
    add_runs(make_job, "app.limited", seconds=10, count=1, outcome="failed", exception_class=TIMEOUT_CLASS)
    assert_finding(find("timeouts"), Level.WARNING, "'app.limited' has 10 s", "1 of 21 timed out", "longer than 7.0 s")
    Execution.objects.filter(exception_class=TIMEOUT_CLASS).delete()
    assert find("timeouts").level is Level.OK
    add_runs(make_job, "app.limited", seconds=8.5)
    assert_finding(find("timeouts"), Level.WARNING, "longer than 8.5 s", "Raise timeout= of app.limited")


def test_timeouts_leave_out_the_time_until_a_loss_was_found(make_job, monkeypatch):
    limited: Task[..., None] = Task(func=tasks.noop.func, timeout=10)
    monkeypatch.setitem(registry._tasks, "app.limited", limited)
    monkeypatch.setitem(registry._tasks, "app.lost", limited)
    add_runs(make_job, "app.limited", seconds=7)
    for name in ("app.limited", "app.lost"):
        add_runs(make_job, name, seconds=60, outcome="crashed")
    assert find("timeouts").level is Level.OK


def test_timeout_class_is_that_of_stored_timeouts():
    assert class_path(TaskTimeout()) == TIMEOUT_CLASS


@pytest.mark.parametrize("statement", [job_checks.RECENT, job_checks.LEASES])
def test_statement_reads_no_history(many_jobs, statement):
    params = {"executions": 1000, "seconds": 3600.0, "timeout_class": TIMEOUT_CLASS, "lease_seconds": 60.0}
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_execution"
            " (job_id, attempt, worker_id, lease_expires_at, started_at, outcome, finished_at)"
            " SELECT id, 1, 1, now(), now(), 'succeeded', now() FROM pgqueue_job"
        )
        cursor.execute("ANALYZE pgqueue_execution")
        cursor.execute(f"EXPLAIN {statement}", {**params, "time_shift": "0 s"})
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "Index" in plan and not re.search(r"Seq Scan on pgqueue_(?!worker\b)", plan), plan


def test_schedules_late_or_broken_ones_are_reported():
    values: dict[str, Any] = {"task_name": "app.add", "arguments": {"args": [], "kwargs": {}}, "expression": "@daily"}
    schedule = Schedule.objects.create(name="nightly", next_run_at=timezone.now() - MINUTE / 2, **values)
    off = {"enabled": False, "next_run_at": timezone.now() - timedelta(days=1)}
    Schedule.objects.create(name="off", **off, **values)
    paused = {"next_run_at": timezone.now() - timedelta(days=1), "paused_until": timezone.now() + MINUTE}
    Schedule.objects.create(name="paused with an end", problem="why", **paused, **values)
    Schedule.objects.create(name="on again", **{**paused, "paused_until": timezone.now() - MINUTE / 2}, **values)
    assert_finding(find("schedules"), Level.OK)
    for minutes, level in ((5, Level.WARNING), (15, Level.ERROR)):
        Schedule.objects.filter(pk=schedule.pk).update(next_run_at=timezone.now() - minutes * MINUTE)
        assert_finding(find("schedules"), level, f"'nightly' is late by {minutes} min")
    Schedule.objects.filter(pk=schedule.pk).update(next_run_at=timezone.now() + MINUTE, problem="no task app.add")
    assert_finding(find("schedules"), Level.WARNING, "'nightly' is not fired: 'no task app.add'")
