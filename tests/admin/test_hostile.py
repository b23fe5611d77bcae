"""Rows with hostile content: lists and pages show every column as plain text, whatever it contains."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import timedelta
from html import unescape
from html.parser import HTMLParser
from urllib.parse import urlencode

import pytest
from django.db import connection, models
from django.test import Client
from django.utils import timezone

from django_pgqueue.admin.console import overview
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
    Worker: ("hostname", "version", "release", "queue_names"),
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


LISTS = [
    JOBS,
    DEAD,
    WORKERS,
    *(f"{JOBS}{page}/" for page in ("overview", "queues", "tasks")),
    f"{JOBS}incidents/?since=all",
]


def urls_of(job: Job) -> list[str]:
    """Return the URLs of the pages that show a job or its queue."""
    changes = [f"{JOBS}{job.pk}/change/", f"{DEAD}{job.pk}/change/", f"{JOBS}{job.pk}/history/"]
    return [*changes, f"{JOBS}queue/?{urlencode({'queue': job.queue_name})}"]


def urls_of_workers() -> list[str]:
    return [f"{WORKERS}{pk}/change/" for pk in Worker.objects.values_list("pk", flat=True)]


def pages(client: Client, urls: Iterable[str]) -> dict[str, str]:
    """Return the pages with these URLs."""
    found = {}
    for url in urls:
        response = client.get(url)
        if response.status_code == 302 and DEAD in url:  # the test has overwritten the job's state
            continue
        assert response.status_code == 200, url
        found[url] = response.content.decode()
    return found


OF_DJANGO = ("/history/", "/schedule/")
"""Django's own pages and forms escape HTML, but show control characters."""


def check_pages(client: Client, urls: Iterable[str]) -> None:
    """Check that no page has a tag that its rows have brought, nor a character that changes how the text is read."""
    bad = {}
    for url, page in pages(client, urls).items():
        tags = Tags(page)
        controls = (
            set()
            if any(part in url for part in OF_DJANGO)
            else {"\u202e", "\u2066", "\x1b", "\x07", "\x9b"} & set(tags.text)
        )
        if tags.bad or controls or len(page) > 700_000:
            bad[url] = (tags.bad, controls, len(page))
    assert bad == {}


@pytest.fixture
def long_overview(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the overview show all tasks, queues and incidents."""
    for name in ("CAUSES_SHOWN", "INCIDENTS_LIMIT", "TASKS_LIMIT", "QUEUES_LIMIT"):
        monkeypatch.setattr(overview, name, 100)


@pytest.fixture
def without_row_checks(db: None) -> None:
    """Drop the constraints on rows, because old rows or rows of a restored dump can violate them."""
    with connection.cursor() as cursor:
        cursor.execute(helpers.CHECKS)
        for table, name, _ in cursor.fetchall():
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")


@pytest.mark.usefixtures("without_row_checks", "long_overview")
def test_pages_hostile_text_in_any_column_is_escaped(operator: Client, make_job: JobMaker) -> None:
    jobs = []
    for text in HOSTILE:
        worker = Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
        job = make_job("dead", task_name="plain", progress_done=1.0)
        rows = {Job: job.pk, Execution: add_execution(job, worker_id=worker.pk).pk, Worker: worker.pk}
        for model, columns in TEXT_COLUMNS.items():
            for column in columns:
                if column == "state":  # the constraint allows no other state for a finished job
                    continue
                length = model._meta.get_field(column).max_length  # type: ignore[union-attr]
                with connection.cursor() as cursor:
                    cursor.execute(
                        f"UPDATE {model._meta.db_table} SET {column} = %s WHERE id = %s", [text[:length], rows[model]]
                    )
        job.refresh_from_db()
        jobs.append(job)
    check_pages(operator, [*LISTS, *(url for job in jobs for url in urls_of(job)), *urls_of_workers()])


@pytest.mark.usefixtures("without_row_checks", "long_overview")
def test_pages_unknown_state_is_escaped(operator: Client, make_job: JobMaker) -> None:
    jobs = [make_job() for _ in HOSTILE]
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    with connection.cursor() as cursor:
        for job, text in zip(jobs, HOSTILE, strict=True):
            cursor.execute("UPDATE pgqueue_job SET state = %s WHERE id = %s", [text[:12], job.pk])
    check_pages(operator, [*LISTS, *(url for job in jobs for url in urls_of(job)[:-1]), urls_of(jobs[0])[-1]])


@pytest.mark.parametrize("text", HOSTILE)
def test_list_filter_and_search_by_hostile_name_finds_job(operator: Client, make_job: JobMaker, text: str) -> None:
    job = make_job("dead", task_name=text, queue_name=text)
    make_job("dead")
    for query in ({"task": text}, {"queue": text}, {"q": text}, {"task": text, "state": "dead"}):
        response = operator.get(JOBS, query)
        assert [found.pk for found in response.context["cl"].result_list] == [job.pk], query
        assert Tags(response.content.decode()).bad == []


JSON_TEXTS = [
    "null",
    "[]",
    '"</script><img src=x onerror=alert(1)>"',
    '{"args": "\\u0000\\u202e", "kwargs": 7}',
    "9" * 5000,
    "[" * 5000 + "]" * 5000,
    '{"a": 1e999, "a": -0.0}',
    '"' + "x" * 300_000 + '"',
]


@pytest.mark.usefixtures("long_overview")
@pytest.mark.parametrize("name", ["noop", "use_token"], ids=["plain", "sensitive"])
def test_pages_json_that_python_cannot_read_is_escaped(operator: Client, make_job: JobMaker, name: str) -> None:
    jobs = [make_job("dead", task_name=f"tests.app.tasks.{name}") for _ in JSON_TEXTS]
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    with connection.cursor() as cursor:
        for job, text in zip(jobs, JSON_TEXTS, strict=True):
            cursor.execute(
                "UPDATE pgqueue_job SET arguments = %s::json, result = %s::json WHERE id = %s", [text, text, job.pk]
            )
    check_pages(operator, [*LISTS, *(url for job in jobs for url in urls_of(job)[:-1]), urls_of(jobs[0])[-1]])
    for job in jobs:
        answer = operator.post(f"{JOBS}{job.pk}/retry/", follow=True)
        assert answer.status_code == 200 and 'class="success"' in answer.content.decode()


def test_pages_task_name_of_a_module_is_not_imported(operator: Client, make_job: JobMaker) -> None:
    Worker.objects.create(hostname="h", pid=1, version="v", concurrency=1)
    warm = make_job("dead")
    pages(operator, [*LISTS, *urls_of(warm), *urls_of_workers()])
    operator.post(f"{JOBS}{warm.pk}/retry/")
    known = set(sys.modules)
    jobs = [make_job("dead", task_name=name, queue_name=name) for name in IMPORTABLE]
    for job in jobs:
        add_execution(job, exception_class=job.task_name)
    pages(operator, [*LISTS, *urls_of(jobs[0]), *urls_of_workers()])
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
    urls = [*LISTS, *urls_of(job), *urls_of_workers()]
    text = " ".join(Tags(page).text for page in pages(operator, urls).values())
    assert {word for word in wanted if word not in text} == set()


@pytest.mark.promise("defect-hostile-pause-name")
@pytest.mark.usefixtures("without_row_checks")
def test_pause_with_a_hostile_name_is_listed_and_resumed(operator: Client, db: None) -> None:
    """A row that only foreign code can write must not make the list unusable for everybody."""
    texts = [*HOSTILE, "<b>", "{0.pk}", "%s"]
    paused = [
        Pause.objects.create(kind=kind, name=text[:100], paused_by=text, reason=text).pk
        for kind in ("queue", "task", "none")
        for text in texts
    ]
    page = operator.get(PAUSES).content.decode()
    links = [unescape(link) for link in re.findall(r'<a href="([^"]+bulk_preview[^"]+)" ', page)]
    assert len(links) == len(paused)
    check_pages(operator, [PAUSES, *set(links)])
    chosen = {"action": "resume_selected", "_selected_action": paused}
    answer = operator.post(PAUSES, chosen, follow=True)
    assert answer.status_code == 200 and Tags(answer.content.decode()).bad == []
    assert {pause.kind for pause in Pause.objects.all()} == {"none"}
    assert Pause.objects.count() == len(texts)


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


@pytest.mark.usefixtures("without_row_checks")
def test_schedule_with_hostile_columns_is_listed(operator: Client, db: None) -> None:
    columns = ("name", "task_name", "expression", "time_zone", "missed", "if_running", "queue_name", "problem")
    lengths = {name: Schedule._meta.get_field(name).max_length for name in columns}  # type: ignore[union-attr]
    ids = [
        Schedule.objects.create(
            arguments={}, next_run_at="2030-01-01T00:00Z", **{name: text[:length] for name, length in lengths.items()}
        ).pk
        for text in [*HOSTILE, "<b>"]
    ]
    check_pages(operator, [SCHEDULES, *(f"{SCHEDULES}{pk}/change/" for pk in ids)])
    for pk in ids:
        for name in ("run", "pause", "resume"):
            assert operator.post(f"{SCHEDULES}{pk}/{name}/").status_code == 302
    check_pages(operator, [SCHEDULES])  # with the messages of all
