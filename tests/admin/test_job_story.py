"""What the page of a job opens with: the reason with links, the error with the application's frames, the timeline."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import django_pgqueue
from django_pgqueue import control
from django_pgqueue.admin.job.tracebacks import pieces
from django_pgqueue.models import Job, Worker
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.test_lists import JOBS
from tests.app import tasks

pytestmark = pytest.mark.slow

TRACEBACK = """Traceback (most recent call last):
  File "/srv/.venv/lib/python3.12/site-packages/django_pgqueue/worker/execution/attempt.py", line 88, in run
    result = task.func(*args)
  File "/srv/.venv/lib/python3.12/site-packages/sentry_sdk/utils.py", line 12, in wrapper
    return f(*args)
  File "/srv/shop/tasks.py", line 42, in charge
    gateway.charge(order)
    ~~~~~~~~~~~~~~^^^^^^^
  File "/usr/lib/python3.12/ssl.py", line 1104, in read
    raise OSError
OSError: broken
  a second line of the error

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/srv/shop/gateway.py", line 7, in charge
    raise Declined from error
shop.Declined: refused"""


def page_of(client: Client, job_id: int) -> str:
    return client.get(f"{JOBS}{job_id}/change/").content.decode()


def reason_of(page: str) -> str:
    return page.partition('class="pgqueue-reason"')[2].partition("</p>")[0]


def test_traceback_folds_frames_of_libraries() -> None:
    found = pieces(TRACEBACK)
    assert "\n".join(piece.text for piece in found) == TRACEBACK
    assert [piece.frames for piece in found] == [0, 2, 0, 1, 0]
    assert "sentry_sdk" in found[1].text and "shop/tasks.py" in found[2].text and "ssl.py" in found[3].text
    assert found[4].text.startswith("OSError: broken\n  a second") and found[4].text.endswith("shop.Declined: refused")


@pytest.mark.parametrize(
    ("path", "folded"),
    [
        ("/home/me/python/shop/views.py", False),
        ("/usr/lib/python3.12/json/decoder.py", True),
        (r"C:\Python312\Lib\json\decoder.py", True),
        ("<frozen importlib._bootstrap>", True),
    ],
)
def test_traceback_folds_the_standard_library_only(path: str, folded: bool) -> None:
    frame = '  File "{}", line 1, in f\n    f()'
    found = pieces(f"{frame.format(path)}\n{frame.format('/srv/shop/tasks.py')}\nE: x")
    assert sum(piece.frames for piece in found) == folded


@pytest.mark.parametrize(
    "text", ["", "no frames", '  File "/usr/lib/python3.12/x.py", line 1, in f', "cut…\n    x()\nE"]
)
def test_traceback_of_any_form_is_shown_whole(text: str) -> None:
    found = pieces(text)
    assert "\n".join(piece.text for piece in found) == text
    assert all(piece.frames == 0 for piece in found)


def test_page_of_dead_job_opens_with_error_and_own_frames(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    add_execution(job, attempt=1, error="first", traceback="first traceback")
    add_execution(job, attempt=2, error="refused", exception_class="shop.Declined", traceback=TRACEBACK)
    page = page_of(operator, job.pk)
    opening = page[: page.index("<h2>Arguments</h2>")]
    for expected in ("Error of attempt 2", "shop.Declined</strong>: refused", "2 frames of libraries", "gateway.py"):
        assert expected in opening, expected
    assert "first traceback" not in opening and "first traceback" in page
    assert page.count("gateway.py") == 1


def test_page_hides_the_error_without_permission(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    client = client_of("view_job")
    dead, retrying = make_job("dead"), make_job(attempt=1, run_after=timezone.now() + timedelta(hours=1))
    for job in (dead, retrying):
        add_execution(job, error="hunter2", traceback='File "x", line 1\nhunter2', exception_class="shop.Declined")
        page = page_of(client, job.pk)
        assert "hunter2" not in page and "shop.Declined" in page


def test_reason_has_times_of_the_page_and_not_of_utc(operator: Client, make_job: JobMaker, settings: Any) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    job = make_job(run_after=datetime(2100, 7, 1, 20, tzinfo=UTC))
    page = page_of(operator, job.pk)
    assert reason_of(page).startswith(">It is scheduled: it is due at 2100-07-02 05:00:00.")
    assert "UTC" not in page and "Times in Asia/Tokyo<" in page


def test_reason_names_and_links_the_pause(operator: Client, make_job: JobMaker) -> None:
    job = make_job(queue_name="mail")
    control.pause("mail", by="anna", reason="<b>wrong link")
    reason = reason_of(page_of(operator, job.pk))
    assert "paused the queue mail: &lt;b&gt;wrong link" in reason
    assert 'href="/admin/pgqueue/pause/?kind=queue&amp;name=mail"' in reason


def test_reason_links_the_jobs_that_hold_the_slots(
    operator: Client, client_of: Callable[..., Client], make_job: JobMaker
) -> None:
    Worker.objects.create(pk=1, hostname="h", pid=1, version="", concurrency=1, last_heartbeat_at=timezone.now())
    make_job("running", task_name="app.hang&")
    make_job(priority=3)
    job = make_job()
    reason = reason_of(page_of(operator, job.pk))
    assert "The only slot" in reason
    assert 'href="/admin/pgqueue/job/?state=running&amp;task=app.hang%26"' in reason
    assert 'href="/admin/pgqueue/job/?state=due&amp;queue=default"' in reason


def test_reason_without_worker_links_workers_if_allowed(
    operator: Client, client_of: Callable[..., Client], make_job: JobMaker
) -> None:
    job = make_job()
    assert "No worker is running" in reason_of(page_of(operator, job.pk))
    assert 'href="/admin/pgqueue/worker/"' in reason_of(page_of(operator, job.pk))


def test_timeline_is_in_order_with_each_attempt(operator: Client, make_job: JobMaker) -> None:
    now = timezone.now()
    job = make_job("dead", enqueued_at=now - timedelta(hours=2), run_after=now - timedelta(hours=1))
    execution = add_execution(job, attempt=1, exception_class="shop.Declined")
    Job.objects.filter(pk=job.pk).update(finished_at=execution.finished_at)
    timeline = page_of(operator, job.pk).partition('class="pgqueue-timeline"')[2].partition("</ol>")[0]
    labels = re.findall(r"</time></span> <span>([^<]*)<", timeline)
    started = ["enqueued", "due", "attempt 1 claimed by #1", "attempt 1 started"]
    assert labels == [*started, "attempt 1 failed: shop.Declined"]
    assert "after 1 h" in timeline and "after 10 s" in timeline


def test_timeline_of_job_to_be_retried_ends_with_its_next_attempt(operator: Client, make_job: JobMaker) -> None:
    job = make_job(attempt=1, run_after=timezone.now() + timedelta(hours=1))
    for number in range(12):
        add_execution(job, attempt=number)
    page = page_of(operator, job.pk)
    timeline = page.partition('class="pgqueue-timeline"')[2].partition("</ol>")[0]
    assert re.findall(r"</time></span> <span>([^<]*)<", timeline)[-1] == "next attempt due"
    assert "Only the latest 10 attempts are in the timeline." in page and "attempt 1 " not in timeline


def test_only_unfinished_jobs_are_refreshed(operator: Client, make_job: JobMaker) -> None:
    for state, is_live in (("ready", True), ("running", True), ("dead", False)):
        assert ('id="pgqueue-job-page" data-live' in page_of(operator, make_job(state).pk)) is is_live


@pytest.mark.promise("defect-refresh-shows-navigation")
def test_no_region_has_the_id_of_a_row_of_the_sidebar() -> None:
    """Django names these rows by the model. `live.js` would find the row in place of the region."""
    templates = Path(django_pgqueue.__file__).parent / "templates"
    ids = {found for file in templates.rglob("*.html") for found in re.findall(r'\bid="([^"]+)"', file.read_text())}
    models = apps.get_app_config("pgqueue").get_models()
    assert "pgqueue-job-page" in ids
    assert not ids & {f"pgqueue-{model._meta.model_name}" for model in models}


CYCLE = '  File "/srv/shop/a.py", line 1, in a\n    b()\n  File "/srv/shop/b.py", line 2, in b\n    a()\n'


def test_frames_that_repeat_are_folded():
    last = '  File "/srv/shop/c.py", line 3, in c\n    raise E\nE: x'
    found = pieces(f"Traceback (most recent call last):\n{CYCLE * 50}{last}")
    assert [(each.frames, each.is_repeated) for each in found] == [(0, False), (98, True), (0, False)]
    assert found[0].text.endswith(CYCLE.rstrip()) and found[2].text == last
    assert "".join(f"{each.text}\n" for each in found).count("in a") == 50
    assert [each.frames for each in pieces(CYCLE * 2 + last)] == [0]


def test_page_of_dead_job_links_the_others_that_died_like_it(operator, make_job):
    job, *_ = [make_job("dead", task_name=tasks.add.name) for _ in range(4)]
    other = make_job("dead", task_name=tasks.add.name)
    for each in Job.objects.all():
        kind = "builtins.OSError" if each == other else "builtins.ValueError"
        add_execution(each, exception_class=kind)
    acknowledged = make_job("dead", task_name=tasks.add.name)
    add_execution(acknowledged)
    acknowledged.acknowledge()
    text = operator.get(f"/admin/pgqueue/deadjob/{job.pk}/change/").content.decode()
    link = r'<a href="[^"]*/incidents/\?task=[^"]*error=builtins.ValueError[^"]*">'
    assert re.search(f"{link}3 others of this task died of the same class of error<", text)
    assert "same class of error" not in operator.get(f"/admin/pgqueue/deadjob/{other.pk}/change/").content.decode()


@pytest.mark.usefixtures("many_jobs")
def test_page_of_dead_job_reads_others_that_died_by_their_index(operator, make_job):
    job = make_job("dead", task_name="app.task1")
    add_execution(job)
    with connection.cursor() as cursor:  # most dead jobs were acknowledged
        cursor.execute("UPDATE pgqueue_job SET state = 'dead', acknowledged_at = now() WHERE state = 'succeeded'")
        cursor.execute("ANALYZE pgqueue_job")
    with CaptureQueriesContext(connection) as captured:
        operator.get(f"/admin/pgqueue/deadjob/{job.pk}/change/")
    [counts] = [query["sql"] for query in captured if "latest_error" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN " + counts.replace("%", "%%"), [])
        assert "pgqueue_job_dead" in str(cursor.fetchall())


def test_page_of_job_names_arguments_and_links_task_and_queue(operator, make_job):
    job = make_job(task_name=tasks.add.name, queue_name="mail", arguments={"args": [3], "kwargs": {"b": "<four>"}})
    text = operator.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()
    named = re.findall(r"<dt><code>(\w+)</code></dt><dd><pre[^>]*>([^<]*)</pre>", text)
    assert named == [("a", "3"), ("b", "&quot;&lt;four&gt;&quot;")]
    assert f'/job/tasks/#task-{tasks.add.name}">' in text and '/job/queue/?queue=mail">mail</a>' in text
    assert f'id="task-{tasks.add.name}"' in operator.get("/admin/pgqueue/job/tasks/").content.decode()


def test_page_of_job_hides_arguments_by_name_without_permission(client_of, make_job):
    job = make_job(task_name=tasks.add.name, arguments={"args": ["zebra"], "kwargs": {"b": "quagga"}})
    text = client_of("view_job").get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()
    assert "Arguments" in text
    assert not re.search("pgqueue-call|zebra|quagga", text)
