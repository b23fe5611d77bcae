"""Rows with hostile content: lists and pages show every column as plain text, whatever it contains."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest
from django.db import connection, models
from django.test import Client
from django.utils import timezone

from django_pgqueue.models import Execution, Job, LimitOverride, LimitState, Pause, Schedule, Worker
from tests import helpers
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.limits import declare

pytestmark = pytest.mark.slow

JOBS, DEAD, WORKERS = (f"/admin/pgqueue/{model}/" for model in ("job", "deadjob", "worker"))
PAUSES, SCHEDULES = "/admin/pgqueue/pause/", "/admin/pgqueue/schedule/"

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    '"><svg onload=alert(1)>',
    "' onmouseover='alert(1)",
    "</textarea></pre></td><iframe>",
    "{{ 7|add:7 }}{% debug %}",
    "javascript:alert(1)",
    "\u202egnp.exe\u2066",
    "\x1b[31mred\x07\x9b",
    "%s %(x)s {0} %",
    "'; DROP TABLE pgqueue_job; --",
    "\ud7ff\ufffe\U0010ffff\u0300",
    "os.system",
]

TEXT_COLUMNS = {
    Job: ("task_name", "queue_name", "unique_key", "limit_key", "progress_message", "state"),
    Execution: ("outcome", "exception_class", "error", "traceback"),
    Worker: ("hostname", "version", "queue_names"),
}
COPIES: dict[type[models.Model], set[str]] = {Execution: {"limit_key"}}
"""Columns with a copy of the job's value. No page shows them."""


IMPORTABLE = [
    "os.system",
    "this.s",
    "antigravity.x",
    "turtledemo.clock.main",
    "idlelib.idle",
    "lib2to3.main.main",
    "a.b.c",
    "../../etc/passwd",
    "/tmp/evil.py",  # noqa: S108 -- a task name, not a file
    "builtins.eval",
    "__import__('this')",
    "this:s",
    "..this.s",
    "encodings.rot_13.rot13",
    "pydoc_data.topics.topics",
    "subprocess.Popen\nthis.s",
]
"""Task names that refer to code. The tests themselves import none of these modules, except `os`, `builtins` and
`subprocess`, which are always loaded."""


class Tags(HTMLParser):
    """Collect the tags and attributes that make a browser run or load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.bad: list[object] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        sources = str(given.get("src", "")).startswith(("/static/admin/", "/static/pgqueue/", "/admin/jsi18n/"))
        if tag in {"iframe", "object", "style"} or (tag in {"img", "script"} and not sources):
            self.bad.append((tag, attrs))
        self.bad += [(tag, name) for name in given if name.startswith("on") or name == "style"]
        self.bad += [(tag, link) for link in (given.get("href"), given.get("action")) if link and ":" in link[:12]]

    def handle_data(self, data: str) -> None:
        self.text += data


def pages(client: Client, job: Job) -> list[str]:
    """Return every page that shows the job or its worker."""
    urls = [JOBS, DEAD, f"{JOBS}{job.pk}/change/", f"{DEAD}{job.pk}/change/", WORKERS, f"{JOBS}{job.pk}/history/"]
    urls.append(f"{JOBS}incidents/?since=all")
    urls += [f"{JOBS}overview/", f"{JOBS}queues/", f"{JOBS}queue/?{urlencode({'queue': job.queue_name})}"]
    urls += [f"{JOBS}tasks/", *(f"{WORKERS}{pk}/change/" for pk in Worker.objects.values_list("pk", flat=True))]
    found = []
    for url in urls:
        response = client.get(url)
        if response.status_code == 302 and DEAD in url:  # the test has overwritten the job's state
            continue
        assert response.status_code == 200, url
        found.append(response.content.decode())
    return found


@pytest.fixture
def without_row_checks(db: None) -> None:
    """Drop the constraints on rows, because old rows or rows of a restored dump can violate them."""
    with connection.cursor() as cursor:
        cursor.execute(helpers.CHECKS)
        for table, name, _ in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.usefixtures("without_row_checks")
def test_pages_hostile_text_in_any_column_is_escaped(operator: Client, make_job: JobMaker, text: str) -> None:
    worker = Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    job = make_job("dead", task_name="plain", progress_done=1.0)
    execution = add_execution(job, worker_id=worker.pk)
    rows = {Job: job.pk, Execution: execution.pk, Worker: worker.pk}
    for model, columns in TEXT_COLUMNS.items():
        for column in columns:
            if column == "state":  # the constraint allows no other state for a finished job
                continue
            length = model._meta.get_field(column).max_length  # type: ignore[union-attr]
            with connection.cursor() as cursor:
                cursor.execute(
                    f"UPDATE {model._meta.db_table} SET {column} = %s WHERE id = %s", [text[:length], rows[model]]
                )
    for page in pages(operator, job):
        tags = Tags(page)
        assert tags.bad == []
        if "Change history" not in page:  # Django's own page escapes HTML, but shows control characters
            assert not {"\u202e", "\u2066", "\x1b", "\x07", "\x9b"} & set(tags.text)


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.usefixtures("without_row_checks")
def test_pages_unknown_state_is_escaped(operator: Client, make_job: JobMaker, text: str) -> None:
    job = make_job()
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE pgqueue_job SET state = %s WHERE id = %s", [text[:12], job.pk])
    for page in pages(operator, job):
        assert Tags(page).bad == []


@pytest.mark.parametrize("text", HOSTILE)
def test_list_filter_and_search_by_hostile_name_finds_job(operator: Client, make_job: JobMaker, text: str) -> None:
    job = make_job("dead", task_name=text, queue_name=text)
    make_job("dead")
    for query in ({"task": text}, {"queue": text}, {"q": text}, {"task": text, "state": "dead"}):
        response = operator.get(JOBS, query)
        assert [found.pk for found in response.context["cl"].result_list] == [job.pk], query
        assert Tags(response.content.decode()).bad == []


@pytest.mark.parametrize(
    "json_text",
    [
        "null",
        "[]",
        '"</script><img src=x onerror=alert(1)>"',
        '{"args": "\\u0000\\u202e", "kwargs": 7}',
        "9" * 5000,
        "[" * 5000 + "]" * 5000,
        '{"a": 1e999, "a": -0.0}',
        '"' + "x" * 300_000 + '"',
    ],
)
@pytest.mark.parametrize("name", ["noop", "use_token"], ids=["plain", "sensitive"])
def test_pages_json_that_python_cannot_read_is_escaped(
    operator: Client, make_job: JobMaker, json_text: str, name: str
) -> None:
    job = make_job("dead", task_name=f"tests.app.tasks.{name}")
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_job SET arguments = %s::json, result = %s::json WHERE id = %s",
            [json_text, json_text, job.pk],
        )
    for page in pages(operator, job):
        assert Tags(page).bad == []
        assert len(page) < 700_000
    answer = operator.post(f"{JOBS}{job.pk}/retry/", follow=True)
    assert answer.status_code == 200 and 'class="success"' in answer.content.decode()


def test_pages_task_name_of_a_module_is_not_imported(operator: Client, make_job: JobMaker) -> None:
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    warm = make_job("dead")
    pages(operator, warm)
    operator.post(f"{JOBS}{warm.pk}/retry/")
    known = set(sys.modules)
    jobs = [make_job("dead", task_name=name, queue_name=name) for name in IMPORTABLE]
    for job in jobs:
        add_execution(job, exception_class=job.task_name)
    pages(operator, jobs[0])
    for job in jobs:
        operator.get(f"{JOBS}{job.pk}/change/")
        operator.get(JOBS, {"task": job.task_name, "q": job.task_name})
        operator.post(f"{JOBS}{job.pk}/retry/")
    assert len(IMPORTABLE) >= 15
    assert set(sys.modules) - known == set()


@pytest.mark.quick
@pytest.mark.usefixtures("without_row_checks")
def test_pages_all_text_columns_are_tested_and_shown(operator: Client, make_job: JobMaker) -> None:
    """A new column of a model has to be added to TEXT_COLUMNS. A column that no page shows would test nothing."""
    worker = Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    job = make_job("dead", progress_done=1.0)
    rows = {Job: job.pk, Execution: add_execution(job, worker_id=worker.pk).pk, Worker: worker.pk}
    wanted = set()
    for model, columns in TEXT_COLUMNS.items():
        fields = {f.name for f in model._meta.get_fields() if isinstance(f, models.CharField | models.TextField)}
        assert fields - COPIES.get(model, set()) == set(columns)
        shown = {column: f"<{model.__name__[0]}{column[:9]}>" for column in columns if column != "state"}
        model.objects.filter(pk=rows[model]).update(**shown)  # type: ignore[attr-defined]  # each has objects
        wanted |= set(shown.values())
    text = " ".join(Tags(page).text for page in pages(operator, job))
    assert {word for word in wanted if word not in text} == set()


@pytest.mark.promise("defect-hostile-pause-name")
@pytest.mark.parametrize("kind", ["queue", "task", "none"])
@pytest.mark.parametrize("text", [*HOSTILE, "<b>", "{0.pk}", "%s"])
@pytest.mark.usefixtures("without_row_checks")
def test_pause_with_a_hostile_name_is_listed_and_resumed(operator: Client, db: None, text: str, kind: str) -> None:
    """A row that only foreign code can write must not make the list unusable for everybody."""
    paused = Pause.objects.create(kind=kind, name=text[:100], paused_by=text, reason=text)
    page = operator.get(PAUSES)
    assert page.status_code == 200 and Tags(page.content.decode()).bad == []
    [link] = re.findall(r'<a href="([^"]+bulk_preview[^"]+)" ', page.content.decode())
    asked = operator.get(unescape(link))
    assert asked.status_code == 200 and Tags(asked.content.decode()).bad == []
    chosen = {"action": "resume_selected", "_selected_action": [paused.pk]}
    answer = operator.post(PAUSES, chosen, follow=True)
    assert answer.status_code == 200 and Tags(answer.content.decode()).bad == []
    assert Pause.objects.exists() is (kind == "none")


@pytest.mark.parametrize("text", [HOSTILE[0], HOSTILE[7], "%s:<i>\ud7ff\ufffe\U0010ffff", "import"])
@pytest.mark.usefixtures("without_row_checks")
def test_limit_with_hostile_columns_is_listed(
    operator: Client, make_job: JobMaker, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An override of a declared limit can be as hostile as one of a name that no code has."""
    declare(monkeypatch)
    job = make_job(limit_key=text, limit_order=2)
    make_job("dead", limit_key=text, limit_order=2)
    Pause.objects.create(kind="limit", name=text, paused_by=text, reason=text)
    LimitOverride.objects.create(limit_key=text, share=3, changed_by=text, reason=text)
    now = timezone.now() + timedelta(hours=1)
    LimitState.objects.create(limit_key=text, full_at=now, held_until=now)
    name = text.partition(":")[0]
    queries = [f"limit/?{urlencode(each)}" for each in ({"limit": name}, {"limit": name, "key": text})]
    queries += [f"?{urlencode({'limit': text, 'state': state})}" for state in ("", "ready", "dead")]
    for url in ("limits/", *queries, f"{job.pk}/change/", f"limits/change/?{urlencode({'key': text})}"):
        page = operator.get(f"{JOBS}{url}")
        assert page.status_code in {200, 302, 403}, url
        tags = Tags(page.content.decode())
        assert tags.bad == [], url
        assert not {"\u202e", "\u2066", "\x1b", "\x07", "\x9b"} & set(tags.text), url


@pytest.mark.parametrize("text", [*HOSTILE, "<b>"])
@pytest.mark.usefixtures("without_row_checks")
def test_schedule_with_hostile_columns_is_listed(operator: Client, db: None, text: str) -> None:
    columns = ("name", "task_name", "expression", "time_zone", "missed", "if_running", "queue_name", "problem")
    fields = {name: Schedule._meta.get_field(name).max_length for name in columns}  # type: ignore[union-attr]
    schedule = Schedule.objects.create(
        arguments={}, next_run_at="2030-01-01T00:00Z", **{n: text[:m] for n, m in fields.items()}
    )
    for url in (SCHEDULES, f"{SCHEDULES}{schedule.pk}/change/"):
        page = operator.get(url)
        assert page.status_code == 200 and Tags(page.content.decode()).bad == [], url
    for name in ("run", "pause", "resume"):
        assert operator.post(f"{SCHEDULES}{schedule.pk}/{name}/", follow=True).status_code == 200
