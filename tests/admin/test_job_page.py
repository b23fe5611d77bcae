"""The admin's page of one job: buttons, state, attempts, progress and unique key."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.db import engine_connection
from django_pgqueue.declared.chunks import chunk_key
from django_pgqueue.lifecycle import claims, completions, workers
from django_pgqueue.lifecycle.types import Cursor, Failed, Lane
from django_pgqueue.models import Job, Worker
from django_pgqueue.states import Outcome
from django_pgqueue.tasks import registry
from tests.admin.conftest import JobMaker, add_execution
from tests.app import tasks

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"


def page_of(client: Client, job: Job) -> str:
    """Return the main content of a job's page."""
    response = client.get(f"{JOBS}{job.pk}/change/")
    assert response.status_code == 200
    return response.content.decode().split('id="content-main"')[1].replace("<wbr>", "")


@pytest.mark.parametrize(
    ("state", "minutes", "buttons"),
    [
        ("ready", -5, ["cancel"]),
        ("ready", 5, ["cancel", "run"]),
        ("running", 0, ["cancel"]),
        ("succeeded", 0, ["retry"]),
        ("dead", 0, ["retry"]),
        ("cancelled", 0, ["retry"]),
    ],
)
def test_buttons_for_each_state_match_allowed_operations(
    operator: Client, make_job: JobMaker, state: str, minutes: int, buttons: list[str]
) -> None:
    job = make_job(state, run_after=timezone.now() + timedelta(minutes=minutes))
    page = page_of(operator, job)
    assert [name for name in ("retry", "cancel", "run") if f'action="{JOBS}{job.pk}/{name}/"' in page] == buttons
    assert page.count("csrfmiddlewaretoken") == len(buttons)


@pytest.mark.parametrize("held", ["retry", "cancel", "run"])
def test_buttons_single_permission_shows_only_its_button(
    client_of: Callable[..., Client], make_job: JobMaker, held: str
) -> None:
    client = client_of("view_job", f"{held}_job")
    dead, later = make_job("dead"), make_job(run_after=timezone.now() + timedelta(hours=1))
    shown = {
        name for job in (dead, later) for name in ("retry", "cancel", "run") if f"/{name}/" in page_of(client, job)
    }
    assert shown == {held}


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"minutes": 4}, r"due in (4 min|3 min \d+ s)"),
        ({"minutes": -4}, r"waiting for a worker, due for (4|3) min"),
        ({"minutes": 60, "attempt": 2}, "waiting for attempt 3 of 10, due in (1 h|59 min)"),
        ({"minutes": 1, "unknown_since": timezone.now()}, "no worker has known its task for"),
    ],
)
def test_page_ready_job_states_what_it_waits_for(
    operator: Client, make_job: JobMaker, columns: dict[str, object], words: str
) -> None:
    minutes = float(columns["minutes"])  # type: ignore[arg-type]  # the values have mixed types
    others = {name: value for name, value in columns.items() if name != "minutes"}
    job = make_job(run_after=timezone.now() + timedelta(minutes=minutes, seconds=0.4), **others)
    assert re.search(words, page_of(operator, job))


def test_page_job_under_alias_names_the_task_that_runs_it(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make_job(task_name="shop.tasks.former")
    assert "Runs as" not in page_of(operator, job)
    monkeypatch.setitem(registry._tasks, "shop.tasks.former", tasks.noop)
    page = page_of(operator, job)
    assert "Runs as" in page and tasks.noop.name in page and "shop.tasks.former" in page


def test_page_names_the_limit_key_or_the_chunks_of_a_job(operator: Client, make_job: JobMaker) -> None:
    limited = page_of(operator, make_job(limit_key="stripe:7"))
    assert "Limited by" in limited and "stripe:7" in limited and "other jobs of its task" not in limited
    in_chunks = page_of(operator, make_job(limit_key=chunk_key("shop.tasks.store")))
    assert "other jobs of its task" in in_chunks and "Limited by" not in in_chunks


@pytest.mark.quick
def test_page_succeeded_job_shows_every_attempt_and_result(operator: Client, make_job: JobMaker) -> None:
    worker = Worker.objects.create(hostname="box", pid=7, version="1", concurrency=1)
    arguments = {"args": [1.0, "ä"], "kwargs": {"b": None}}
    job = make_job("succeeded", task_name=tasks.noop.name, result={"sum": 3}, arguments=arguments)
    add_execution(job, worker_id=worker.pk, error="first <b>", traceback="line 1\nline 2")
    add_execution(job, attempt=2, outcome="succeeded", worker_id=worker.pk + 1, exception_class="", error="")
    page = page_of(operator, job)
    for expected in ("Attempt 1", "Attempt 2", "ran 10 s", "box:7", f"#{worker.pk + 1}", "first &lt;b&gt;", "line 2"):
        assert expected in page, expected
    assert "&quot;sum&quot;: 3" in page and "&quot;ä&quot;" in page and "1.0" in page
    assert page.index("Attempt 2") < page.index("Attempt 1")


def test_page_sixty_attempts_needs_at_most_nine_queries(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    for attempt in range(60):
        add_execution(job, attempt=attempt)
    with CaptureQueriesContext(connection) as captured:
        page = page_of(operator, job)
    assert len(captured) <= 9, [q["sql"] for q in captured]
    assert page.count("<article") == 50 and "Earlier executions are not shown" in page


@pytest.mark.django_db(transaction=True)
def test_page_job_failed_by_a_worker_shows_the_error(operator: Client, make_job: JobMaker) -> None:
    job = make_job(max_attempts=1)
    with closing(engine_connection.connect("default", "test")) as engine:
        worker_id = workers.register_worker(engine, hostname="box", pid=7, version="1", queue_names="", concurrency=1)
        cursors = {Lane("default", 0): Cursor()}
        [claimed] = claims.claim(engine, cursors, limit=1, free_slots=1, worker_id=worker_id, lease_seconds=60.0)
        page = page_of(operator, job)
        assert "running" in page and f"{JOBS}{job.pk}/cancel/" in page
        failed = Failed(claimed.key, Outcome.FAILED, None, 2.0, 1.0, "app.Error", "broke", "Traceback …")
        completions.fail(engine, [failed])
    page = page_of(operator, job)
    for expected in ("pgqueue-dead", "ran 1.0 s", "app.Error", "broke", "pgqueue-own", "box:7"):
        assert expected in page, expected


@pytest.mark.parametrize("number", ["17", "x", "9" * 30, "1_0", "%00", "-1"])
def test_page_unknown_number_shows_no_job(operator: Client, db: None, number: str) -> None:
    response = operator.get(f"{JOBS}{number}/change/", follow=True)
    assert response.status_code in {200, 404}
    assert "pgqueue-situation" not in response.content.decode()


def test_dead_letter_page_of_ready_job_redirects(operator: Client, make_job: JobMaker) -> None:
    assert operator.get(f"/admin/pgqueue/deadjob/{make_job().pk}/change/").status_code == 302


def test_progress_with_total_is_shown_as_a_bar(operator: Client, make_job: JobMaker) -> None:
    progress = {"progress_done": 1250.0, "progress_total": 5000.0, "progress_message": "<b>rows</b>\u202e"}
    job = make_job("running", progress_at=timezone.now(), **progress)
    page = page_of(operator, job)
    assert '<progress class="pgqueue-progress" value="0.2500" max="1" title="25 %" aria-label="progress">25 %' in page
    assert "1,250 of 5,000 · &lt;b&gt;rows&lt;/b&gt;\\u202e · " in page
    rows = operator.get(JOBS).content.decode()
    assert 'value="0.2500"' in rows
    assert "&gt;rows" not in rows


@pytest.mark.parametrize(
    ("done", "total", "words"),
    [(7.0, None, "7 · "), (0.5, None, "0.5 · "), (float("nan"), 4.0, "nan of 4"), (1.0, float("inf"), "1 of inf")],
)
def test_progress_without_valid_ratio_shows_no_bar(
    operator: Client, make_job: JobMaker, done: float, total: float | None, words: str
) -> None:
    page = page_of(operator, make_job(progress_done=done, progress_total=total, progress_at=timezone.now()))
    assert "<progress" not in page
    assert words in page


def test_progress_dead_job_has_a_bar_only_on_its_page(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead", progress_done=1.0, progress_total=4.0)
    assert "<progress" not in operator.get(JOBS).content.decode()
    assert 'value="0.2500"' in page_of(operator, job)


def test_page_unique_job_shows_key_and_end_of_period(operator: Client) -> None:
    task = tasks.noop.using(unique_key="order:7")
    page = page_of(operator, task.enqueue())
    assert "order:7" in page
    assert "Unique until" not in page
    page = page_of(operator, task.using(unique_while=3600).enqueue())
    assert "order:7" in page
    assert "Unique until" in page
