"""Schedules in the admin: the list, the form, the operations and their permissions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.lifecycle import schedules as lifecycle_schedules
from django_pgqueue.lifecycle import ticks
from django_pgqueue.models import AuditEntry, Job, Schedule, ScheduleRun
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.testing import delete_all_jobs
from tests import helpers
from tests.admin.conftest import shown_by
from tests.app import tasks

pytestmark = pytest.mark.slow

SCHEDULES = "/admin/pgqueue/schedule/"
ALL = ("view_schedule", "add_schedule", "change_schedule", "delete_schedule", "run_schedule", "pause_schedule")
GIVEN = {
    "name": "Weekly sum",
    "task_name": "tests.app.tasks.add",
    "args": "[1]",
    "kwargs": '{"b": 2}',
    "expression": "30  9 * * 1-5",
    "time_zone": "Europe/Paris",
    "missed": "all",
    "if_running": "skip",
    "jitter_seconds": "30",
    "enabled": "on",
}


@pytest.fixture
def planner(client_of: Callable[..., Client]) -> Client:
    """Return a client whose user has all permissions for schedules and may view jobs."""
    return client_of(*ALL, "view_job", "view_arguments")


def make(name: str = "nightly", *, origin: str = "admin", due_in: float = 3600.0, **changes: Any) -> Schedule:
    definition = helpers.definition(name, **changes)
    next_run_at = timezone.now() + timedelta(seconds=due_in)
    made = lifecycle_schedules.add_schedule(connection, definition, origin=origin, next_run_at=next_run_at)
    assert made is not None
    return Schedule.objects.get(pk=made)


def run(schedule: Schedule) -> None:
    ticks.run_schedule(connection, helpers.schedule_of(connection, schedule.pk), helpers.new_job())


def page(client: Client, url: str = SCHEDULES) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def errors(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, "the form was accepted"
    found: dict[str, list[str]] = response.context["adminform"].form.errors
    return found


# ------------------------------------------------------------------ the list


def test_list_describes_the_expression_in_words(planner: Client, db: None) -> None:
    make(expression="30 9 * * 1-5", time_zone="Europe/Paris", due_in=7190.0)
    text = page(planner)
    for expected in (
        "nightly",
        "defined in the admin",
        "At 09:30 on Monday through Friday",
        "30 9 * * 1-5",
        "Europe/Paris",
        ">in 2 h<",
    ):
        assert expected in text, expected
    make("quick", expression="every 5 minutes")
    assert "Every 5 minutes" in page(planner)


def test_list_shows_the_last_job_and_its_state(planner: Client, db: None) -> None:
    schedule = make()
    run(schedule)
    job = Job.objects.get()
    assert f'href="{SCHEDULES}{schedule.pk}/change/"' in page(planner, f"/admin/pgqueue/job/{job.pk}/change/")
    text = page(planner)
    assert f"/admin/pgqueue/job/{job.pk}/change/" in text and "pgqueue-ready" in text and " ago" in text
    delete_all_jobs()
    assert "removed" in page(planner)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("enabled = false", 'pgqueue-paused">paused<'),
        ("expression = 'whenever'", "must have five fields"),
        ("time_zone = 'Mars'", "invalid time zone"),
        ("origin = 'code', confirmed_at = now() - interval '1 hour'", "in no worker"),
        ("next_run_at = now() - interval '1 minute'", "due now"),
        ("next_run_at = now() - interval '2 hours'", "late by 2 h"),
        ("name = E'<b>\\x1b'", "&lt;b&gt;\\x1b"),
    ],
)
def test_list_special_situation_of_a_schedule_is_shown(planner: Client, db: None, change: str, words: str) -> None:
    make()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgqueue_schedule SET {change}")
    assert words in page(planner)


@pytest.mark.parametrize(("seconds", "words"), [(60, "due now"), (7200, "late by 2 h")])
def test_page_of_a_late_schedule_says_how_late_it_is(planner: Client, db: None, seconds: int, words: str) -> None:
    schedule = make()
    Schedule.objects.update(next_run_at=timezone.now() - timedelta(seconds=seconds))
    assert words in page(planner, f"{SCHEDULES}{schedule.pk}/change/").partition("Next runs")[2]


@pytest.mark.parametrize("origin", ["admin", "code"])
def test_pages_show_hidden_characters_of_a_name(planner: Client, db: None, origin: str) -> None:
    schedule = make()
    name = "<b>a\x1b\u202e\nb"
    Schedule.objects.update(name=name, origin=origin, expression="@daily\x07", confirmed_at=timezone.now())
    own = f"{SCHEDULES}{schedule.pk}/"
    planner.post(f"{own}pause/", {"shown_schedule": f"{schedule.pk}:{schedule.revision}:"})
    for url in [f"{own}change/", f"{own}history/", *([f"{own}delete/"] if origin == "admin" else [])]:
        text = re.sub(r"<input[^>]*>", "", page(planner, url))
        assert "&lt;b&gt;a\\x1b\\u202e\\nb" in text, url
        assert not {"\x1b", "\u202e", "\x07"} & set(text), url
    if origin == "admin":
        text = page(planner, f"{own}change/")
        note = "The stored value has hidden characters: <code>"
        assert f"{note}&lt;b&gt;a\\x1b\\u202e\\nb</code>" in text and f"{note}@daily\\x07</code> A cron" in text
        assert text.count(note) == 2


def test_list_twenty_schedules_needs_at_most_eight_queries(planner: Client, db: None) -> None:
    for number in range(20):
        schedule = make(f"schedule {number}")
        run(schedule)
    with CaptureQueriesContext(connection) as captured:
        page(planner)
    assert len(captured) <= 8, [query["sql"] for query in captured]


# ------------------------------------------------------------------ the form


@pytest.mark.quick
def test_form_valid_values_create_and_edit_a_schedule(planner: Client, db: None) -> None:
    assert 'name="expression"' in page(planner, f"{SCHEDULES}add/")
    assert planner.post(f"{SCHEDULES}add/", GIVEN).status_code == 302
    schedule = Schedule.objects.get()
    assert (schedule.name, schedule.origin, schedule.expression, schedule.time_zone) == (
        "Weekly sum",
        "admin",
        "30 9 * * 1-5",
        "Europe/Paris",
    )
    assert schedule.arguments == {"args": [1], "kwargs": {"b": 2}}
    assert (schedule.missed, schedule.if_running, schedule.jitter_seconds, schedule.enabled, schedule.revision) == (
        "all",
        "skip",
        30,
        True,
        0,
    )
    assert schedule.next_run_at > timezone.now()
    assert (schedule.queue_name, schedule.max_attempts) == (tasks.add.queue_name, 10)
    url = f"{SCHEDULES}{schedule.pk}/change/"
    assert "[1]" in page(planner, url)
    assert planner.post(url, GIVEN | {"expression": "every 2 hours", "args": "[5]", "enabled": ""}).status_code == 302
    schedule.refresh_from_db()
    assert (schedule.expression, schedule.arguments["args"], schedule.enabled) == ("every 2 hours", [5], False)
    assert planner.post(url, GIVEN).status_code == 302
    schedule.refresh_from_db()
    assert schedule.enabled
    assert LogEntry.objects.count() == 3


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"expression": "whenever"}, "expression", "five fields"),
        ({"expression": "61 * * * *"}, "expression", "Bad minute"),
        ({"time_zone": "Mars"}, "time_zone", "Unknown time zone"),
        ({"task_name": "os.system"}, "task_name", "not one of the available"),
        ({"args": '{"a": 1}'}, "args", "must be a list"),
        ({"args": '"x"'}, "args", "must be a list"),
        ({"kwargs": "[1]"}, "kwargs", "must be an object"),
        ({"args": "[1"}, "args", "valid JSON"),
        ({"args": "[" * 100_000}, "args", "JSON"),
        ({"args": "[1, 2, 3]", "kwargs": "{}"}, "args", "too many positional"),
        ({"kwargs": '{"c": 1}'}, "args", "unexpected keyword"),
        ({"args": "[" + "9" * 5000 + "]"}, "args", "JSON"),
        ({"args": json.dumps(["x" * 300_000])}, "args", "MAX_ARGUMENTS_BYTES"),
        ({"jitter_seconds": "-1"}, "jitter_seconds", "greater than or equal"),
        ({"jitter_seconds": "nan"}, "jitter_seconds", "number"),
        ({"missed": "?"}, "missed", "valid choice"),
        ({"name": "taken"}, "name", "has this name"),
        ({"name": "a\tb"}, "name", "printable"),
    ],
)
def test_form_invalid_value_is_reported_at_its_field(
    planner: Client, db: None, change: dict[str, str], field: str, words: str
) -> None:
    make("taken")
    found = errors(planner.post(f"{SCHEDULES}add/", GIVEN | change))
    assert list(found) == [field]
    assert words in str(found[field])
    assert Schedule.objects.count() == 1


def test_form_several_invalid_values_are_reported_together(planner: Client, db: None) -> None:
    wrong = {"name": "a\tb", "expression": "61 * * * *", "time_zone": "Mars", "args": "[1, 2, 3]", "missed": "?"}
    assert set(errors(planner.post(f"{SCHEDULES}add/", GIVEN | wrong))) == set(wrong)


def test_page_shows_the_next_run_or_the_problem(planner: Client, db: None) -> None:
    schedule = make(due_in=7190.0)
    text = page(planner, f"{SCHEDULES}{schedule.pk}/change/")
    assert f">{schedule.next_run_at:%Y-%m-%d %H:%M:%S} UTC (in 1 h 59 min)<" in text
    assert "Problem" not in text
    text = page(planner, f"{SCHEDULES}{make('odd', expression='<b>').pk}/change/")
    assert "<dt>Problem</dt>" in text
    assert "Next run" not in text


def test_page_shows_queue_and_priority(planner: Client, db: None) -> None:
    schedule = make(origin="code", queue_name="reports", priority=-10)
    text = " ".join(page(planner, f"{SCHEDULES}{schedule.pk}/change/").split())
    assert re.search(r"<dt>Queue</dt> ?<dd>reports</dd>", text)
    assert re.search(r"<dt>Priority</dt> ?<dd>-10</dd>", text)


def test_page_shows_jitter_as_a_duration_or_none(planner: Client, db: None) -> None:
    for name, seconds, words in (("a", 0.0, ">none<"), ("b", 90.0, ">1 min 30 s<")):
        schedule = make(name, origin="code", jitter_seconds=seconds)
        assert words in page(planner, f"{SCHEDULES}{schedule.pk}/change/")


def test_declared_schedule_is_read_only_but_can_be_paused(planner: Client, db: None) -> None:
    schedule = make(origin="code", arguments='{"args":["<b>"],"kwargs":{}}')
    url = f"{SCHEDULES}{schedule.pk}/"
    text = page(planner, f"{url}change/")
    assert 'name="expression"' not in text and "&lt;b&gt;" in text and 'name="_save"' not in text
    assert planner.post(f"{url}change/", GIVEN).status_code == 403
    assert planner.post(f"{url}delete/", {"post": "yes"}).status_code == 403
    planner.post(f"{url}pause/")
    schedule.refresh_from_db()
    assert not schedule.enabled
    assert schedule.expression == "* * * * *"


def test_delete_schedule_removes_its_runs_and_keeps_its_jobs(planner: Client, db: None) -> None:
    schedule, other = make(), make("of code", origin="code")
    for each in (schedule, other):
        run(each)
    assert "Are you sure" in page(planner, f"{SCHEDULES}{schedule.pk}/delete/")
    assert planner.post(f"{SCHEDULES}{schedule.pk}/delete/", {"post": "yes"}).status_code == 302
    entry = AuditEntry.objects.get(action="delete_schedule")
    assert entry.done_by == "staff" and entry.filter == {"schedule": schedule.name, "schedule_id": schedule.pk}
    assert [left.pk for left in Schedule.objects.all()] == [other.pk]
    assert [run.schedule_id for run in ScheduleRun.objects.all()] == [other.pk]
    assert Job.objects.count() == 2


# ------------------------------------------------------------------ operations


def buttons(client: Client, url: str) -> list[str]:
    """Return the operations that the page of a schedule offers, in its form if it has one."""
    text = page(client, f"{url}change/")
    return re.findall(f'action="{url}([a-z]+)/"', text) or re.findall('name="operation" value="([a-z]+)"', text)


SAVED = GIVEN | {"expression": "30 9 * * 1-5"}
"""The form of the schedule that `GIVEN` makes, as its page shows it."""


@pytest.mark.parametrize(
    ("edit", "shown"),
    [
        ({"args": "[5]"}, "[5]"),
        ({"expression": "whenever"}, 'value="whenever"'),
        ({"queue_name": "mail"}, 'value="mail"'),
        ({"enabled": ""}, 'name="enabled"'),
    ],
)
@pytest.mark.parametrize("operation", ["run", "pause"])
def test_button_beside_unsaved_changes_keeps_them(
    planner: Client, db: None, operation: str, edit: dict[str, str], shown: str
) -> None:
    planner.post(f"{SCHEDULES}add/", GIVEN)
    schedule = Schedule.objects.get()
    url = f"{SCHEDULES}{schedule.pk}/change/"
    answer = planner.post(url, {**SAVED, **edit, "operation": operation})
    text = answer.content.decode()
    assert "the form has changes that are not saved" in text and shown in text
    assert errors(answer)["__all__"] == ["This form differs from the schedule as it is saved."]
    assert not Job.objects.exists() and Schedule.objects.get().enabled
    assert Schedule.objects.get().revision == schedule.revision
    given = {**SAVED, **edit, **shown_in(text)}
    if edit.get("expression") != "whenever":
        assert planner.post(url, given).status_code == 302


def shown_in(text: str) -> dict[str, str]:
    return {"shown_schedule": text.split('name="shown_schedule" value="')[1].split('"')[0]}


def test_button_in_an_unchanged_form_acts(planner: Client, db: None) -> None:
    planner.post(f"{SCHEDULES}add/", GIVEN)
    url = f"{SCHEDULES}{Schedule.objects.get().pk}/change/"
    text = planner.post(url, {**SAVED, "operation": "run"}, follow=True).content.decode()
    job = Job.objects.get()
    assert "1 job is enqueued." in text and f"Job #{job.pk}</a>" in text
    planner.post(url, {**SAVED, "operation": "pause"})
    assert not Schedule.objects.get().enabled


def test_button_in_the_form_needs_its_permission(client_of: Callable[..., Client], db: None) -> None:
    schedule = make()
    editor = client_of("view_schedule", "change_schedule", "view_arguments")
    url = f"{SCHEDULES}{schedule.pk}/"
    assert buttons(editor, url) == []
    assert editor.post(f"{url}change/", {**GIVEN, "operation": "run"}).status_code == 403
    assert not Job.objects.exists()


def test_form_with_errors_overwrites_no_change_of_others(planner: Client, db: None) -> None:
    planner.post(f"{SCHEDULES}add/", GIVEN)
    url = f"{SCHEDULES}{Schedule.objects.get().pk}/change/"
    first = shown_by(planner, url)
    planner.post(url, {**SAVED, "jitter_seconds": "7"})
    text = planner.post(url, {**SAVED, **first, "expression": "whenever"}).content.decode()
    assert shown_in(text)["shown_schedule"] == first["shown_schedule"][0]
    answer = planner.post(url, {**SAVED, **shown_in(text)}, follow=True)
    assert "or has changed it. Try again." in answer.content.decode()
    assert Schedule.objects.get().jitter_seconds == 7


def test_run_now_says_what_is_paused(planner: Client, db: None) -> None:
    control.pause("default", by="ada")
    text = planner.post(f"{SCHEDULES}{make().pk}/run/", follow=True).content.decode()
    assert f"Job #{Job.objects.get().pk} does not start before this is resumed: queue default, paused by ada." in text


def test_buttons_run_pause_and_resume_change_and_log(planner: Client, db: None) -> None:
    schedule = make(due_in=-3600.0)
    url = f"{SCHEDULES}{schedule.pk}/"
    assert buttons(planner, url) == ["run", "pause"]
    assert "1 job is enqueued" in planner.post(f"{url}run/", follow=True).content.decode()
    assert Job.objects.get().task_name == helpers.NOOP
    planner.post(f"{url}pause/")
    assert buttons(planner, url) == ["run", "resume"]
    assert "Nothing was changed" in planner.post(f"{url}pause/", follow=True).content.decode()
    planner.post(f"{url}resume/")
    schedule.refresh_from_db()
    assert schedule.enabled
    assert schedule.next_run_at > timezone.now(), "resume has to skip the runs due during the pause"
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == [
        "Run now.",
        "Pause.",
        "Resume.",
    ]
    assert planner.get(f"{url}run/").status_code == 405
    assert "does not exist any more" in planner.post(f"{SCHEDULES}4711/run/", follow=True).content.decode()


def test_actions_on_many_schedules_report_the_counts(planner: Client, db: None) -> None:
    schedules = [make(str(number), origin=origin) for number, origin in enumerate(["code", "admin", "admin"])]
    chosen = {"_selected_action": [schedule.pk for schedule in schedules]}
    for action, done in (("pause", "3 schedules are paused"), ("pause", "Not changed: 3."), ("run", "3 jobs are")):
        answer = planner.post(SCHEDULES, {"action": f"{action}_selected", **chosen}, follow=True)
        assert done in answer.content.decode()
    assert Job.objects.count() == 3
    answer = planner.post(SCHEDULES, {"action": "resume_selected", **chosen}, follow=True)
    assert "3 schedules are resumed" in answer.content.decode()


def test_edit_of_a_changed_schedule_is_refused(planner: Client, db: None) -> None:
    """Two users open the form and save it one after the other. The second must not overwrite the first's change."""
    schedule = make()
    url = f"{SCHEDULES}{schedule.pk}/change/"
    shown = shown_by(planner, url)
    planner.post(url, {**GIVEN, **shown, "expression": "5 4 * * *"})
    answer = planner.post(url, {**GIVEN, **shown, "expression": "6 4 * * *"}, follow=True)
    assert "or has changed it. Try again." in answer.content.decode()
    schedule.refresh_from_db()
    assert schedule.expression == "5 4 * * *"


def test_resume_invalid_expression_is_refused(planner: Client, db: None) -> None:
    schedule = make(expression="whenever")
    lifecycle_schedules.pause_schedule(connection, schedule.pk)
    assert "Nothing was changed" in planner.post(f"{SCHEDULES}{schedule.pk}/resume/", follow=True).content.decode()


def give_options(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Task[Any, Any]:
    """Register a task with these options in place of the known one."""
    made: Task[Any, Any] = Task(func=tasks.noop.func, name=helpers.NOOP, **options)
    monkeypatch.setitem(registry._tasks, helpers.NOOP, made)
    return made


@pytest.mark.parametrize("unique_while", ["ready", 60])
def test_run_now_duplicate_key_names_the_existing_job(
    planner: Client, db: None, monkeypatch: pytest.MonkeyPatch, unique_while: Any
) -> None:
    existing = give_options(monkeypatch, unique_key="k", unique_while=unique_while).enqueue()
    schedule = make("<b>")
    answer = planner.post(f"{SCHEDULES}{schedule.pk}/run/", follow=True).content.decode()
    assert f"No job is enqueued for &lt;b&gt;: job {existing.pk} has its unique key." in answer
    chosen = {"action": "run_selected", "_selected_action": [schedule.pk, make("other", task_name="x.y").pk]}
    answer = planner.post(SCHEDULES, chosen, follow=True).content.decode()
    assert f"job {existing.pk} has its unique key." in answer
    assert "1 job is enqueued" in answer
    assert "Not changed" not in answer
    assert Job.objects.filter(task_name=helpers.NOOP).count() == 1
    assert LogEntry.objects.count() == 1


def test_run_now_invalid_key_reports_the_error(planner: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    give_options(monkeypatch, unique_key=lambda *args: 7)
    answer = planner.post(f"{SCHEDULES}{make().pk}/run/", follow=True).content.decode()
    assert "No job is enqueued for nightly: the unique key raised TypeError" in answer
    assert not Job.objects.exists()


def test_run_now_failing_key_query_keeps_transaction_usable(
    planner: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request runs in one transaction, as with ATOMIC_REQUESTS."""

    def key(*args: object) -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        return "k"

    give_options(monkeypatch, unique_key=key)
    chosen = {"action": "run_selected", "_selected_action": [make().pk, make("other", task_name="x.y").pk]}
    answer = planner.post(SCHEDULES, chosen, follow=True).content.decode()
    assert "No job is enqueued for nightly: the unique key raised DataError" in answer
    assert "1 job is enqueued" in answer


def test_list_and_page_show_why_a_schedule_cannot_run(planner: Client, db: None) -> None:
    schedule = make(due_in=-60.0)
    lifecycle_schedules.note_problem(
        connection, helpers.schedule_of(connection, schedule.pk), "the unique key raised <KeyError>"
    )
    for text in (page(planner), page(planner, f"{SCHEDULES}{schedule.pk}/change/")):
        assert "the unique key raised &lt;KeyError&gt;" in text
    assert ">cannot run<" in page(planner)


def test_form_schedule_gets_expiry_and_uniqueness_of_task(
    planner: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_options(monkeypatch, unique_key="k", expires=30)
    given = GIVEN | {"task_name": helpers.NOOP}
    assert "make jitter shorter" in str(errors(planner.post(f"{SCHEDULES}add/", given))["jitter_seconds"])
    planner.post(f"{SCHEDULES}add/", given | {"jitter_seconds": "29"})
    schedule = Schedule.objects.get()
    assert (schedule.expires_seconds, schedule.is_unique) == (30.0, True)


@pytest.mark.parametrize("held", ALL[1:])
def test_each_operation_requires_its_own_permission(client_of: Callable[..., Client], db: None, held: str) -> None:
    client, schedule = client_of("view_schedule", "view_arguments", held), make()
    url = f"{SCHEDULES}{schedule.pk}/"
    needs = {
        "add_schedule": (f"{SCHEDULES}add/", GIVEN),
        "change_schedule": (f"{url}change/", GIVEN),
        "run_schedule": (f"{url}run/", {}),
        "pause_schedule": (f"{url}pause/", {}),
        "delete_schedule": (f"{url}delete/", {"post": "yes"}),
    }
    answers = {name: client.post(*call).status_code for name, call in needs.items()}
    assert answers == {name: 302 if name == held else 403 for name in needs}


@pytest.mark.parametrize("held", ALL[1:])
def test_each_operation_requires_the_view_permission(client_of: Callable[..., Client], db: None, held: str) -> None:
    client, schedule = client_of("view_arguments", held), make()
    url = f"{SCHEDULES}{schedule.pk}/"
    calls = [(f"{SCHEDULES}add/", GIVEN), (f"{url}run/", {}), (f"{url}pause/", {}), (f"{url}delete/", {"post": "yes"})]
    for call in calls if held == "change_schedule" else [*calls, (f"{url}change/", GIVEN)]:
        assert client.get(call[0]).status_code in {403, 405} and client.post(*call).status_code == 403, call
    assert Schedule.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_run_and_edit_locked_schedule_report_the_lock(planner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgqueue.lifecycle.schedules.LOCK_WAIT_SECONDS", 0.05)
    schedule = make()
    with closing(helpers.connect()) as other, helpers.transaction(other):
        other.execute("SELECT FROM pgqueue_schedule FOR UPDATE")
        assert "or is locked" in planner.post(f"{SCHEDULES}{schedule.pk}/run/", follow=True).content.decode()
        answer = planner.post(f"{SCHEDULES}{schedule.pk}/change/", GIVEN, follow=True)
        assert "another session has locked" in answer.content.decode()
    assert not Job.objects.exists()
