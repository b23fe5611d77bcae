"""The admin finds jobs by their search keys, and the page of a job links to this search."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_pgqueue.admin import search_keys
from django_pgqueue.lifecycle import search_keys as lifecycle_search_keys
from django_pgqueue.models import Job
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests.admin.conftest import JobMaker
from tests.admin.test_lists import plans
from tests.app import tasks

SELECTED = re.compile(r'name="_selected_action" value="(\d+)"')
JOBS, DEAD = "/admin/pgqueue/job/", "/admin/pgqueue/deadjob/"


@pytest.fixture
def bill(monkeypatch: pytest.MonkeyPatch) -> Task[..., Any]:
    """Register a task whose jobs have the search key `a`."""
    made: Task[..., Any] = Task(func=tasks.add.func, name=tasks.add.name, search=("a", "b"))
    monkeypatch.setitem(registry._tasks, made.name, made)
    return made


def found(client: Client, term: str, url: str = JOBS) -> list[int]:
    """Return the ids of the jobs in the list."""
    return [int(number) for number in SELECTED.findall(client.get(url, {"q": term}).content.decode())]


def messages_of(client: Client, term: str) -> str:
    response = client.get(JOBS, {"q": term})
    return " ".join(map(str, response.context["messages"]))


def test_search_finds_jobs_by_key_in_both_lists(operator: Client, bill: Any, make_job: JobMaker) -> None:
    first, other, second = bill.enqueue(4711), bill.enqueue(4712), bill.enqueue(b=1, a="4711")
    dead = make_job("dead", task_name=bill.name)
    lifecycle_search_keys.add_search_keys(connection, {dead.pk: {"a": "4711"}})
    assert found(operator, "a:4711") == [dead.pk, second.pk, first.pk]
    assert found(operator, " a: 4712 ") == [other.pk]
    assert found(operator, "b:1") == [second.pk]
    assert found(operator, "a:47") == []
    assert found(operator, "a:4711", DEAD) == [dead.pk]
    for url in (JOBS, DEAD):
        assert "customer_id:4711" in operator.get(url).content.decode()


def test_search_by_key_and_word_finds_jobs_with_that_word(operator: Client, one_of_each: dict[str, Job]) -> None:
    lifecycle_search_keys.add_search_keys(connection, {job.pk: {"a": "4711"} for job in one_of_each.values()})
    for word, job in one_of_each.items():
        in_state = ("cancelling", "lost", "running") if word == "running" else (word,)
        expected = [one_of_each[each].pk for each in in_state]
        text = operator.get(JOBS, {"q": "a:4711", "state": word}).content.decode()
        assert [int(number) for number in SELECTED.findall(text)] == expected, (word, job)


def test_search_of_task_name_with_colon_finds_its_jobs(operator: Client, bill: Any, make_job: JobMaker) -> None:
    job = make_job(task_name="shop:send")
    assert found(operator, "shop:send") == [job.pk]
    lifecycle_search_keys.add_search_keys(connection, {job.pk: {"shop": "send"}})
    assert found(operator, "shop:send") == [job.pk], "a key of a task that this process does not know"


def test_search_more_jobs_than_the_limit_says_so(operator: Client, bill: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = bill.enqueue_many([(1,)] * 3)
    assert messages_of(operator, "a:1") == ""
    monkeypatch.setattr(search_keys, "FOUND_LIMIT", 2)
    assert found(operator, "a:1") == [ids[2], ids[1]]
    assert "Only the newest 2 jobs" in messages_of(operator, "a:1")


def test_search_by_key_needs_permission(client_of: Callable[..., Client], bill: Any) -> None:
    bill.enqueue(4711)
    client = client_of("view_job")
    assert found(client, "a:4711") == []
    assert "view arguments and results of jobs" in messages_of(client, "a:4711")
    with CaptureQueriesContext(connection) as queries:
        client.get(JOBS, {"q": "a:4711"})
    assert not any("4711" in query["sql"] for query in queries)


def test_search_by_name_that_became_sensitive_finds_nothing(
    operator: Client, bill: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = bill.enqueue("secret-value")
    hiding: Task[..., Any] = Task(func=tasks.add.func, name=bill.name, sensitive=frozenset({"a"}), search=("b",))
    monkeypatch.setitem(registry._tasks, bill.name, hiding)
    assert found(operator, "a:secret-value") == []
    assert "secret-value" not in operator.get(f"{JOBS}{job.pk}/change/").content.decode()


def test_job_page_links_to_search(operator: Client, make_user: Callable[..., User], bill: Any) -> None:
    job = bill.enqueue('<b>"&', 7)
    page = operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    links = [unescape(link) for link in re.findall(r'href="([^"]*\?q=[^"]*)"', page)]
    assert len(links) == 2
    for link in links:
        assert f'value="{job.pk}"' in operator.get(link).content.decode()
    assert "a:&lt;b&gt;&quot;&amp;" in page
    operator.force_login(make_user("view_job", name="other"))
    page = operator.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert "&lt;b&gt;" not in page
    assert "Search keys" in page


def test_job_page_of_job_without_keys_has_no_such_fact(operator: Client, make_job: JobMaker) -> None:
    job: Job = make_job()
    assert "Search keys" not in operator.get(f"{JOBS}{job.pk}/change/").content.decode()


@pytest.mark.usefixtures("many_jobs")
@pytest.mark.parametrize(
    ("url", "indexes"),
    [(f"{JOBS}?", "pkey"), (f"{JOBS}?state=succeeded&", "pkey"), (f"{DEAD}?", "pkey|finished")],
    ids=["all", "succeeded", "few dead jobs"],
)
def test_search_by_key_reads_jobs_by_their_ids(operator: Client, bill: Any, url: str, indexes: str) -> None:
    """Otherwise the list would walk over all jobs in its own order until it has found enough.

    Few dead jobs can be read in their own order as well.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO pgqueue_search_key (job_id, name, value) "
            "SELECT id, 'a', (id % 15)::text FROM pgqueue_job; ANALYZE pgqueue_search_key"
        )
    found = [plan for plan in plans(operator, f"{url}q=a:7") if "ANY ('{" in plan]
    assert found
    for plan in found:
        assert re.search(f"using pgqueue_job_({indexes}) on pgqueue_job ", plan), plan
        assert not re.search("Seq Scan on pgqueue_(job|search_key)", plan), plan
