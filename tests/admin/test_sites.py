"""The console on an admin site of the project's own, which need not register every model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import User
from django.test import Client, override_settings
from django.urls import path
from django.utils import timezone

from django_pgqueue.admin import DeadJobAdmin, JobAdmin, PauseAdmin, ScheduleAdmin, WorkerAdmin
from django_pgqueue.models import DeadJob, Job, Pause, Schedule, ScheduleRun, Worker
from tests.app import tasks

from .conftest import JobMaker, add_execution

ADMINS: dict[Any, Any] = {
    Job: JobAdmin,
    DeadJob: DeadJobAdmin,
    Pause: PauseAdmin,
    Schedule: ScheduleAdmin,
    Worker: WorkerAdmin,
}
CONSOLE = ("overview/", "queues/", "queue/?queue=default", "tasks/", "incidents/", "bulk_acts/", "doctor/")


@pytest.fixture
def rows(make_job: JobMaker) -> list[str]:
    """Create rows that the pages link to each other; return the paths of the pages, below that of the app."""
    worker = Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1, supervisor_pid=4)
    jobs = [make_job(state, task_name=tasks.add.name) for state in ("dead", "running", "ready")]
    add_execution(jobs[0])
    jobs[1].executions.update(worker_id=worker.pk)
    Pause.objects.create(kind="queue", name="default")
    schedule = Schedule.objects.create(
        name="nightly",
        task_name=tasks.add.name,
        arguments={"args": [1], "kwargs": {}},
        expression="@daily",
        next_run_at=timezone.now() + timedelta(days=1),
        last_run_at=timezone.now(),
        last_job_id=jobs[0].pk,
    )
    ScheduleRun.objects.create(schedule=schedule, tick_at=timezone.now(), job_id=jobs[0].pk)
    pages = {Job: [f"{job.pk}/change/" for job in jobs], Worker: [f"{worker.pk}/change/"], Pause: ["add/"]}
    pages |= {DeadJob: [], Schedule: [f"{schedule.pk}/change/"]}
    pages[Job] += CONSOLE
    return [f"{model._meta.model_name}/{page}" for model, found in pages.items() for page in ("", *found)]


def pages_of(models: set[Any], rows: list[str]) -> Iterator[tuple[str, int, str]]:
    """Yield each page of a site with these models: its path, the status and the text of the answer."""
    site = AdminSite(name="operations")
    for model in models:
        site.register(model, ADMINS[model])
    names = {model._meta.model_name for model in models}
    with override_settings(ROOT_URLCONF=(path("ops/", site.urls),)):
        client = Client()
        client.force_login(User.objects.get_or_create(username="root", is_superuser=True, is_staff=True)[0])
        for page in rows:
            if page.partition("/")[0] in names:
                answer = client.get(f"/ops/pgqueue/{page}")
                yield page, answer.status_code, answer.content.decode()


def test_pages_link_no_model_that_the_site_lacks(rows: list[str]) -> None:
    checked = 0
    for models in ({Job}, {Schedule, Worker, Pause}):
        missing = [f"/pgqueue/{model._meta.model_name}/" for model in {*ADMINS} - models]
        for page, status, text in pages_of(models, rows):
            assert status == 200, page
            assert not [address for address in missing if address in text], page
            checked += 1
    assert checked == 11 + 6


def test_pages_of_jobs_link_the_other_models_of_the_site(rows: list[str]) -> None:
    of_jobs = [page for page in rows if page.endswith("/change/")]
    texts = "".join(text for _page, _status, text in pages_of({*ADMINS}, of_jobs))
    assert re.search('href="/ops/pgqueue/schedule/[0-9]+/change/">nightly<', texts)
    assert re.search('href="/ops/pgqueue/job/[0-9]+/change/"><span class="pgqueue-state', texts)
    assert re.search('action="/ops/pgqueue/worker/[0-9]+/stack/"', texts)
