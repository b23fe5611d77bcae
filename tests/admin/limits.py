"""Limits for the tests of their pages, and helpers that read the pages."""

from __future__ import annotations

import re
from html import unescape
from typing import Any, Final

import pytest
from django.db import connection
from django.test import Client

from django_pgqueue import Limit
from django_pgqueue.models import Execution, Job
from django_pgqueue.task import Task
from django_pgqueue.tasks import registry
from tests import helpers
from tests.app import tasks

PAGE, DOCUMENT, OF_LIMIT = (f"/admin/pgqueue/job/{name}" for name in ("limits/", "limits.json", "limit/"))
CHANGE: Final = f"{PAGE}change/"
LIMITS: Final = (
    Limit("import", key="customer:{a}", ordered=True, on_dead="block"),
    Limit("stripe", rate="100/m", burst=10),
    Limit("render", key="{a}", concurrency=2, weight=2),
)
Tasks = dict[str, Task[..., Any]]


def declare(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    """Declare `LIMITS` and no others. Return a task for each, by the name of its limit."""
    made: Tasks = {limit.name: Task(func=tasks.add.func, name=f"app.{limit.name}", limit=limit) for limit in LIMITS}
    monkeypatch.setattr(registry, "_tasks", {task.name: task for task in made.values()})
    monkeypatch.setattr(registry, "_limits", None)
    return made


def run(job: Job) -> None:
    """Make a job running, with an open execution as a claim inserts it."""
    Job.objects.filter(pk=job.pk).update(state="running", attempt=1)
    now = job.enqueued_at
    times = {"claimed_at": now, "started_at": now, "lease_expires_at": now.replace(year=now.year + 1)}
    weight = job.limit_weight or 1
    Execution.objects.create(job=job, attempt=1, worker_id=1, limit_key=job.limit_key, limit_weight=weight, **times)
    with connection.cursor() as cursor:
        cursor.execute(helpers.NAME_EXECUTIONS)


def text_of(client: Client, url: str = PAGE, **parameters: str) -> str:
    answer = client.get(url, parameters)
    assert answer.status_code == 200, url
    return str(answer.content.decode())


def plain(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]+>", "", html)).split())


def rows_of(text: str) -> dict[str, str]:
    """Return the part of a page about each limit or key, by its label. Rows of keys come after that of the limit."""
    parts: list[str] = re.findall(r"<tbody>.*?</tbody>", text, re.DOTALL)
    heading = re.compile(r'<th scope="row">(?:<a [^>]+>(.*?)</a>|(.*?)(?: <span|</th>))')
    return {plain("".join(filter(None, heading.findall(part)[0]))): part for part in parts}


def cells_of(row: str) -> dict[str, str]:
    return {label: plain(value) for label, value in re.findall(r'<td data-label="([^"]+)"[^>]*>(.*?)</td>', row)}


def form_of(row: str, act: str) -> dict[str, str]:
    """Return the hidden fields of a form in a row, as a browser posts them."""
    [form] = re.findall(rf'<form method="post" action="[^"]*/{act}/[^"]*">.*?</form>', row, re.DOTALL)
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', form)
    return {name: unescape(value) for name, value in fields if name != "csrfmiddlewaretoken"}


def acts_of(row: str) -> set[str]:
    """Return the buttons and the links to forms in a row."""
    found = re.findall(r'(?:action|href)="/admin/pgqueue/job/(?:limits|\d+)/(\w+)/', row)
    return set(found)
