"""No page of the console runs a query for each of its rows: with more rows, each runs as many queries as before."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import Batch, control
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import Execution, Job, JobBatch, JobStep, Schedule, ScheduleRun, Worker
from tests.app import tasks

from .conftest import JobMaker, add_execution
from .limits import declare, run

pytestmark = pytest.mark.slow

CONSOLE = "/admin/pgqueue/"
LISTS = (
    *("job/", "deadjob/", "jobbatch/", "worker/", "schedule/", "pause/", "job/overview/", "job/queues/", "job/tasks/"),
    *(
        "job/limits/",
        "job/limit/?limit=render",
        "job/limit/?limit=import",
        "job/incidents/?since=all",
        "job/bulk_acts/",
    ),
)


def add_rows(make_job: JobMaker, start: int, count: int, shared: dict[str, int]) -> None:
    """Add rows that each list shows, and further rows that belong to the jobs, batches and schedules in `shared`."""
    now = timezone.now()
    for number in range(start, start + count):
        names = {"task_name": f"app.task{number}", "queue_name": f"queue{number}"}
        worker = Worker.objects.create(hostname=f"h{number}", pid=number, supervisor_pid=1, version="1", concurrency=9)
        Worker.objects.create(hostname="gone", pid=number, version=f"{number}", concurrency=1, stopped_at=now)
        dead = make_job("dead", **names)
        add_execution(dead, worker_id=worker.pk, exception_class=f"app.Error{number}")
        add_execution(Job.objects.get(pk=shared["job"]), worker_id=worker.pk, attempt=number + 1)
        JobStep.objects.create(
            job_id=shared["job"], name=f"s{number}", position=number, kind="step", attempt=1, started_at=now
        )
        make_job(**names)
        make_job(run_after=now + timedelta(hours=1), **names)
        make_job("running", **names)
        Execution.objects.filter(job__task_name=names["task_name"], outcome=None).update(worker_id=worker.pk)
        Job.objects.filter(task_name=names["task_name"], state="running").update(worker_id=worker.pk)
        key = f"render:{number}"
        run(make_job(task_name="app.render", limit_key=key, limit_weight=2))
        make_job(task_name="app.render", limit_key=key, limit_weight=2)
        blocked = {"task_name": "app.import", "limit_key": f"import:customer:{number}"}
        make_job("dead", limit_order=2, **blocked)
        make_job(limit_order=2, **blocked)
        control.pause(names["queue_name"])
        control.pause(task=names["task_name"])
        control.pause(limit_key=key)
        control.override_limit(key, concurrency=5)
        batch = JobBatch.objects.create(description=f"batch {number}")
        JobBatch.objects.create(parent_id=batch.pk, description="nested")
        make_job(batch_id=batch.pk)
        make_job("dead", batch_id=shared["batch"])
        JobBatch.objects.create(parent_id=shared["batch"])
        schedule = Schedule.objects.create(
            name=f"s{number}", task_name=tasks.noop.name, arguments={}, expression="@daily", next_run_at=now
        )
        for each in (schedule.pk, shared["schedule"]):
            ScheduleRun.objects.create(schedule_id=each, tick_at=now + timedelta(seconds=number), job_id=dead.pk)
        audit.add_audit(connection, "retry", {"jobs": [dead.pk]}, [dead.pk, shared["job"]], done_by="ada")


def counts(client: Client, urls: list[str]) -> dict[str, tuple[int, int]]:
    """Return the number of queries that each page runs, and the length of the page."""
    found = {}
    for url in urls:
        client.get(url)  # the first request reads what later ones have in a cache
        with CaptureQueriesContext(connection) as captured:
            answer = client.get(url)
        assert answer.status_code == 200, url
        found[url] = len(captured), len(answer.content)
    return found


def test_pages_run_no_query_for_each_row(make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(monkeypatch)
    monkeypatch.setattr("django_pgqueue.admin.job.attempts.EXECUTIONS_SHOWN", 50)
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    with Batch(description="shared") as batch:
        pass
    assert batch.id is not None
    shared = {"job": make_job("dead").pk, "batch": batch.id}
    shared["schedule"] = Schedule.objects.create(
        name="shared", task_name=tasks.noop.name, arguments={}, expression="@daily", next_run_at=timezone.now()
    ).pk
    pages = [
        *(f"{CONSOLE}{path}" for path in LISTS),
        *(f"{CONSOLE}job/{shared['job']}/{page}/" for page in ("change", "history")),
        f"{CONSOLE}jobbatch/{shared['batch']}/change/",
        f"{CONSOLE}schedule/{shared['schedule']}/change/",
    ]
    add_rows(make_job, 1, 2, shared)
    few = counts(client, pages)
    add_rows(make_job, 3, 8, shared)
    many = counts(client, pages)
    assert {url: (few[url], many[url]) for url in pages if many[url][0] > few[url][0]} == {}
    assert [url for url in pages if many[url][1] <= few[url][1]] == [], "these pages do not show the rows"
