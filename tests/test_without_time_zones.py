"""Calls and models with `USE_TZ = False`, where Django itself makes and reads datetimes without a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection

from django_pgqueue import control, stats
from django_pgqueue.db.statements import execute
from django_pgqueue.models import Job, Pause, Schedule
from django_pgqueue.testing import run_jobs
from tests import helpers
from tests.app import tasks
from tests.framework import tasks as framework_tasks

pytestmark = pytest.mark.django_db

BERLIN = ZoneInfo("Europe/Berlin")
LATER = datetime(2100, 7, 1, 12, tzinfo=UTC)
LOCAL = datetime(2100, 7, 1, 14)  # noqa: DTZ001 -- what Django passes with this setting


@pytest.fixture(autouse=True)
def without_time_zones(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, BERLIN.key


@pytest.mark.parametrize("later", [LATER, LOCAL])
def test_model_without_time_zones_reads_aware_datetimes(later: datetime) -> None:
    tasks.add.using(run_after=later, expires=LATER + timedelta(hours=1)).enqueue(1)
    job = Job.objects.get()
    assert (job.run_after, job.expires_at) == (LATER, LATER + timedelta(hours=1))
    assert job.run_after.utcoffset() == timedelta(hours=2)
    assert job.enqueued_at <= datetime.now(UTC)


@pytest.mark.parametrize("at", [LATER, LOCAL])
def test_filter_without_time_zones_takes_aware_and_naive(at: datetime) -> None:
    job_id = int(tasks.add.using(run_after=LATER).enqueue(1).id)
    assert Job.objects.filter(run_after=at).update(run_after=at + timedelta(hours=1)) == 1
    job = Job.objects.get(pk=job_id, run_after__gt=at)
    assert job.run_after == LATER + timedelta(hours=1)
    assert Job._meta.get_field("run_after").clean(at, job) == LATER


def test_times_across_a_change_of_clocks_are_exact() -> None:
    """In Berlin, the clocks are set back at 01:00 UTC, so both times are at half past two."""
    first, last = (datetime(2026, 10, 25, hour, 30, tzinfo=UTC) for hour in (0, 1))
    for at in (first, last):
        tasks.add.using(run_after=at).enqueue(1)
    found = list(Job.objects.order_by("pk").values_list("run_after", flat=True))
    assert found == [first, last] and found[1] - found[0] == timedelta(hours=1)
    [row] = execute(connection, "SELECT %(first)s::timestamptz, %(last)s::timestamptz", {"first": first, "last": last})
    assert row == (first, last) and row[1] - row[0] == timedelta(hours=1)


@pytest.mark.parametrize("later", [LATER, LOCAL])
def test_framework_task_without_time_zones_is_due_in_time_zone(later: datetime) -> None:
    framework_tasks.add.using(run_after=later).enqueue(1, 2)
    assert Job.objects.get().run_after == LATER


def test_pause_without_time_zones_ends_in_time_zone() -> None:
    control.pause("mail", until=LOCAL)
    assert Pause.objects.get().paused_until == LATER


def test_schedule_and_statistics_without_time_zones_work() -> None:
    schedule_id = helpers.make_schedule(connection, "nightly", due_in=-5.0)
    tasks.add.enqueue(1)
    run_jobs(schedules=True)
    schedule = Schedule.objects.get(pk=schedule_id)
    assert schedule.last_run_at is not None and schedule.next_run_at > schedule.last_run_at
    assert stats.overview().queues and stats.throughput().since < datetime.now(UTC)
    assert stats.incidents().until.utcoffset() == timedelta()
    assert stats.why(Job.objects.earliest("pk").pk).sentence
