"""The admin hides sensitive and encoded values, and all data of the application from users without `view_arguments`."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client, override_settings
from django.utils import timezone

from django_pgqueue.ground.envelope import seal
from django_pgqueue.models import Job, Schedule
from django_pgqueue.tasks.redaction import HIDDEN
from django_pgqueue.testing import run_jobs
from tests.admin.conftest import JobMaker, add_execution
from tests.app import tasks

JOBS, DEAD, SCHEDULES = (f"/admin/pgqueue/{model}/" for model in ("job", "deadjob", "schedule"))
SECRET = "hunter2-correct-horse"
NO_PERMISSION = "you do not have the permission “Can view arguments and results of jobs”"
SEEN = ("view_job", "view_worker", "view_pause", "view_schedule")
CODEC = {"CODECS": ["tests.app.codecs.Hidden"]}


def text_of(client: Client, url: str, query: dict[str, str] | None = None) -> str:
    response = client.get(url, query or {})
    assert response.status_code == 200, url
    return unescape(response.content.decode()).replace("<wbr>", "")


def secret_job(make_job: JobMaker) -> Job:
    """Return a dead job that has the secret in each text of its row and of its execution."""
    job = make_job(
        "dead",
        task_name=tasks.noop.name,
        arguments={"args": [SECRET], "kwargs": {"a": SECRET}},
        headers={"tenant": SECRET},
        result={"a": SECRET},
        unique_key=SECRET,
        progress_done=1.0,
        progress_total=2.0,
        progress_message=SECRET,
        progress_at=timezone.now(),
    )
    add_execution(job, error=SECRET, traceback=f"Traceback\nKeyError: {SECRET}", exception_class="builtins.KeyError")
    return job


def make_schedule(task_name: str, arguments: object, origin: str = "admin") -> Schedule:
    return Schedule.objects.create(
        name="nightly",
        task_name=task_name,
        arguments=arguments,
        expression="@daily",
        origin=origin,
        next_run_at=timezone.now(),
    )


# ------------------------------------------------------------------ the permission


def test_user_without_permission_sees_no_data_of_a_job(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = secret_job(make_job), client_of(*SEEN)
    page = text_of(client, f"{JOBS}{job.pk}/change/")
    for url in (JOBS, DEAD, f"{JOBS}{job.pk}/change/", f"{DEAD}{job.pk}/change/", f"{JOBS}{job.pk}/history/"):
        assert SECRET not in text_of(client, url), url
    for query in ({"q": SECRET}, {"q": str(job.pk)}, {"q": job.task_name}, {"state": "dead"}):
        assert SECRET not in re.sub(r'value="[^"]*"|\?[^"]*"', "", text_of(client, JOBS, query)), query
    assert page.count(NO_PERMISSION) == 5, "arguments, headers, result, unique key, errors"
    assert "KeyError" in page and "1 of 2" in page and "50 %" in page
    listed = text_of(client, JOBS)
    assert NO_PERMISSION in listed and NO_PERMISSION in text_of(client, DEAD)
    assert "KeyError" in listed


def test_user_with_permission_sees_all_data(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = secret_job(make_job), client_of(*SEEN, "view_arguments")
    assert text_of(client, f"{JOBS}{job.pk}/change/").count(SECRET) == 8
    assert SECRET in text_of(client, JOBS) and SECRET in text_of(client, DEAD)
    assert NO_PERMISSION not in text_of(client, JOBS) + text_of(client, f"{JOBS}{job.pk}/change/")


def test_superuser_sees_all_data(client: Client, make_job: JobMaker) -> None:
    client.force_login(User.objects.create_superuser("root"))
    assert text_of(client, f"{JOBS}{secret_job(make_job).pk}/change/").count(SECRET) == 8


def test_user_without_permission_can_still_operate(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = secret_job(make_job), client_of(*SEEN, "retry_job")
    answer = client.post(f"{JOBS}{job.pk}/retry/", follow=True).content.decode()
    assert "is ready again" in answer and SECRET not in answer
    job.refresh_from_db()
    assert job.state == "ready"


@pytest.mark.parametrize("lookup", ["arguments__icontains", "result__icontains", "unique_key", "headers__icontains"])
def test_list_cannot_be_filtered_by_hidden_data(
    client_of: Callable[..., Client], make_job: JobMaker, lookup: str
) -> None:
    """A filter would reveal a value that the list does not show."""
    secret_job(make_job)
    assert client_of(*SEEN).get(JOBS, {lookup: SECRET[:3]}).status_code in {302, 400}


@pytest.mark.parametrize("origin", ["admin", "code"])
def test_schedule_hides_arguments_without_permission(
    client_of: Callable[..., Client], make_user: Callable[..., User], db: None, origin: str
) -> None:
    schedule = make_schedule(tasks.noop.name, {"args": [SECRET], "kwargs": {}}, origin)
    client = client_of(*SEEN, "change_schedule")
    url = f"{SCHEDULES}{schedule.pk}/change/"
    page = text_of(client, url)
    assert SECRET not in page and NO_PERMISSION in page and 'name="args"' not in page
    assert client.post(url, {"args": "[]"}).status_code == 403
    other = Client()
    other.force_login(make_user(*SEEN, "change_schedule", "view_arguments", name="other"))
    page = text_of(other, url)
    assert SECRET in page and ('name="args"' in page) is (origin == "admin")


# ------------------------------------------------------------------ sensitive, encoded and unknown


def test_sensitive_arguments_are_hidden_from_everyone(operator: Client, make_job: JobMaker) -> None:
    call = {"args": ["order-17", SECRET], "kwargs": {"fail": False, "former": SECRET}}
    job, schedule = make_job(task_name=tasks.use_token.name, arguments=call), make_schedule(tasks.use_token.name, call)
    for url in (f"{JOBS}{job.pk}/change/", f"{SCHEDULES}{schedule.pk}/change/"):
        page = text_of(operator, url)
        assert SECRET not in page and "order-17" in page and page.count(HIDDEN) == 2
        assert "The task marks some arguments as sensitive" in page


@pytest.mark.parametrize("call", [[SECRET], {"args": SECRET, "kwargs": {}}, {"args": []}, SECRET, {"token": SECRET}])
def test_sensitive_task_odd_arguments_are_hidden(operator: Client, make_job: JobMaker, call: object) -> None:
    page = text_of(operator, f"{JOBS}{make_job(task_name=tasks.use_token.name, arguments=call).pk}/change/")
    assert SECRET not in page and "they cannot be separated here" in page


def test_sensitive_result_is_hidden_from_everyone(operator: Client, make_job: JobMaker) -> None:
    job = make_job("succeeded", task_name=tasks.issue_token.name, result=SECRET)
    page = text_of(operator, f"{JOBS}{job.pk}/change/")
    assert SECRET not in page and "the task marks its result as sensitive" in page


def test_unknown_task_shows_no_arguments_and_no_result(operator: Client, make_job: JobMaker) -> None:
    job = make_job("succeeded", task_name="shop.tasks.removed", arguments={"args": [SECRET]}, result=SECRET)
    page = text_of(operator, f"{JOBS}{job.pk}/change/")
    assert SECRET not in page and page.count("this process does not know the task") == 2
    schedule = make_schedule("shop.tasks.removed", {"args": [SECRET], "kwargs": {}}, "code")
    page = text_of(operator, f"{SCHEDULES}{schedule.pk}/change/")
    assert SECRET not in page and "this process does not know the task" in page


@pytest.mark.parametrize("has_codec", [True, False])
def test_encoded_values_show_only_the_name_of_the_codec(operator: Client, db: None, has_codec: bool) -> None:
    with override_settings(PGQUEUE=CODEC):
        job = tasks.use_token.enqueue(SECRET)
        run_jobs(raising=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT arguments ->> 'data' FROM pgqueue_job")
        [data] = cursor.fetchone()
    with override_settings(PGQUEUE=CODEC if has_codec else {}):
        page = text_of(operator, f"{JOBS}{job.pk}/change/")
        assert page.count("Encoded by “hidden”.") == 2
        assert SECRET not in page and data not in page and "pgqueue_codec" not in page
        url = f"{JOBS}{job.pk}/retry/"
        asked = operator.post(url, follow=True).content.decode()
        assert "Run succeeded jobs again?" in asked
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET arguments = %s::json", [seal("x<b>", b"A" * 300_000)])
    page = text_of(operator, f"{JOBS}{job.pk}/change/")
    assert "Encoded by “x<b>”." in page and "QUFB" not in page


# ------------------------------------------------------------------ the form of a schedule


def form_of(task_name: str, **changes: str) -> dict[str, str]:
    return {
        "name": "nightly",
        "task_name": task_name,
        "args": "[]",
        "kwargs": "{}",
        "expression": "@daily",
        "time_zone": "UTC",
        "missed": "all",
        "if_running": "skip",
        "jitter_seconds": "0",
        "enabled": "on",
        **changes,
    }


def test_schedule_form_shows_and_accepts_no_sensitive_argument(client_of: Callable[..., Client], db: None) -> None:
    client = client_of(*SEEN, "add_schedule", "change_schedule", "view_arguments")
    given = form_of(tasks.use_token.name, args='["order-17"]', kwargs=f'{{"token": "{SECRET}"}}')
    refused = unescape(client.post(f"{SCHEDULES}add/", given).content.decode())
    assert "it has sensitive arguments, which belong in the code" in refused and not Schedule.objects.exists()
    assert client.post(f"{SCHEDULES}add/", given | {"kwargs": "{}"}).status_code == 302
    schedule = Schedule.objects.get()
    Schedule.objects.update(arguments={"args": ["order-17", SECRET], "kwargs": {}})
    url = f"{SCHEDULES}{schedule.pk}/change/"
    page = text_of(client, url)
    assert SECRET not in page and "order-17" in page and HIDDEN in page
    again = unescape(client.post(url, given | {"args": f'["order-17", "{HIDDEN}"]', "kwargs": "{}"}).content.decode())
    assert "it has sensitive arguments" in again
    assert Schedule.objects.get().arguments["args"] == ["order-17", SECRET]
