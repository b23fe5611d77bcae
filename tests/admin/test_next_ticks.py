"""The preview of the next runs on the page of a schedule, and what *Run now* and the bulk operations say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from django_pgqueue.admin import schedule_admin as schedules
from django_pgqueue.admin.schedules.columns import shown_ticks
from django_pgqueue.models import Job, Schedule
from tests import helpers
from tests.admin.test_schedules import ALL, SCHEDULES, make, page

pytestmark = pytest.mark.slow


def schedule_at(next_run_at: datetime, expression: str, time_zone: str, **changes: Any) -> Schedule:
    schedule = Schedule(next_run_at=next_run_at, expression=expression, time_zone=time_zone, **changes)
    vars(schedule)["seen_at"] = next_run_at - timedelta(minutes=5)
    return schedule


def test_ticks_across_change_of_clock_say_so():
    ticks = shown_ticks(schedule_at(datetime(2026, 10, 24, 7, tzinfo=UTC), "0 9 * * *", "Europe/Paris"))
    assert [tick["local"][4:] for tick in ticks] == [f"2026-10-{day} 09:00:00" for day in range(24, 29)]
    assert [tick["offset"] for tick in ticks] == ["+02:00 CEST", *["+01:00 CET"] * 4]
    assert [tick["note"] for tick in ticks] == ["", "clocks go back by 1 h before it", "", "", ""]
    assert [tick["local"][:3] for tick in ticks] == ["Sat", "Sun", "Mon", "Tue", "Wed"]
    assert "2026-10-25 08:00:00" in ticks[1]["here"]
    assert ticks[0]["distance"] == "in 5 min"


def test_ticks_are_in_the_time_zones_of_schedule_and_page(client_of, db, settings):
    settings.TIME_ZONE = "Asia/Tokyo"
    schedule = make(expression="0 9 * * *", time_zone="Europe/Paris")
    Schedule.objects.update(next_run_at=datetime(2100, 7, 1, 7, tzinfo=UTC))
    text = page(client_of("view_schedule"), f"{SCHEDULES}{schedule.pk}/change/")
    assert "In Asia/Tokyo</th>" in text
    assert 'Thu 2100-07-01 09:00:00 <span class="pgqueue-quiet">+02:00 CEST' in text
    assert "2100-07-01 16:00:00 Asia/Tokyo (" in text and ">2100-07-01 16:00:00</time>" in text


def test_ticks_in_skipped_hour_come_after_the_gap():
    ticks = shown_ticks(schedule_at(datetime(2026, 3, 28, 1, 30, tzinfo=UTC), "30 2 * * *", "Europe/Paris"))
    assert [tick["local"][4:] for tick in ticks[:2]] == ["2026-03-28 02:30:00", "2026-03-29 03:00:00"]
    assert ticks[1]["note"] == "clocks go forward by 1 h before it"


def test_ticks_of_interval_are_in_utc():
    ticks = shown_ticks(schedule_at(datetime(2026, 1, 1, tzinfo=UTC), "every 6 hours", "Asia/Tokyo"))
    assert [tick["local"][-8:] for tick in ticks] == ["00:00:00", "06:00:00", "12:00:00", "18:00:00", "00:00:00"]
    assert {tick["offset"] for tick in ticks} == {"+00:00 UTC"}


@pytest.mark.parametrize(
    ("expression", "zone"), [("0 0 30 2 *", "UTC"), ("<b>", "UTC"), ("@daily", "Mars/Base"), ("@daily", "\0"), ("", "")]
)
def test_ticks_of_invalid_schedule_are_none(expression, zone):
    schedule = schedule_at(datetime(2026, 1, 1, tzinfo=UTC), expression, zone)
    assert len(shown_ticks(schedule)) == 0


def test_ticks_at_the_last_instant_are_not_an_error():
    assert len(shown_ticks(schedule_at(datetime(9999, 12, 28, tzinfo=UTC), "@yearly", "UTC"))) <= 1


def test_page_previews_runs_and_says_what_buttons_leave_out(client_of, db):
    planner, schedule = client_of(*ALL, "view_job", "view_arguments"), make(expression="0 9 * * *", jitter_seconds=30.0)
    text = page(planner, f"{SCHEDULES}{schedule.pk}/change/")
    assert "Next runs" in text and text.count(" 09:00:00") >= 8 and "up to 30.0 s later" in text
    assert "If the form has changes that are not saved, they do nothing" in text
    planner.post(f"{SCHEDULES}{schedule.pk}/pause/")
    assert "if the schedule were not paused" in page(planner, f"{SCHEDULES}{schedule.pk}/change/")
    of_code = make("of code", origin="code")
    assert "changes that are not saved" not in page(planner, f"{SCHEDULES}{of_code.pk}/change/")


@pytest.mark.parametrize("may_view", [True, False])
def test_run_now_links_its_job_if_user_may_view_it(client_of, db, may_view):
    client: Client = client_of("view_schedule", "run_schedule", *(["view_job"] if may_view else []))
    schedule = make(task_name=helpers.NOOP)
    text = client.post(f"{SCHEDULES}{schedule.pk}/run/", follow=True).content.decode()
    job = Job.objects.get()
    assert "1 job is enqueued." in text
    assert (f'<a href="/admin/pgqueue/job/{job.pk}/change/">Job #{job.pk}</a>' in text) is may_view


def test_bulk_operation_on_too_many_says_how_many_were_left(client_of, db, monkeypatch):
    monkeypatch.setattr(schedules, "ONE_REQUEST", 2)
    client, made = client_of("view_schedule", "pause_schedule"), [make(f"s{number}") for number in range(3)]
    chosen = {"action": "pause_selected", "_selected_action": [each.pk for each in made]}
    text = client.post(SCHEDULES, chosen, follow=True).content.decode()
    assert "Only the first 2 of 3 selected schedules were processed" in text
    assert Schedule.objects.filter(enabled=True).count() == 1
