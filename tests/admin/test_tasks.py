"""The page of tasks in the admin: what it shows of the code and of the rows, and the operations on its rows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue import Limit, control, stats
from django_pgqueue.models import Job, Pause
from django_pgqueue.stats import depths
from django_pgqueue.stats.figures import AttemptCounts, Durations, TaskThroughput
from django_pgqueue.stats.limits import ready
from django_pgqueue.tasks import registry
from tests.admin.conftest import JobMaker
from tests.app import tasks

pytestmark = pytest.mark.slow

TASKS = "/admin/pgqueue/job/tasks/"
NAME = "tests.app.tasks.fail"


def row_of(page: str, name: str) -> str:
    """Return the part of the page that describes one task."""
    [found] = [row for row in page.split("<tr") if f'value="{name}"' in row]
    return found


def text_of(client: Client) -> str:
    answer = client.get(TASKS)
    assert answer.status_code == 200
    return str(answer.content.decode())


def test_page_shows_signature_docstring_options_and_counts(operator, make_job):
    make_job("dead", task_name=NAME)
    make_job(task_name=NAME)
    row = row_of(text_of(operator), NAME).replace("<wbr>", "")
    assert "(message: str = &#x27;as asked&#x27;)" in row and "max_attempts=2" in row and "backoff=0" in row
    assert (tasks.fail.func.__doc__ or "").strip().partition("\n")[0] in row
    for link, label in (("job/?state=due&amp;task=", "1 due"), ("deadjob/?task=", "1 dead")):
        assert f"/admin/pgqueue/{link}{NAME}" in row and label in row
    assert "state=running" not in row


def test_page_counts_held_and_unknown_jobs_apart(operator, make_job):
    make_job(task_name=NAME, limit_key="nobody")
    make_job(task_name=NAME, run_after=timezone.now() + timedelta(minutes=5), unknown_since=timezone.now())
    row = row_of(text_of(operator), NAME)
    assert "1 held by their limit" in row and "1 unknown to workers" in row
    assert "1 due" not in row and "1 scheduled" not in row


def test_number_of_jobs_that_is_not_known_is_a_dash(operator, make_job, monkeypatch):
    monkeypatch.setattr(depths, "COUNT_LIMIT", 1)
    make_job("dead", task_name="other")
    row = row_of(text_of(operator), NAME)
    assert 'title="Not known: counting stopped' in row and "– dead" in row and "due" not in row.partition("Jobs")[2]


def test_count_is_a_lower_bound_only_where_jobs_were_not_counted(operator, make_job):
    """Jobs that were not counted can be those of every task, but no task is paused."""
    Job.objects.bulk_create(Job(task_name="other", arguments={}, run_after=timezone.now()) for _ in range(100))
    make_job("dead", task_name=NAME)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(depths, "DUE_BY_TASK_TOTAL", 1)
        row = row_of(text_of(operator), NAME)
        assert "– due" in row and ">1 dead<" in row and "paused" not in row.partition("Jobs")[2].partition("</td>")[0]
        control.pause(task=NAME)
        cell = row_of(text_of(operator), NAME)
        assert "– paused" in cell and "– due" not in cell
    assert "– " not in row_of(text_of(operator), NAME)


def test_keys_that_were_not_read_leave_counts_of_others_exact(operator, make_job, monkeypatch):
    """All their jobs were counted: only how many of them their limit holds is unknown."""
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"two": Limit("two", key="{a}", concurrency=2)}))
    for key in "abc":
        make_job(task_name="other", limit_key=f"two:{key}")
    make_job(task_name=NAME)
    monkeypatch.setattr(ready, "KEYS_TOTAL", 1)
    row = row_of(text_of(operator), NAME)
    assert ">1 due<" in row and "– " not in row and "+" not in row.partition("Jobs")[2]


def test_page_lists_names_without_code_apart(operator, make_job):
    make_job("dead", task_name="gone.task")
    page = text_of(operator)
    before, _, after = page.partition("<h2>Tasks of this code")
    assert "Without code" in before and "1 dead" in row_of(before, "gone.task") and "gone.task" not in after


def test_page_shows_figures_of_24_hours(operator, monkeypatch):
    counts = AttemptCounts(succeeded=15, retried=4, dead=1)
    run, wait = (Durations(count=20, mean=1.0, p50=p50, p95=p95, p99=9.0) for p50, p95 in ((0.5, 3.0), (1.0, 7.0)))
    found = [TaskThroughput(name=NAME, counts=counts, run=run, wait=wait)]
    monkeypatch.setattr(stats, "throughput_by_task", lambda *args, **options: found)
    row = row_of(text_of(operator), NAME)
    for expected in (">20<", "5 <span", "(25 %)", "≈ 500 ms / 3.0 s", "≈ 7.0 s"):
        assert expected in row, expected
    assert "the true values differ by at most 9.1" in text_of(operator)


def test_page_links_the_form_to_enqueue_with_permission_only(operator, client_of, make_user):
    assert "/enqueue/" not in text_of(operator)
    client = Client()
    client.force_login(make_user("view_job", "enqueue_job", name="other"))
    page = text_of(client)
    assert f"/admin/pgqueue/job/enqueue/{NAME}/" in page and "/tasks/pause/" not in page


def test_page_has_a_constant_number_of_queries(operator, make_job):
    for number in range(20):
        make_job("dead", task_name=f"gone.task{number}")
    with CaptureQueriesContext(connection) as captured:
        text_of(operator)
    assert len(captured) <= 16, [query["sql"] for query in captured]


def test_page_without_permission_is_refused(client_of):
    client = client_of("view_worker")
    assert client.get(TASKS).status_code == 403
    assert client.post(TASKS).status_code == 405


# ------------------------------------------------------------------ pause and resume


def test_pause_and_resume_by_one_click_each(operator):
    assert 'name="shown_pause" value=""' in row_of(text_of(operator), NAME)
    operator.post(f"{TASKS}pause/", {"task": NAME, "shown_pause": "", "reason": "the bank is down"})
    pause = Pause.objects.get()
    assert (pause.kind, pause.name, pause.paused_by, pause.reason) == ("task", NAME, "staff", "the bank is down")
    row = row_of(text_of(operator), NAME)
    assert re.search(r"staff paused it at [-0-9]+ [:0-9]+\. the bank is down", row), row
    assert row.count(">paused<") == 1, "the badge says it once"
    assert "/tasks/resume/" in row
    shown = row.split('name="shown_pause" value="')[1].split('"')[0]
    operator.post(f"{TASKS}resume/", {"task": NAME, "shown_pause": shown})
    assert not Pause.objects.exists()
    messages = [entry.get_change_message() for entry in LogEntry.objects.order_by("pk")]
    assert messages == ["Paused: the bank is down", "Resumed."]


def test_resume_with_thousand_separators_ends_the_pause(operator, settings):
    settings.USE_THOUSAND_SEPARATOR = True
    control.pause(task=tasks.fail, by="ada")
    shown = row_of(text_of(operator), NAME).split('name="shown_pause" value="')[1].split('"')[0]
    operator.post(f"{TASKS}resume/", {"task": NAME, "shown_pause": shown})
    assert not Pause.objects.exists()


@pytest.mark.parametrize("operation", ["pause", "resume"])
def test_pause_of_another_operator_is_not_overwritten(operator, operation):
    control.pause(task=tasks.fail, reason="first", by="ada")
    answer = operator.post(f"{TASKS}{operation}/", {"task": NAME, "shown_pause": ""}, follow=True)
    assert "Nothing was changed" in answer.content.decode()
    assert Pause.objects.get().reason == "first" and not LogEntry.objects.exists()


@pytest.mark.parametrize("name", ["", "\0", "a b", "x" * 300, "<b>"])
def test_pause_invalid_name_is_refused(operator, name):
    answer = operator.post(f"{TASKS}pause/", {"task": name, "shown_pause": ""}, follow=True)
    assert "cannot be paused" in answer.content.decode() and not Pause.objects.exists()


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Give a task a former name."""
    monkeypatch.setitem(registry._tasks, "app.former", registry._tasks[NAME])
    monkeypatch.setattr(registry, "names_of", lambda name: (NAME, "app.former") if name == NAME else (name,))
    yield


@pytest.mark.usefixtures("renamed")
def test_page_counts_former_names_with_the_task(operator: Client, make_job: JobMaker) -> None:
    make_job("dead", task_name=NAME)
    make_job("dead", task_name="app.former")
    page = text_of(operator)
    assert "2 dead" in row_of(page, NAME) and "Without code" not in page


def test_columns_without_any_figure_are_left_out(operator, monkeypatch):
    assert "Attempts in 24 h</th>" not in text_of(operator)
    for dead, is_shown in ((0, False), (1, True)):
        counts = AttemptCounts(succeeded=5, dead=dead)
        day = TaskThroughput(name=NAME, counts=counts, run=Durations(), wait=Durations())
        monkeypatch.setattr(stats, "throughput_by_task", lambda *args, day=day, **options: [day])
        text = text_of(operator)
        assert "Attempts in 24 h</th>" in text and ("Failed</th>" in text) == is_shown
