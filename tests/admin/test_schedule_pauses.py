"""The acts on schedules that ask first: skip the next run, and pause until a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_pgqueue.lifecycle import schedules as lifecycle_schedules
from django_pgqueue.models import AuditEntry, Schedule, ScheduleRun
from tests import helpers
from tests.admin.conftest import shown_by
from tests.admin.test_past_runs import rows_of, text_of
from tests.admin.test_schedules import SCHEDULES, make

pytestmark = pytest.mark.slow


@pytest.fixture
def planner(client_of: Callable[..., Client]) -> Client:
    return client_of("view_schedule", "pause_schedule")


def url_of(schedule: Schedule, name: str) -> str:
    return f"{SCHEDULES}{schedule.pk}/{name}/"


def test_skip_asks_with_the_time_and_skips_that_run(planner: Client, db: None) -> None:
    schedule = make(expression="0 9 * * *")
    Schedule.objects.update(next_run_at=timezone.now() + timedelta(hours=2))
    at = Schedule.objects.get().next_run_at
    assert "Skip the next run…" in text_of(planner, url_of(schedule, "change"))
    text = text_of(planner, url_of(schedule, "skip"))
    shown = f"{at:%Y-%m-%d %H:%M:%S} UTC"
    assert "Skip the next run of nightly?" in text and f"the run at {shown} is skipped. The one after it is at" in text
    given = shown_by(planner, url_of(schedule, "skip"))
    answer = planner.post(url_of(schedule, "skip"), given, follow=True).content.decode()
    assert f"The run of nightly at {shown} is skipped." in answer
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by, entry.filter["tick_at"]) == ("skip_run", "staff", at.isoformat())
    text = text_of(planner, url_of(schedule, "change"))
    assert f"the run at {at:%Y-%m-%d %H:%M:%S} was skipped by staff" in text
    assert rows_of(text) == [], "the skipped run has not come yet"
    assert "Skip the next run…" not in text, "one skipped run at a time"
    assert ">one is skipped by staff<" in text_of(planner)
    again = planner.post(url_of(schedule, "skip"), given, follow=True).content.decode()
    assert "was not skipped: The run is skipped already, or the schedule has changed." in again
    assert ScheduleRun.objects.count() == 1


def test_skip_of_another_run_by_then_is_refused(planner: Client, db: None) -> None:
    schedule = make()
    given = shown_by(planner, url_of(schedule, "skip"))
    Schedule.objects.update(next_run_at=timezone.now() + timedelta(hours=5))
    answer = planner.post(url_of(schedule, "skip"), given, follow=True).content.decode()
    assert "was not skipped: The next run is another one now, at" in answer
    assert not ScheduleRun.objects.exists() and not AuditEntry.objects.exists()


def test_skip_without_a_shown_run_changes_nothing(planner: Client, db: None) -> None:
    schedule = make()
    for value in ("", "x", f"{schedule.pk}:0:", f"{schedule.pk}:0:{'9' * 18}"):
        planner.post(url_of(schedule, "skip"), {"shown_runs": value})
    assert not ScheduleRun.objects.exists()


def test_skip_selected_names_each_run_and_what_is_left_out(planner: Client, db: None) -> None:
    due, paused, on, other = make("due", due_in=-5.0), make("paused"), make("on"), make("other")
    lifecycle_schedules.pause_schedule(connection, paused.pk)
    chosen = {"action": "skip_selected", "_selected_action": [due.pk, paused.pk, on.pk, other.pk]}
    answer = planner.post(SCHEDULES, chosen)
    url = answer.headers["Location"]
    assert answer.status_code == 302 and url.startswith(f"{SCHEDULES}skip/?schedules=")
    text = text_of(planner, url)
    assert "Skip the next runs of 2 schedules?" in text
    assert "due is left out: its run is due already." in text and "paused is left out: it is paused." in text
    planner.post(url, shown_by(planner, url))
    assert set(ScheduleRun.objects.values_list("schedule_id", flat=True)) == {on.pk, other.pk}
    for ids in ("", "x", "9" * 30, str(due.pk)):
        assert planner.get(f"{SCHEDULES}skip/?schedules={ids}").status_code == 302


def switch_of(client: Client, schedule: Schedule) -> dict[str, str]:
    """Return the hidden input with what the page shows of a schedule and its pause."""
    [found] = re.findall('name="shown_switch" value="([^"]*)"', text_of(client, url_of(schedule, "pause_until")))
    return {"shown_switch": found}


def test_pause_until_leaves_what_somebody_has_paused_meanwhile(planner: Client, db: None) -> None:
    """A pause without an end, because of an incident, must not end by itself."""
    schedule = make()
    given = {"until": f"{timezone.now() + timedelta(days=2):%Y-%m-%dT%H:%M:%S}", **switch_of(planner, schedule)}
    Schedule.objects.update(enabled=False)
    assert "Nothing was changed" in planner.post(url_of(schedule, "pause_until"), given).content.decode()
    schedule.refresh_from_db()
    assert (schedule.enabled, schedule.paused_until) == (False, None)
    assert "paused without an end now" in text_of(planner, url_of(schedule, "pause_until"))
    planner.post(url_of(schedule, "pause_until"), {**given, **switch_of(planner, schedule)})
    schedule.refresh_from_db()
    assert schedule.paused_until is not None


def test_pause_until_switches_off_and_says_until_when(planner: Client, db: None) -> None:
    schedule = make(missed="all")
    assert "Pause with an end or a reason…" in text_of(planner, url_of(schedule, "change"))
    assert "each of its runs, the last 100 at most" in text_of(planner, url_of(schedule, "pause_until"))
    for wrong in ("2001-01-01T00:00:00", "x"):
        assert planner.post(url_of(schedule, "pause_until"), {"until": wrong}).status_code == 200
    until = (timezone.now() + timedelta(days=2)).replace(microsecond=0)
    given = {"until": f"{until:%Y-%m-%dT%H:%M:%S}", **switch_of(planner, schedule)}
    answer = planner.post(url_of(schedule, "pause_until"), given, follow=True).content.decode()
    shown = f"{until:%Y-%m-%d %H:%M:%S}"
    assert f"The schedule is paused until {shown} UTC." in answer
    assert f">until {shown}<" in answer and ">Next runs after the pause<" in answer
    assert 'action="' + url_of(schedule, "resume") in answer or 'value="resume"' in answer
    schedule.refresh_from_db()
    assert schedule.enabled and schedule.paused_until == until
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.filter["until"]) == ("pause_schedule", until.isoformat())
    assert ">paused<" in text_of(planner)
    planner.post(url_of(schedule, "resume"), {"shown_schedule": f"{schedule.pk}:{schedule.revision}:"})
    assert Schedule.objects.get().paused_until is None and helpers.schedule_of(connection, schedule.pk).is_on


@pytest.mark.parametrize("held", [("view_schedule", "run_schedule"), ("pause_schedule",)])
def test_acts_that_ask_need_their_permission(client_of: Callable[..., Client], db: None, held: tuple[str, ...]) -> None:
    client, schedule = client_of(*held), make()
    for name in ("skip", "pause_until"):
        assert client.get(url_of(schedule, name)).status_code == 403
        assert client.post(url_of(schedule, name), {"until": "2100-01-01T00:00:00"}).status_code == 403
    if "view_schedule" in held:
        text = text_of(client, url_of(schedule, "change"))
        assert "Pause with an end or a reason…" not in text and "Skip the next run" not in text


def test_pause_without_an_end_stores_the_reason(planner: Client, db: None) -> None:
    schedule = make()
    given = {"until": "", "reason": "the shop\nis closed", **switch_of(planner, schedule)}
    answer = planner.post(url_of(schedule, "pause_until"), given, follow=True).content.decode()
    assert "The schedule is paused." in answer and re.search("at [0-9: -]+ by staff: the shop<", answer)
    assert Schedule.objects.get().enabled is False
    assert AuditEntry.objects.get().reason == "the shop\nis closed"
    given.update(switch_of(planner, schedule))
    answer = planner.post(url_of(schedule, "pause_until"), given, follow=True).content.decode()
    assert "the schedule is paused already" in answer and AuditEntry.objects.count() == 1
    shown = {"shown_schedule": f"{schedule.pk}:{schedule.revision}:"}
    assert "the shop<" not in planner.post(url_of(schedule, "resume"), shown, follow=True).content.decode()
    other = make("other")
    lifecycle_schedules.pause_schedule(connection, other.pk)
    assert "by staff" not in text_of(planner, url_of(other, "change")), "the pause of another schedule"


def test_skip_stores_the_reason_and_can_be_undone(planner: Client, db: None) -> None:
    schedule = make(expression="0 9 * * *")
    at = Schedule.objects.get().next_run_at
    assert "Undo the skip" not in text_of(planner, url_of(schedule, "change"))
    given = {**shown_by(planner, url_of(schedule, "skip")), "reason": "holiday"}
    planner.post(url_of(schedule, "skip"), given)
    text = text_of(planner, url_of(schedule, "change"))
    assert "was skipped by staff: holiday<" in text and "Undo the skip" in text
    [shown] = set(re.findall('name="shown_schedule" value="([^"]*)"', text))
    undo = url_of(schedule, "undo_skip")
    answer = planner.post(undo, {"shown_schedule": shown}, follow=True).content.decode()
    assert "The skip of 1 run is undone." in answer and "was skipped by" not in answer
    assert not ScheduleRun.objects.exists() and Schedule.objects.get().next_run_at == at
    assert AuditEntry.objects.latest("pk").action == "undo_skip"
    answer = planner.post(undo, {"shown_schedule": shown}, follow=True).content.decode()
    assert "Nothing was changed" in answer


def test_pause_for_a_length_ends_after_it(planner: Client, db: None) -> None:
    schedule = make()
    text = text_of(planner, url_of(schedule, "pause_until"))
    assert ">for 1 hour<" in text and "in the time zone UTC" in text
    given = {"length": "3600", **switch_of(planner, schedule)}
    both = {**given, "until": "2100-01-01T00:00:00"}
    assert "Choose a length or a time" in planner.post(url_of(schedule, "pause_until"), both).content.decode()
    assert planner.post(url_of(schedule, "pause_until"), {**given, "length": "5"}).status_code == 200
    before = timezone.now()
    planner.post(url_of(schedule, "pause_until"), given)
    hour, until = timedelta(hours=1), Schedule.objects.get().paused_until
    assert until is not None and before + hour <= until <= timezone.now() + hour


def test_pause_keeps_the_skipped_run_on_the_page(planner: Client, db: None) -> None:
    schedule = make()
    planner.post(url_of(schedule, "skip"), {**shown_by(planner, url_of(schedule, "skip")), "reason": "holiday"})
    given = {"reason": "the shop is closed", **switch_of(planner, schedule)}
    text = planner.post(url_of(schedule, "pause_until"), given, follow=True).content.decode()
    assert "was skipped by staff: holiday<" in text and "by staff: the shop is closed<" in text
