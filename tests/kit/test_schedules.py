"""`run_jobs(schedules=True)`: the code's schedules in a test, on its own connection, at the pace it likes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_pgqueue import cron, every, registry, task
from django_pgqueue.db.statements import clock
from django_pgqueue.models import Job, Schedule
from django_pgqueue.schedules import declarations
from django_pgqueue.testing import capture_jobs, run_jobs, time_travel

pytestmark = pytest.mark.django_db

ran: list[str] = []


def sweep(what: str = "all") -> str:
    """Sweep."""
    ran.append(what)
    return what


@pytest.fixture
def sweeping(monkeypatch):
    """A task that the code has run each hour, and another way at midnight."""
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setattr(declarations, "_declared", {})
    ran.clear()
    return task(schedule=[every(hours=1), cron("@daily", args=["night"])])(sweep)


def test_a_day_of_schedules_takes_no_time(sweeping):
    assert run_jobs(until=timedelta(days=1), schedules=True, raising=True) == 25
    assert (ran.count("all"), ran.count("night")) == (24, 1)
    assert {one.name for one in Schedule.objects.all()} == {sweeping.name, f"{sweeping.name}:2"}
    assert clock.shift_seconds == 0


def test_each_runs_at_its_time_and_what_it_enqueues_at_its_own(sweeping):
    with capture_jobs(sweeping) as jobs:
        run_jobs(until=timedelta(hours=3), schedules=True)
    assert all(job.run_after.minute == job.run_after.second == 0 for job in jobs)
    assert [job.state for job in Job.objects.all()] == ["succeeded"] * len(jobs)


def test_on_a_journey_what_was_missed_is_made_up_once(sweeping):
    assert run_jobs(schedules=True) == 0, "it writes down what the code says"
    with time_travel(hours=5):
        assert run_jobs(schedules=True) >= 1
    assert ran.count("all") == 1


def test_their_jobs_are_as_those_of_an_enqueue(monkeypatch, settings):
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


def test_without_asking_for_them_no_schedule_runs(sweeping):
    assert run_jobs(until=timedelta(days=1)) == 0
    assert not Schedule.objects.exists()
