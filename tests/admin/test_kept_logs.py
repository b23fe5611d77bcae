"""The admin's page of a job: the log lines that its executions have kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from django_pgqueue.admin.job.kept_logs import LOGS_SHOWN
from django_pgqueue.models import ExecutionLog, Job
from django_pgqueue.testing import run_jobs
from tests.admin.conftest import JobMaker, add_execution
from tests.app import tasks

pytestmark = pytest.mark.django_db


def page_of(client: Client, job: Job) -> str:
    response = client.get(f"/admin/pgqueue/job/{job.pk}/change/")
    assert response.status_code == 200
    return response.content.decode()


def add_log(job: Job, first: str = "[]", last: str = "[]", cut_lines: int = 0) -> None:
    add_execution(job)
    pk = job.executions.latest("id").pk
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO pgqueue_execution_log VALUES (%s, %s, %s, %s)", [pk, first, last, cut_lines])


def test_job_page_shows_kept_lines_escaped(operator: Client) -> None:
    job = tasks.log_lines.enqueue(1, "<b>\x1b[31m")
    run_jobs()
    page = page_of(operator, job)
    assert "INFO tests.app.tasks.kept: &lt;b&gt;\\x1b[31m 0</span>" in page


@pytest.mark.parametrize("may_view", [True, False])
def test_job_page_shows_lines_only_with_permission(client_of: Callable[..., Client], *, may_view: bool) -> None:
    job = tasks.log_lines.enqueue(1, "told")
    run_jobs()
    client = client_of("view_job", *(["view_arguments"] if may_view else []))
    assert ("told 0" in page_of(client, job)) is may_view


def test_job_page_shows_cut_and_marks_warnings(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    add_log(job, '[[0, "WARNING", "a", "early"]]', '[[60, "INFO", "a", "late"]]', 7)
    page = page_of(operator, job)
    early, note, late = page.index("early"), page.index("7 lines were not kept"), page.index("late</span>")
    assert early < note < late
    assert page[:early].rpartition("<span")[2].startswith(' class="pgqueue-error"')


def test_job_page_shows_times_of_lines_to_the_millisecond(operator: Client, make_job: JobMaker, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    job = make_job("dead")
    add_log(job, '[[1792324800.0625, "INFO", "a", "early"]]')
    assert "<span>2026-10-18 21:00:00.062 INFO a: early</span>" in page_of(operator, job)


@pytest.mark.parametrize("stored", ["{}", '"x"', "[[1]]", '[["x", 1, 2, 3]]', "[" * 5_000 + "]" * 5_000])
def test_job_page_unreadable_lines_still_renders(operator: Client, make_job: JobMaker, stored: str) -> None:
    job = make_job("dead")
    add_log(job, stored)
    assert 'class="pgqueue-log"' not in page_of(operator, job)


def test_job_page_shows_lines_of_latest_executions_only(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    for number in range(LOGS_SHOWN + 2):
        add_log(job, f'[[0, "INFO", "a", "line {number}."]]')
    page = page_of(operator, job)
    assert [f"line {number}." in page for number in range(LOGS_SHOWN + 2)] == [False] * 2 + [True] * LOGS_SHOWN
    assert ExecutionLog.objects.count() == LOGS_SHOWN + 2
