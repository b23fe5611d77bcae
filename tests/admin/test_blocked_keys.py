"""A dead job that blocks an ordered limit key: the pages of the jobs say so, and have the buttons that unblock it."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue.admin.job import blocked_keys
from django_pgqueue.models import AuditEntry, Job

from .conftest import JobMaker

KEY = "import:customer:7"


def page_of(client: Client, job: Job) -> str:
    return str(client.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode())


def forms_of(text: str) -> dict[str, dict[str, str]]:
    """Return the hidden fields of the forms that unblock the key, by their URLs."""
    part = text.partition('<div class="pgqueue-blocker">')[2].partition('<section class="module">')[0]
    found = re.findall(r'<form method="post" action="([^"]+)">(.*?)</form>', part, re.DOTALL)
    inputs = r'<input type="hidden" name="(shown\w*|back)" value="([^"]*)"'
    return {url: dict(re.findall(inputs, form)) for url, form in found}


@pytest.fixture
def dead(make_job: JobMaker) -> Job:
    return make_job("dead", limit_key=KEY, limit_order=2)


@pytest.fixture
def waiting(dead: Job, make_job: JobMaker) -> Job:
    """Make three jobs that wait behind the dead one, and return the first."""
    first, _, _ = (make_job(limit_key=KEY, limit_order=2) for _ in range(3))
    return first


def test_waiting_job_shows_dead_job_and_retries_it(operator: Client, dead: Job, waiting: Job) -> None:
    [(url, fields)] = forms_of(page_of(operator, waiting)).items()
    assert url == f"/admin/pgqueue/job/{dead.pk}/retry/"
    answer = operator.post(url, fields)
    assert answer.headers["Location"] == f"/admin/pgqueue/job/{waiting.pk}/change/"
    dead.refresh_from_db()
    assert dead.state == "ready"
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by, entry.job_count) == ("retry", "staff", 1)
    assert "pgqueue-blocker" not in page_of(operator, waiting)


def test_waiting_job_shows_delete_to_users_who_may(client_of: Callable[..., Client], dead: Job, waiting: Job) -> None:
    client = client_of("view_job", "delete_job")
    [(url, fields)] = forms_of(page_of(client, waiting)).items()
    question = client.post(url, fields)
    assert "This cannot be undone" in question.content.decode()
    client.post(url, {**fields, "confirmed": "1"})
    assert not Job.objects.filter(pk=dead.pk).exists()


def test_act_on_dead_job_that_has_changed_does_nothing(operator: Client, dead: Job, waiting: Job) -> None:
    [(url, fields)] = forms_of(page_of(operator, waiting)).items()
    dead.retry()
    text = operator.post(url, fields, follow=True).content.decode()
    assert "Nothing was changed" in text and not AuditEntry.objects.exists()


def test_dead_job_shows_how_many_jobs_it_blocks(
    operator: Client, dead: Job, waiting: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Jobs that wait behind it: 3." in page_of(operator, dead)
    monkeypatch.setattr(blocked_keys, "COUNTED", 2)
    assert "Jobs that wait behind it: 2+." in page_of(operator, dead)


@pytest.mark.parametrize(("order", "state"), [(None, "dead"), (1, "dead"), (2, "succeeded"), (2, "running")], ids=str)
def test_job_that_blocks_nothing_is_not_shown(
    operator: Client, make_job: JobMaker, order: int | None, state: str
) -> None:
    first, second = (make_job(each, limit_key=KEY, limit_order=order) for each in (state, "ready"))
    assert "pgqueue-blocker" not in page_of(operator, second)
    assert "It blocks its limit key" not in page_of(operator, first)


def test_job_page_shows_key_weight_and_order(operator: Client, make_job: JobMaker) -> None:
    text = page_of(operator, make_job(limit_key=KEY, limit_order=1, limit_weight=5))
    for fact in ("customer:7", "<dt>Weight in the limit</dt><dd>5</dd>", "<dd>one after the other</dd>"):
        assert fact in text
    assert "Weight in the limit" not in page_of(operator, make_job())


def test_lookups_use_the_index_of_ordered_jobs(make_job: JobMaker, dead: Job, waiting: Job) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_job (task_name, arguments, limit_key, limit_order) "
            "SELECT 'app.t', '{}', 'import:' || n %% 3, 1 FROM generate_series(1, 5000) AS n",
            [],
        )
        cursor.execute("ANALYZE pgqueue_job")
    with CaptureQueriesContext(connection) as captured:
        assert blocked_keys.blocked_by(dead) is not None
        list(blocked_keys._in_order(None, KEY)[:1])
    for query in captured:
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN " + query["sql"].replace("%", "%%"), [])
            plan = "\n".join(row[0] for row in cursor.fetchall())
        assert "pgqueue_job_ordered" in plan and "Seq Scan" not in plan, plan
