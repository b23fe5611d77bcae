"""Queue and priority of schedules that are defined in the admin: the form, the list, and the jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from django_pgqueue.models import Job, Schedule, ScheduleRun
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from django_pgqueue.testing import delete_all_jobs
from django_pgqueue.worker.maintenance.scheduler import Scheduler
from tests import helpers
from tests.admin.test_schedules import ALL, GIVEN, SCHEDULES, errors, make, page
from tests.app import tasks
from tests.framework import tasks as framework

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

OWN = {**GIVEN, "task_name": helpers.NOOP, "args": "[]", "kwargs": "{}", "queue_name": "reports", "priority": "-10"}
DEFAULTS = {**OWN, "queue_name": "", "priority": ""}


@pytest.fixture
def planner(client_of: Callable[..., Client]) -> Client:
    """Return a client whose user has all permissions for schedules."""
    return client_of(*ALL, "view_job", "view_arguments")


@pytest.fixture
def redefine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives the task of these tests other options, as a deploy does."""

    def redefine(**options: Any) -> None:
        made: Task[Any, Any] = Task(func=tasks.noop.func, name=helpers.NOOP, **options)
        monkeypatch.setitem(registry._tasks, helpers.NOOP, made)

    return redefine


def fire() -> list[tuple[str, int]]:
    """Fire the next tick of all schedules, and return the queue and the priority of their jobs, which are deleted."""
    connection.cursor().execute("UPDATE pgqueue_schedule SET next_run_at = now(), expression = '* * * * *'")
    Scheduler().turn(connection)
    found = list(Job.objects.order_by("pk").values_list("queue_name", "priority"))
    delete_all_jobs()
    ScheduleRun.objects.all().delete()  # a tick is fired only once, and now() stays the same within the test
    return found


def shown_in_form(client: Client, schedule: Schedule) -> tuple[str | None, str | None]:
    """Return what the fields of the schedule's form contain."""
    text = page(client, f"{SCHEDULES}{schedule.pk}/change/")
    found = [re.search(rf'<input[^>]* name="{name}"[^>]*>', text) for name in ("queue_name", "priority")]
    values = [each and re.search(r'value="([^"]*)"', each[0]) for each in found]
    return tuple(each and each[1] for each in values)  # type: ignore[return-value]  # two


def test_form_own_queue_and_priority_stay_when_the_task_changes(planner: Client, redefine: Callable[..., None]) -> None:
    planner.post(f"{SCHEDULES}add/", OWN)
    schedule = Schedule.objects.get()
    assert fire() == [("reports", -10)]
    redefine(queue_name="mail", priority=3)
    assert fire() == [("reports", -10)]
    planner.post(f"{SCHEDULES}{schedule.pk}/run/")
    assert list(Job.objects.values_list("queue_name", "priority")) == [("reports", -10)]
    assert shown_in_form(planner, schedule) == ("reports", "-10")


def test_form_empty_queue_and_priority_follow_the_task(planner: Client, redefine: Callable[..., None]) -> None:
    planner.post(f"{SCHEDULES}add/", OWN)
    schedule = Schedule.objects.get()
    planner.post(f"{SCHEDULES}{schedule.pk}/change/", DEFAULTS)
    assert fire() == [("default", 0)]
    redefine(queue_name="mail", priority=3)
    assert fire() == [("mail", 3)]
    assert shown_in_form(planner, schedule) == (None, None)
    planner.post(f"{SCHEDULES}{schedule.pk}/change/", {**DEFAULTS, "priority": "0"})
    assert fire() == [("mail", 0)]
    assert shown_in_form(planner, schedule) == (None, "0")


def test_row_without_own_queue_follows_the_task_if_it_is_known(redefine: Callable[..., None]) -> None:
    """Such a row has the queue that its task had when it was saved. A worker without the task uses that queue."""
    redefine(queue_name="mail", priority=3)
    make(queue_name="former", priority=5)
    make("other", task_name="shop.tasks.unknown", queue_name="former", priority=5)
    assert sorted(fire()) == [("former", 5), ("mail", 3)]


def test_worker_without_the_task_uses_the_own_queue(planner: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    planner.post(f"{SCHEDULES}add/", OWN)
    monkeypatch.delitem(registry._tasks, helpers.NOOP)
    assert fire() == [("reports", -10)]


def test_list_and_page_show_the_queue_of_the_next_job(planner: Client, redefine: Callable[..., None]) -> None:
    redefine(queue_name="mail", priority=3)
    planner.post(f"{SCHEDULES}add/", OWN)
    followed, declared = make("follows", queue_name="former"), make("declared", origin="code", queue_name="slow")
    text = " ".join(page(planner).split())
    for queue in ("reports", "mail", "slow"):
        assert f'<td class="field-queue">{queue}<wbr></td>' in text, queue
    assert "former" not in text
    facts = " ".join(page(planner, f"{SCHEDULES}{followed.pk}/change/").split())
    assert re.search(r"<dt>Queue</dt> ?<dd>mail</dd>", facts) and re.search(r"<dt>Priority</dt> ?<dd>3</dd>", facts)
    facts = " ".join(page(planner, f"{SCHEDULES}{declared.pk}/change/").split())
    assert re.search(r"<dt>Priority</dt> ?<dd>0</dd>", facts)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"queue_name": "no spaces"}, "must be 1 to 100 of the characters"),
        ({"queue_name": "x" * 101}, "must be 1 to 100 of the characters"),
        ({"priority": "101"}, "must be a whole number from -100 to 100"),
        ({"priority": "-101"}, "must be a whole number from -100 to 100"),
        ({"priority": "1.5"}, "Enter a whole number"),
        ({"priority": "9" * 30}, "must be a whole number from -100 to 100"),
    ],
)
def test_form_invalid_queue_or_priority_is_reported_at_its_field(
    planner: Client, change: dict[str, str], words: str
) -> None:
    found = errors(planner.post(f"{SCHEDULES}add/", OWN | change))
    assert list(found) == list(change)
    assert words in str(found)
    assert not Schedule.objects.exists()


def test_form_queue_that_a_setting_lacks_is_refused(planner: Client, settings: Any) -> None:
    settings.PGQUEUE = {"QUEUES": ["default", "report"]}
    found = errors(planner.post(f"{SCHEDULES}add/", OWN))
    assert "&#x27;reports&#x27; is not in PGQUEUE" in str(found["queue_name"])
    assert "did you mean &#x27;report&#x27;?" in str(found["queue_name"])
    settings.PGQUEUE = {"QUEUES": ["default", "reports"]}
    assert planner.post(f"{SCHEDULES}add/", OWN).status_code == 302


def test_form_queue_that_the_backend_lacks_is_refused(
    planner: Client, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    name = framework.noop.module_path
    monkeypatch.setattr(registry.get(name).adapter, "queues", frozenset({"default"}))  # type: ignore[union-attr]  # known
    found = errors(planner.post(f"{SCHEDULES}add/", {**OWN, "task_name": name}))
    assert list(found) == ["queue_name"]
    assert "is not one of the backend&#x27;s QUEUES (default)" in str(found)


def test_form_mistyped_queue_warns_once_and_is_saved(planner: Client) -> None:
    answer = planner.post(f"{SCHEDULES}add/", {**OWN, "queue_name": "defualt"}, follow=True).content.decode()
    assert "did you mean &#x27;default&#x27;?" in answer
    schedule = Schedule.objects.get()
    assert schedule.queue_name == "defualt"
    url = f"{SCHEDULES}{schedule.pk}/change/"
    answer = planner.post(url, {**OWN, "queue_name": "defualt"}, follow=True).content.decode()
    assert "did you mean" not in answer, "the schedule itself uses the queue now"
