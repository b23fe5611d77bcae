"""Enqueue a job from the admin: the form, the permission, the records, and what a second click does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import unescape
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_pgqueue import control
from django_pgqueue.models import AuditedJob, AuditEntry, Job, Schedule
from django_pgqueue.tasks import registry
from tests.admin.limits import declare
from tests.admin.test_edit_and_retry import fields_in
from tests.admin.test_schedules import SCHEDULES, make
from tests.admin.test_stale_pages import post_at_once
from tests.app import tasks

pytestmark = pytest.mark.slow

ADD = f"/admin/pgqueue/job/enqueue/{tasks.add.name}/"


@pytest.fixture
def sender(client_of: Callable[..., Client]) -> Client:
    return client_of("view_job", "enqueue_job")


def send(client: Client, url: str = ADD, **fields: str) -> str:
    form = {**fields_in(client.get(url).content.decode()), **{name.replace("__", "-"): fields[name] for name in fields}}
    return unescape(client.post(url, form, follow=True).content.decode())


@pytest.mark.quick
def test_enqueue_adds_a_job_with_its_records(sender: Client) -> None:
    assert reverse("admin:pgqueue_enqueue", args=[tasks.add.name]) == ADD
    page = send(sender, argument__a="5", queue_name="mail", priority="-3", run_after="2030-01-31T08:00:00")
    job = Job.objects.get()
    assert f"Job #{job.pk} is enqueued." in page and "The time zone" not in page
    assert (job.task_name, job.arguments) == (tasks.add.name, {"args": [], "kwargs": {"a": 5}})
    assert (job.queue_name, job.priority) == ("mail", -3)
    assert timezone.localtime(job.run_after).isoformat().startswith("2030-01-31T08:00:00")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by) == ("enqueue", "staff")
    assert entry.filter == {"task": tasks.add.name, "queue": "mail"}
    assert AuditedJob.objects.get().job_id == job.pk
    assert (LogEntry.objects.get().change_message, LogEntry.objects.get().object_id) == ("Enqueued.", str(job.pk))


def test_enqueue_without_options_uses_those_of_the_task(sender: Client) -> None:
    send(sender, argument__a="5")
    job = Job.objects.get()
    assert (job.queue_name, job.priority) == (tasks.add.queue_name, tasks.add.priority)
    assert job.run_after <= timezone.now()


@pytest.mark.parametrize(
    ("paused", "fields", "is_on_form"),
    [
        ({"queue_name": tasks.add.queue_name}, {}, True),
        ({"task": tasks.add}, {}, True),
        ({"queue_name": "mail"}, {"queue_name": "mail"}, False),
        ({"queue_name": "mail"}, {}, None),
    ],
)
def test_enqueue_says_what_is_paused(
    sender: Client, paused: dict[str, Any], fields: dict[str, str], is_on_form: bool | None
) -> None:
    control.pause(**paused, reason="the bank is down", by="ada")
    text = "does not start before this is resumed"
    form = unescape(sender.get(ADD).content.decode())
    assert ("The job " + text in form and "by ada: the bank is down" in form) is (is_on_form is True)
    page = send(sender, argument__a="5", **fields)
    assert (f"Job #{Job.objects.get().pk} {text}" in page) is (is_on_form is not None)


def test_enqueue_says_which_limit_is_paused(sender: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/admin/pgqueue/job/enqueue/{declare(monkeypatch)['render'].name}/"
    control.pause(limit_key="render:5")
    assert "before this is resumed" not in sender.get(path).content.decode()
    assert "before this is resumed" not in send(sender, path, argument__a="6")
    assert "before this is resumed: limit render" in send(sender, path, argument__a="5")
    control.pause(limit_key="render")
    assert "before this is resumed: limit render" in sender.get(path).content.decode()


def test_enqueue_with_errors_says_that_the_typed_queue_is_paused(sender: Client) -> None:
    control.pause("mail")
    assert "before this is resumed: queue mail, paused" in send(sender, queue_name="mail")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "This field is required"),
        ({"argument__a": "x"}, "Enter a number"),
        ({"argument__a": "1", "queue_name": "a b"}, "must be 1 to 100"),
        ({"argument__a": "1", "priority": "200"}, "less than or equal to 100"),
        ({"argument__a": "1", "run_after": "soon"}, "Enter a valid date/time"),
        ({"argument__a": "1", "run_after": "9500-01-01T00:00:00"}, "run_after"),
        ({"argument__a": "1", "form_token": "x"}, "the form was incomplete"),
    ],
)
def test_enqueue_checks_each_field(sender: Client, fields: dict[str, str], words: str) -> None:
    assert words in send(sender, **fields)
    assert not Job.objects.exists() and not AuditEntry.objects.exists()


def test_enqueue_to_a_probably_mistyped_queue_asks_again(sender: Client) -> None:
    tasks.add.using(queue_name="reports").enqueue(1)
    page = send(sender, argument__a="2", queue_name="reprots")
    assert "did you mean 'reports'" in page and 'name="anyway"' in page
    assert Job.objects.count() == 1
    send(sender, argument__a="2", queue_name="reprots", anyway="on")
    assert Job.objects.filter(queue_name="reprots").count() == 1


@pytest.mark.promise("enqueue-once")
@pytest.mark.django_db(transaction=True)
def test_enqueue_double_click_adds_one_job(sender: Client) -> None:
    form = {**fields_in(sender.get(ADD).content.decode()), "argument-a": "5"}
    pages = post_at_once(*[partial(sender.post, ADD, form, follow=True)] * 2)
    assert sorted("This form was sent before" in page for page in pages) == [False, True]
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("unique_key", "sees_arguments", "is_offered"),
    [
        (lambda *args, **kwargs: str(args), False, False),
        (lambda *args, **kwargs: str(args), True, True),
        ("one", False, True),
        (None, False, True),
    ],
)
def test_enqueue_form_is_no_oracle_of_unique_keys(
    client_of: Callable[..., Client],
    monkeypatch: pytest.MonkeyPatch,
    unique_key: Any,
    sees_arguments: bool,
    is_offered: bool,
) -> None:
    task = tasks.add.using(unique_key=unique_key)
    monkeypatch.setitem(registry._tasks, task.name, task)
    url = f"/admin/pgqueue/job/enqueue/{task.name}/"
    client = client_of("view_job", "enqueue_job", *(["view_arguments"] if sees_arguments else []))
    assert client.get(url).status_code == (200 if is_offered else 302)
    answers = [client.post(url, {"argument-a": number, "form_token": str(uuid4())}, follow=True) for number in "112"]
    if not is_offered:
        assert not Job.objects.exists()
        assert all("whether a job with these arguments exists" in answer.content.decode() for answer in answers)


def test_enqueue_of_a_unique_job_adds_no_second_one(sender: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.add.using(unique_key="one", on_conflict="raise")
    monkeypatch.setattr("django_pgqueue.tasks.registry._tasks", {tasks.add.name: task})
    send(sender, argument__a="1")
    assert "No job was added" in send(sender, argument__a="2") or Job.objects.count() == 1
    assert Job.objects.get().arguments["kwargs"] == {"a": 1} and AuditEntry.objects.count() == 1


def test_enqueue_of_arguments_of_another_database_is_refused(sender: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    task = tasks.add.using(database=lambda a, b=0: "default" if a == 1 else "elsewhere")
    monkeypatch.setattr("django_pgqueue.tasks.registry._tasks", {tasks.add.name: task})
    monkeypatch.setattr(
        "django_pgqueue.admin.forms.enqueue_form.alias_of", lambda task, args, kwargs: task.database(**kwargs)
    )
    assert "these arguments belong to the database elsewhere" in send(sender, argument__a="2")
    assert not Job.objects.exists()
    send(sender, argument__a="1")
    assert Job.objects.get().arguments["kwargs"] == {"a": 1}


@pytest.mark.parametrize("held", [("view_job",), ("enqueue_job",), ("view_job", "retry_job", "edit_and_retry_job")])
def test_enqueue_needs_its_permission(client_of: Callable[..., Client], held: tuple[str, ...]) -> None:
    client = client_of(*held)
    for answer in (client.get(ADD), client.post(ADD, {"argument-a": "1"})):
        assert answer.status_code == 403
    assert not Job.objects.exists()


@pytest.mark.parametrize("name", ["shop.gone", "x" * 300, "%00", "<b>", "..", "a b"])
def test_enqueue_of_an_unknown_task_is_refused(sender: Client, name: str) -> None:
    answer: Any = sender.get(f"/admin/pgqueue/job/enqueue/{name}/", follow=True)
    assert answer.status_code in {200, 404}
    assert "<b>" not in answer.content.decode().split("messagelist")[-1][:500] and not Job.objects.exists()


RUNS = ("view_job", "enqueue_job", "view_schedule", "run_schedule", "view_arguments")


def test_schedule_runs_with_other_arguments(client_of: Callable[..., Client], db: None) -> None:
    client = client_of(*RUNS)
    schedule = make(task_name=tasks.add.name, arguments='{"args": [], "kwargs": {"a": 5}}')
    Schedule.objects.update(queue_name="night", has_own_queue=True)
    page = client.get(f"{SCHEDULES}{schedule.pk}/change/").content.decode()
    url = f"{ADD}?schedule={schedule.pk}"
    assert f'href="{url}">Run now with other arguments…</a>' in page
    form = client.get(url).content.decode()
    assert (fields_in(form)["argument-a"], fields_in(form)["queue_name"]) == ("5", "night")
    assert f'href="{SCHEDULES}{schedule.pk}/change/"' in form
    send(client, url, argument__a="6", reason="month end")
    job, entry = Job.objects.get(), AuditEntry.objects.get()
    assert (job.arguments["kwargs"], job.queue_name) == ({"a": 6}, "night")
    chosen = {"task": tasks.add.name, "queue": "night", "schedule": "nightly", "schedule_id": schedule.pk}
    assert (entry.action, entry.reason, entry.filter) == ("enqueue", "month end", chosen)
    assert Schedule.objects.get().last_job_id is None


@pytest.mark.parametrize("missing", RUNS[1:])
def test_schedule_form_needs_all_permissions(client_of: Callable[..., Client], db: None, missing: str) -> None:
    schedule = make(task_name=tasks.add.name, arguments='{"args": [], "kwargs": {"a": 5}}')
    client = client_of(*(each for each in RUNS if each != missing))
    answer = client.get(f"{ADD}?schedule={schedule.pk}", follow=True)
    assert "Run after" not in answer.content.decode()
    page = client.get(f"{SCHEDULES}{schedule.pk}/change/").content.decode()
    assert "other arguments" not in page


@pytest.mark.parametrize("given", ["", "x", "99", "9" * 30, "other"])
def test_schedule_that_does_not_fit_fills_no_form(client_of: Callable[..., Client], db: None, given: str) -> None:
    if given == "other":
        given = str(make(task_name=tasks.renamed.name).pk)
    answer = client_of(*RUNS).get(f"{ADD}?schedule={given}", follow=True).content.decode()
    assert "does not exist any more" in answer or "calls another task" in answer
