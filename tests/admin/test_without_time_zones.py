"""The console with `USE_TZ = False`, where Django itself makes and reads datetimes without a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.admin.models import CHANGE as CHANGED
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client

from django_pgqueue.lifecycle import bulk_acts as lifecycle_bulk_acts
from django_pgqueue.lifecycle.bulk_acts import Selection
from django_pgqueue.models import Job, LimitOverride, LimitState, Pause, Worker
from tests import helpers
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.limits import CHANGE, OF_LIMIT, PAGE, declare, text_of
from tests.admin.test_enqueue_form import send
from tests.admin.test_every_url import urls
from tests.admin.test_overview import count
from tests.app import tasks

pytestmark = pytest.mark.slow

BERLIN = ZoneInfo("Europe/Berlin")
JOBS = "/admin/pgqueue/job/"
LATER = datetime(2100, 7, 1, 12, tzinfo=UTC)
IN_BERLIN = "2100-07-01 14:00:00"
FILTERED = (
    f"{JOBS}?since=day",
    f"{JOBS}?state=succeeded&since=2026-01-31T08:00",
    "/admin/pgqueue/deadjob/?since=week",
    f"{JOBS}overview/?span=day&figures=1",
    f"{JOBS}queue/?queue=default&span=week",
    f"{JOBS}incidents/?since=day",
    f"{JOBS}incidents/?since=2026-01-31T08:00",
    f"{JOBS}enqueue/{tasks.add.name}/",
    f"{JOBS}bulk_preview/?action=retry&state=dead&since=2100-07-01T12:00:00%2B00:00",
)


@pytest.fixture(autouse=True)
def without_time_zones(settings: Any) -> None:
    settings.USE_TZ, settings.TIME_ZONE = False, BERLIN.key


@pytest.fixture
def jobs(make_job: JobMaker, without_time_zones: None) -> list[Job]:
    """Create a job in each state, and rows for the lists and charts of the console."""
    for state in ("dead", "running", "succeeded", "cancelled"):
        add_execution(make_job(state, task_name=tasks.add.name))
    scheduled = make_job(run_after=LATER, expires_at=LATER + timedelta(days=1))
    Worker.objects.create(hostname="h", pid=1, version="1", concurrency=1)
    Worker.objects.create(hostname="h", pid=2, version="2", concurrency=1, stopped_at=datetime.now(UTC))
    Pause.objects.create(pk=scheduled.pk, kind="queue", name="mail", paused_until=LATER)
    for job in (jobs := list(Job.objects.order_by("pk"))):
        helpers.make_schedule(connection, f"of {job.pk}", due_in=3600.0)
    count(90.0, failed=2, error="builtins.ValueError", runs=[0.1])
    at = lifecycle_bulk_acts.preview(connection, "retry", Selection("dead")).at
    lifecycle_bulk_acts.request_act(connection, "retry", Selection("dead"), previewed_at=at, total=1)
    return jobs


def pages(jobs: list[Job]) -> set[str]:
    """Return every URL of the first job, the page of each job, and lists and pages with filters."""
    return {*urls(jobs[0]), *(f"{JOBS}{job.pk}/change/" for job in jobs), *FILTERED}


def test_every_page_without_time_zones_answers(admin_client: Client, jobs: list[Job]) -> None:
    answers = {url: admin_client.get(url).status_code for url in sorted(pages(jobs))}
    assert {url for url, status in answers.items() if status not in {200, 302, 403, 404, 405}} == set()
    assert {answers[url] for url in (*FILTERED, f"{JOBS}{jobs[0].pk}/change/", f"{JOBS}queues/")} == {200}


def test_page_without_time_zones_shows_times_in_time_zone(admin_client: Client, jobs: list[Job]) -> None:
    for url in (f"{JOBS}{jobs[-1].pk}/change/", JOBS, "/admin/pgqueue/pause/"):
        text = admin_client.get(url).content.decode()
        assert IN_BERLIN in text and "UTC" not in text and "Times in Europe/Berlin<" in text, url


def test_reason_and_history_without_time_zones_are_in_time_zone(
    admin_client: Client, admin_user: User, jobs: list[Job]
) -> None:
    assert f"it is due at {IN_BERLIN}." in admin_client.get(f"{JOBS}{jobs[-1].pk}/change/").content.decode()
    LogEntry.objects.log_actions(admin_user.pk, jobs[-1:], CHANGED, "Run now.")
    LogEntry.objects.update(action_time=datetime(2100, 7, 1, 14))  # noqa: DTZ001 -- what Django stores with this setting
    text = admin_client.get(f"{JOBS}{jobs[-1].pk}/history/").content.decode()
    assert f">{IN_BERLIN}</time>" in text and ">Run now.<" in text


def test_forms_without_time_zones_read_times_in_time_zone(admin_client: Client) -> None:
    form = {"kind": "queue", "name": "default", "paused_until_0": "2100-07-01", "paused_until_1": "14:00:00"}
    assert admin_client.post("/admin/pgqueue/pause/add/", {**form, "reason": ""}).status_code == 302
    assert Pause.objects.get().paused_until == LATER
    send(admin_client, argument__a="5", run_after="2100-07-01T14:00:00")
    assert Job.objects.get().run_after == LATER


def test_limits_without_time_zones_keep_the_end_of_a_change(
    admin_client: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form shows the end in the time zone of the admin. Saving the form as it is keeps it."""
    declare(monkeypatch)
    given = {"concurrency": "7", "burst": "1", "share": "1", "until": "2100-07-01T14:00:00", "shown_change": ""}
    assert admin_client.post(f"{CHANGE}?key=render", given).status_code == 302
    assert LimitOverride.objects.get().valid_until == LATER
    LimitState.objects.create(limit_key="render:1", full_at=LATER, held_until=LATER)
    for url in (PAGE, f"{OF_LIMIT}?limit=render&key=1"):
        assert f"until {IN_BERLIN}" in text_of(admin_client, url), url
    assert 'name="until" value="2100-07-01T14:00:00"' in text_of(admin_client, CHANGE, key="render")
