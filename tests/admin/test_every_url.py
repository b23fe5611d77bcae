"""Every URL and every action that the admin has for our models, as they are registered: a new one is tried unasked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from django_pgqueue.admin.job_actions import OPERATIONS
from django_pgqueue.models import Execution, Job, Pause, Schedule, ScheduleRun, Worker
from tests.admin.conftest import JobMaker, add_execution

pytestmark = pytest.mark.slow

ADMINS = {model: own for model, own in admin.site._registry.items() if model._meta.app_label == "pgqueue"}
ACTIONS: set[tuple[type, str]] = {
    (model, str(name)) for model, own in ADMINS.items() for name in (*(own.actions or ()), "delete_selected")
}
LATER = timezone.now().replace(year=timezone.now().year + 1)


def list_of(model: type) -> str:
    return f"/admin/pgqueue/{model.__name__.lower()}/"


def urls(job: Job) -> Iterator[str]:
    """Every URL of our admins, about this job where it is about one."""
    for model, own in ADMINS.items():
        for pattern in own.get_urls():
            yield list_of(model) + re.sub(r"<[^>]+>", str(job.pk), str(pattern.pattern))


@pytest.fixture
def jobs(make_job: JobMaker) -> list[Job]:
    """A job for each act to be possible on, one with an execution; a worker; a pause and schedules of their numbers."""
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    found = [make_job("dead"), make_job("ready", run_after=LATER), make_job("running")]
    Pause.objects.create(pk=found[0].pk, kind="queue", name="default")
    add_execution(found[0])
    for job in found:
        about: dict[str, Any] = {"task_name": "app.add", "arguments": {"args": [], "kwargs": {}}, "next_run_at": LATER}
        Schedule.objects.create(pk=job.pk, name=f"of {job.pk}", expression="@daily", **about)
    return found


def all_rows() -> list[object]:
    return [
        list(model.objects.order_by("pk").values())
        for model in (Job, Execution, Worker, Pause, Schedule, ScheduleRun, LogEntry)
    ]


def acts_of(client: Client, jobs: list[Job]) -> Iterator[tuple[str, int]]:
    """Try every button on every job and every action on all of them; yield what was tried, and the answer's status."""
    for job in jobs:
        for url in reversed(list(urls(job))):  # "run now" before "cancel" leaves nothing to run
            yield url, client.post(url, {"post": "yes", "state": "ready"}).status_code
    for model, name in ACTIONS:
        for across in "01":
            chosen = {"action": name, "_selected_action": [job.pk for job in jobs], "select_across": across}
            yield (
                f"{list_of(model)} {name}",
                client.post(list_of(model), chosen | {"post": "yes", "confirmed": "1"}).status_code,
            )


def test_the_doors_are_found(jobs: list[Job]) -> None:
    found = list(urls(jobs[0]))
    assert len(found) >= 4 * 6 + 3 and len(ACTIONS) == 14
    assert {f"/admin/pgqueue/job/{jobs[0].pk}/{operation.name}/" for operation in OPERATIONS} <= set(found)
    assert {f"/admin/pgqueue/{name}/" for name in ("job", "deadjob", "pause", "schedule", "worker")} <= set(found)


@pytest.mark.quick
def test_anonymous_gets_nothing_from_any(client: Client, jobs: list[Job]) -> None:
    before = all_rows()
    for job in jobs:
        for url in urls(job):
            for answer in (client.get(url), client.head(url), client.post(url), client.put(url), client.delete(url)):
                assert answer.status_code == 302 and "/login/" in answer.headers["Location"], url
    assert all(status == 302 for _, status in acts_of(client, jobs))
    assert all_rows() == before


def test_a_user_who_is_no_staff_gets_nothing_from_any(client: Client, jobs: list[Job]) -> None:
    client.force_login(User.objects.create_user("visitor", is_superuser=True))
    assert {client.get(url).status_code for url in urls(jobs[0])} == {302}


def test_who_may_only_look_can_do_nothing(client_of: Callable[..., Client], jobs: list[Job]) -> None:
    seen = ("view_job", "view_worker", "view_execution", "view_pause", "view_schedule")
    client, before = client_of(*seen), all_rows()
    tried = dict(acts_of(client, jobs))
    assert len(tried) > 50
    assert all_rows() == before


def test_the_tries_would_do_something(operator: Client, jobs: list[Job]) -> None:
    """By an operator, each act that is tried above happens: else those tests prove nothing."""
    dict(acts_of(operator, jobs))
    done = {entry.get_change_message() for entry in LogEntry.objects.all()}
    assert done >= {"Retry.", "Cancel.", "Run now.", "Resumed.", "Pause.", "Resume."}
    assert not Pause.objects.exists()


def test_looking_changes_nothing(operator: Client, jobs: list[Job]) -> None:
    before = all_rows()
    for job in jobs:
        for url in urls(job):
            assert operator.get(url).status_code in {200, 302, 403, 404, 405}, url
        for model, name in ACTIONS:
            query: dict[str, Any] = {"action": name, "_selected_action": job.pk, "select_across": "1", "post": "yes"}
            operator.get(list_of(model), query)
    assert all_rows() == before


def test_without_the_token_nothing_is_taken(operator: Client, jobs: list[Job]) -> None:
    strict, before = Client(enforce_csrf_checks=True), all_rows()
    strict.cookies = operator.cookies
    assert {status for _, status in acts_of(strict, jobs)} == {403}
    assert all_rows() == before
