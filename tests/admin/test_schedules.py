"""Schedules in the admin: the list, the form, what an operator does to them, and who may."""

from __future__ import annotations

import json
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

from django_pgqueue import lifecycle, registry
from django_pgqueue.models import Job, Schedule, ScheduleRun
from django_pgqueue.task import Task
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
    """A client whose user may do everything to schedules, and see jobs."""
    return client_of(*ALL, "view_job")


def make(name: str = "nightly", *, origin: str = "admin", due_in: float = 3600.0, **changes: Any) -> Schedule:
    definition = helpers.definition(name, **changes)
    next_run_at = timezone.now() + timedelta(seconds=due_in)
    made = lifecycle.add_schedule(connection, definition, origin=origin, next_run_at=next_run_at)
    assert made is not None
    return Schedule.objects.get(pk=made)


def run(one: Schedule) -> None:
    lifecycle.run_schedule(connection, helpers.schedule_of(connection, one.pk), lifecycle.JobOptions("default", 0, 10))


def page(client: Client, url: str = SCHEDULES) -> str:
    response = client.get(url)
    assert response.status_code == 200
    return response.content.decode()


def errors(response: Any) -> dict[str, list[str]]:
    assert response.status_code == 200, "it was written"
    found: dict[str, list[str]] = response.context["adminform"].form.errors
    return found


# ------------------------------------------------------------------ the list


def test_the_list_says_it_in_words(planner: Client, db: None) -> None:
    make(expression="30 9 * * 1-5", time_zone="Europe/Paris", due_in=7190.0)
    text = page(planner)
    for expected in ("nightly", "At 09:30 on Monday through Friday", "30 9 * * 1-5", "Europe/Paris", ">in 1 h<"):
        assert expected in text, expected
    make("quick", expression="every 5 minutes")
    assert "Every 5 minutes" in page(planner)


def test_the_list_shows_the_last_job_and_its_result(planner: Client, db: None) -> None:
    one = make()
    run(one)
    job = Job.objects.get()
    assert f'href="{SCHEDULES}{one.pk}/change/"' in page(planner, f"/admin/pgqueue/job/{job.pk}/change/")
    text = page(planner)
    assert f"/admin/pgqueue/job/{job.pk}/change/" in text and "pgqueue-ready" in text and " ago" in text
    job.delete()
    assert "removed" in page(planner)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("enabled = false", "paused"),
        ("expression = 'whenever'", "must have five fields"),
        ("time_zone = 'Mars'", "invalid time zone"),
        ("origin = 'code', confirmed_at = now() - interval '1 hour'", "in no worker"),
        ("next_run_at = now() - interval '1 minute'", "due now"),
        ("name = E'<b>\\x1b'", "&lt;b&gt;\\x1b"),
    ],
)
def test_the_list_says_what_is_the_matter(planner: Client, db: None, change: str, words: str) -> None:
    make()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE pgqueue_schedule SET {change}")
    assert words in page(planner)


def test_the_list_costs_a_few_queries_however_many_there_are(planner: Client, db: None) -> None:
    for number in range(20):
        one = make(f"schedule {number}")
        run(one)
    with CaptureQueriesContext(connection) as captured:
        page(planner)
    assert len(captured) <= 8, [query["sql"] for query in captured]


# ------------------------------------------------------------------ the form


@pytest.mark.quick
def test_one_is_made_and_edited(planner: Client, db: None) -> None:
    assert 'name="expression"' in page(planner, f"{SCHEDULES}add/")
    assert planner.post(f"{SCHEDULES}add/", GIVEN).status_code == 302
    one = Schedule.objects.get()
    assert (one.name, one.origin, one.expression, one.time_zone) == (
        "Weekly sum",
        "admin",
        "30 9 * * 1-5",
        "Europe/Paris",
    )
    assert one.arguments == {"args": [1], "kwargs": {"b": 2}}
    assert (one.missed, one.if_running, one.jitter_seconds, one.enabled, one.revision) == ("all", "skip", 30, True, 0)
    assert one.next_run_at > timezone.now()
    assert (one.queue_name, one.max_attempts) == (tasks.add.queue_name, 10)
    url = f"{SCHEDULES}{one.pk}/change/"
    assert "[1]" in page(planner, url)
    assert planner.post(url, GIVEN | {"expression": "every 2 hours", "args": "[5]", "enabled": ""}).status_code == 302
    one.refresh_from_db()
    assert (one.expression, one.arguments["args"], one.enabled) == ("every 2 hours", [5], False)
    assert planner.post(url, GIVEN).status_code == 302
    one.refresh_from_db()
    assert one.enabled
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
def test_what_is_wrong_is_said_at_its_field_and_nothing_is_written(
    planner: Client, db: None, change: dict[str, str], field: str, words: str
) -> None:
    make("taken")
    found = errors(planner.post(f"{SCHEDULES}add/", GIVEN | change))
    assert list(found) == [field]
    assert words in str(found[field])
    assert Schedule.objects.count() == 1


def test_all_that_is_wrong_is_said_at_once(planner: Client, db: None) -> None:
    wrong = {"name": "a\tb", "expression": "61 * * * *", "time_zone": "Mars", "args": "[1, 2, 3]", "missed": "?"}
    assert set(errors(planner.post(f"{SCHEDULES}add/", GIVEN | wrong))) == set(wrong)


def test_the_page_says_when_it_runs_and_what_is_wrong(planner: Client, db: None) -> None:
    one = make(due_in=7190.0)
    text = page(planner, f"{SCHEDULES}{one.pk}/change/")
    assert f">{one.next_run_at:%Y-%m-%d %H:%M:%S} UTC (in 1 h 59 min)<" in text
    assert "Problem" not in text
    text = page(planner, f"{SCHEDULES}{make('odd', expression='<b>').pk}/change/")
    assert "<dt>Problem</dt>" in text
    assert "Next run" not in text


def test_jitter_is_a_duration_or_none(planner: Client, db: None) -> None:
    for name, seconds, words in (("a", 0.0, ">none<"), ("b", 90.0, ">1 min 30 s<")):
        one = make(name, origin="code", jitter_seconds=seconds)
        assert words in page(planner, f"{SCHEDULES}{one.pk}/change/")


def test_one_of_the_code_is_to_look_at_and_can_be_paused(planner: Client, db: None) -> None:
    one = make(origin="code", arguments='{"args":["<b>"],"kwargs":{}}')
    url = f"{SCHEDULES}{one.pk}/"
    text = page(planner, f"{url}change/")
    assert 'name="expression"' not in text and "&lt;b&gt;" in text and 'name="_save"' not in text
    assert planner.post(f"{url}change/", GIVEN).status_code == 403
    assert planner.post(f"{url}delete/", {"post": "yes"}).status_code == 403
    planner.post(f"{url}pause/")
    one.refresh_from_db()
    assert not one.enabled
    assert one.expression == "* * * * *"


def test_one_is_removed_with_the_record_of_its_ticks(planner: Client, db: None) -> None:
    one, other = make(), make("of code", origin="code")
    for each in (one, other):
        run(each)
    assert "Are you sure" in page(planner, f"{SCHEDULES}{one.pk}/delete/")
    assert planner.post(f"{SCHEDULES}{one.pk}/delete/", {"post": "yes"}).status_code == 302
    assert [left.pk for left in Schedule.objects.all()] == [other.pk]
    assert [run.schedule_id for run in ScheduleRun.objects.all()] == [other.pk]
    assert Job.objects.count() == 2


# ------------------------------------------------------------------ acts


def test_run_pause_and_resume(planner: Client, db: None) -> None:
    one = make(due_in=-3600.0)
    url = f"{SCHEDULES}{one.pk}/"
    text = page(planner, f"{url}change/")
    assert [name for name in ("run", "pause", "resume") if f'action="{url}{name}/"' in text] == ["run", "pause"]
    assert "1 job is enqueued" in planner.post(f"{url}run/", follow=True).content.decode()
    assert Job.objects.get().task_name == helpers.NOOP
    planner.post(f"{url}pause/")
    assert f'action="{url}resume/"' in page(planner, f"{url}change/")
    assert "Nothing was changed" in planner.post(f"{url}pause/", follow=True).content.decode()
    planner.post(f"{url}resume/")
    one.refresh_from_db()
    assert one.enabled
    assert one.next_run_at > timezone.now(), "what came in the pause is not owed"
    assert [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")] == [
        "Run now.",
        "Pause.",
        "Resume.",
    ]
    assert planner.get(f"{url}run/").status_code == 405
    assert "does not exist any more" in planner.post(f"{SCHEDULES}4711/run/", follow=True).content.decode()


def test_actions_on_many(planner: Client, db: None) -> None:
    ones = [make(str(number), origin=origin) for number, origin in enumerate(["code", "admin", "admin"])]
    chosen = {"_selected_action": [one.pk for one in ones]}
    for action, done in (("pause", "3 schedules are paused"), ("pause", "Not changed: 3."), ("run", "3 jobs are")):
        answer = planner.post(SCHEDULES, {"action": f"{action}_selected", **chosen}, follow=True)
        assert done in answer.content.decode()
    assert Job.objects.count() == 3
    answer = planner.post(SCHEDULES, {"action": "resume_selected", **chosen}, follow=True)
    assert "3 schedules are resumed" in answer.content.decode()


def test_edit_of_a_changed_schedule_is_refused(planner: Client, db: None) -> None:
    """Two editors have the form open: the second does not overwrite what the first has written."""
    one = make()
    url = f"{SCHEDULES}{one.pk}/change/"
    shown = shown_by(planner, url)
    planner.post(url, {**GIVEN, **shown, "expression": "5 4 * * *"})
    answer = planner.post(url, {**GIVEN, **shown, "expression": "6 4 * * *"}, follow=True)
    assert "or has changed it. Try again." in answer.content.decode()
    one.refresh_from_db()
    assert one.expression == "5 4 * * *"


def test_one_whose_expression_is_wrong_cannot_be_resumed(planner: Client, db: None) -> None:
    one = make(expression="whenever")
    lifecycle.pause_schedule(connection, one.pk)
    assert "Nothing was changed" in planner.post(f"{SCHEDULES}{one.pk}/resume/", follow=True).content.decode()


def has(monkeypatch: pytest.MonkeyPatch, **options: Any) -> Task[Any, Any]:
    """Give the known task these options."""
    made: Task[Any, Any] = Task(func=tasks.noop.func, name=helpers.NOOP, **options)
    monkeypatch.setitem(registry._tasks, helpers.NOOP, made)
    return made


@pytest.mark.parametrize("unique_while", ["ready", 60])
def test_run_now_names_the_job_that_is_in_the_way(
    planner: Client, db: None, monkeypatch: pytest.MonkeyPatch, unique_while: Any
) -> None:
    there = has(monkeypatch, unique_key="k", unique_while=unique_while).enqueue()
    one = make("<b>")
    answer = planner.post(f"{SCHEDULES}{one.pk}/run/", follow=True).content.decode()
    assert f"No job is enqueued for &lt;b&gt;: job {there.pk} has its unique key." in answer
    chosen = {"action": "run_selected", "_selected_action": [one.pk, make("other", task_name="x.y").pk]}
    answer = planner.post(SCHEDULES, chosen, follow=True).content.decode()
    assert f"job {there.pk} has its unique key." in answer
    assert "1 job is enqueued" in answer
    assert "Not changed" not in answer
    assert Job.objects.filter(task_name=helpers.NOOP).count() == 1
    assert LogEntry.objects.count() == 1


def test_run_now_says_what_is_wrong_with_the_key(planner: Client, db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, unique_key=lambda *args: 7)
    answer = planner.post(f"{SCHEDULES}{make().pk}/run/", follow=True).content.decode()
    assert "No job is enqueued for nightly: the unique key raised TypeError" in answer
    assert not Job.objects.exists()


def test_run_now_inside_a_request_s_transaction_outlives_a_key_whose_query_fails(
    planner: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ATOMIC_REQUESTS."""

    def key(*args: object) -> str:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1 / 0")
        return "k"

    has(monkeypatch, unique_key=key)
    chosen = {"action": "run_selected", "_selected_action": [make().pk, make("other", task_name="x.y").pk]}
    answer = planner.post(SCHEDULES, chosen, follow=True).content.decode()
    assert "No job is enqueued for nightly: the unique key raised DataError" in answer
    assert "1 job is enqueued" in answer


def test_what_a_worker_could_not_fire_is_shown_with_the_reason(planner: Client, db: None) -> None:
    one = make(due_in=-60.0)
    lifecycle.note_problem(connection, helpers.schedule_of(connection, one.pk), "the unique key raised <KeyError>")
    for text in (page(planner), page(planner, f"{SCHEDULES}{one.pk}/change/")):
        assert "the unique key raised &lt;KeyError&gt;" in text
    assert ">cannot run<" in page(planner)


def test_a_schedule_has_the_expiry_and_the_uniqueness_of_its_task(
    planner: Client, db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, unique_key="k", expires=30)
    given = GIVEN | {"task_name": helpers.NOOP}
    assert "make jitter shorter" in str(errors(planner.post(f"{SCHEDULES}add/", given))["jitter_seconds"])
    planner.post(f"{SCHEDULES}add/", given | {"jitter_seconds": "29"})
    one = Schedule.objects.get()
    assert (one.expires_seconds, one.is_unique) == (30.0, True)


@pytest.mark.parametrize("held", ALL[1:])
def test_each_act_needs_its_permission(client_of: Callable[..., Client], db: None, held: str) -> None:
    client, one = client_of("view_schedule", held), make()
    url = f"{SCHEDULES}{one.pk}/"
    needs = {
        "add_schedule": (f"{SCHEDULES}add/", GIVEN),
        "change_schedule": (f"{url}change/", GIVEN),
        "run_schedule": (f"{url}run/", {}),
        "pause_schedule": (f"{url}pause/", {}),
        "delete_schedule": (f"{url}delete/", {"post": "yes"}),
    }
    answers = {name: client.post(*call).status_code for name, call in needs.items()}
    assert answers == {name: 302 if name == held else 403 for name in needs}


@pytest.mark.django_db(transaction=True)
def test_one_that_somebody_holds_is_said_to_be_locked(planner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_pgqueue.lifecycle.schedules.LOCK_WAIT_SECONDS", 0.05)
    one = make()
    with closing(helpers.connect()) as other, helpers.transaction(other):
        other.execute("SELECT FROM pgqueue_schedule FOR UPDATE")
        assert "or is locked" in planner.post(f"{SCHEDULES}{one.pk}/run/", follow=True).content.decode()
        answer = planner.post(f"{SCHEDULES}{one.pk}/change/", GIVEN, follow=True)
        assert "another session has locked" in answer.content.decode()
    assert not Job.objects.exists()
