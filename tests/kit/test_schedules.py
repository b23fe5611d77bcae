"""Tests of `run_jobs(schedules=True)`: a test runs the schedules of the code on its own connection, without waiting."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgqueue import cron, every, task
from django_pgqueue.db.statements import clock
from django_pgqueue.models import Job, Schedule
from django_pgqueue.schedules import declarations
from django_pgqueue.tasks import registry
from django_pgqueue.testing import capture_jobs, run_jobs, time_travel

pytestmark = pytest.mark.django_db

ran: list[str] = []


def sweep(what: str = "all") -> str:
    """Sweep."""
    ran.append(what)
    return what


@pytest.fixture
def sweeping(monkeypatch):
    """Return a task with two schedules: one each hour, and one at midnight with another argument."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(declarations, "_declared", {})
    ran.clear()
    return task(schedule=[every(hours=1), cron("@daily", args=["night"])])(sweep)


def test_run_jobs_schedules_one_day_runs_all_ticks(sweeping):
    assert run_jobs(until=timedelta(days=1), schedules=True, raising=True) == 25
    assert (ran.count("all"), ran.count("night")) == (24, 1)
    assert {schedule.name for schedule in Schedule.objects.all()} == {sweeping.name, f"{sweeping.name}:2"}
    assert clock.shift_seconds == 0


def test_run_jobs_schedules_each_job_has_time_of_its_tick(sweeping):
    with capture_jobs(sweeping) as jobs:
        run_jobs(until=timedelta(hours=3), schedules=True)
    assert jobs
    assert all(job.run_after.minute == job.run_after.second == 0 for job in jobs)
    assert [job.state for job in Job.objects.all()] == ["succeeded"] * len(jobs)


def test_time_travel_missed_ticks_run_once(sweeping):
    assert run_jobs(schedules=True) == 0, (
        "the first call only adds the schedules of the code, whose first ticks are not due"
    )
    with time_travel(hours=5):
        assert run_jobs(schedules=True) >= 1
    assert ran.count("all") == 1


def test_scheduled_job_task_options_are_those_of_enqueue(monkeypatch, settings):
    settings.PGQUEUE = {"TASK_MODULES": [__name__]}
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(declarations, "_declared", {})
    once = task(unique_key="k", expires=60, schedule=every(hours=1))(sweep)
    assert run_jobs(schedules=True) == 0
    waiting = once.using(run_after=timedelta(hours=5), expires=timedelta(hours=9)).enqueue()
    with time_travel(hours=3):
        assert run_jobs(schedules=True) == 0
        waiting.cancel()
    with time_travel(hours=4):
        assert run_jobs(schedules=True) == 1
    job = Job.objects.get(state="succeeded")
    assert (job.unique_key, job.expires_at - job.enqueued_at) == ("k", timedelta(minutes=1))


def test_run_jobs_without_schedules_runs_no_tick(sweeping):
    assert run_jobs(until=timedelta(days=1)) == 0
    assert not Schedule.objects.exists()
