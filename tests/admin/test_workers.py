"""The list and the pages of workers in the admin, and the requests to one worker."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models import F
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.lifecycle import worker_requests
from django_pgqueue.models import AuditEntry, Execution, Job, Worker, WorkerRequest
from django_pgqueue.stats import fleet
from tests.admin.conftest import JobMaker, add_execution

pytestmark = pytest.mark.slow

WORKERS = "/admin/pgqueue/worker/"
JOBS = "/admin/pgqueue/job/"
ALL = ("view_job", "view_worker", "stop_worker", "view_stack", "view_arguments")


@pytest.fixture
def add_worker(db: None) -> Callable[..., Worker]:
    """Return a function that adds a worker process with a supervisor and a fresh heartbeat."""

    def add(**columns: Any) -> Worker:
        about = {"hostname": "vm", "pid": 7, "supervisor_pid": 6, "version": "0.1.0", "concurrency": 4}
        return Worker.objects.create(**{**about, **columns})

    return add


@pytest.fixture
def run(make_job: JobMaker) -> Callable[..., Execution]:
    """Return a function that lets a worker run a job for some seconds."""

    def run_job(worker: Worker, seconds: float = 600.0, **columns: Any) -> Execution:
        job = make_job("running", **columns)
        at = timezone.now() - timedelta(seconds=seconds)
        Execution.objects.filter(job=job).update(worker_id=worker.pk, started_at=at, claimed_at=at)
        Job.objects.filter(pk=job.pk).update(worker_id=worker.pk)
        return Execution.objects.get(job=job)

    return run_job


@pytest.fixture
def chief(client_of: Callable[..., Client]) -> Client:
    return client_of(*ALL)


def text_of(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, answer
    return str(answer.content.decode())


def region(page: str, name: str) -> str:
    return page.split(f'id="{name}"')[1].split("</section>")[0]


# ------------------------------------------------------------------ the list


def test_pages_show_how_many_jobs_of_each_queue_a_worker_runs(chief, add_worker):
    worker = add_worker(queue_names="mail=2,reports=,*=5")
    add_worker(queue_names="mail=2,other=", stopped_at=timezone.now())
    page = text_of(chief, WORKERS)
    assert "mail (2), reports, all others (5)" in page
    assert "mail (2), other" in page
    pk = getattr(worker, "pk", worker)
    assert "mail (2), reports, all others (5)" in text_of(chief, f"{WORKERS}{pk}/change/")


def test_list_groups_live_workers_by_host_with_their_jobs(chief, add_worker, run):
    busy = add_worker(hostname="alpha", pid=11, resident_mib=96, queue_names="mail,reports")
    add_worker(hostname="beta", pid=22)
    long = run(busy, 600.0, task_name="app.hang")
    short = run(busy, 5.0, task_name="app.quick")
    page = text_of(chief, WORKERS)
    assert page.index("alpha") < page.index("beta") and "2 of 8 slots busy" in page
    alpha = page.split("<h2>alpha")[1].split("<h2>")[0]
    for expected in ("2 of 4", "96 MiB", "mail, reports", f"{JOBS}{long.job_id}/change/", "for 10 min"):
        assert expected in alpha, expected
    assert alpha.index(f"#{long.job_id}") < alpha.index(f"#{short.job_id}")
    assert "nothing" in page.split("<h2>beta")[1]


def test_list_marks_versions_other_than_the_latest_start(chief, add_worker):
    now = timezone.now()
    add_worker(version="0.1.0", pid=1, started_at=now - timedelta(hours=2))
    assert "other version" not in text_of(chief, WORKERS)
    add_worker(version="0.2.0", pid=2, started_at=now)
    page = text_of(chief, WORKERS)
    assert "different versions" in page and page.count("other version<") == 1
    assert "0.1.0 <span" in page


def test_list_marks_releases_other_than_the_latest_start(chief, add_worker):
    now = timezone.now()
    add_worker(release="r1<b>", pid=1, started_at=now - timedelta(hours=2))
    page = text_of(chief, WORKERS)
    assert "release r1&lt;b&gt;" in page and "other release" not in page and "different releases" not in page
    add_worker(release="r2", pid=2, started_at=now)
    page = text_of(chief, WORKERS)
    assert page.count("other release<") == 1 and "different releases" in page
    assert "r1&lt;b&gt; (1)" in page and "r2 (1)" in page
    assert page.index("release r1&lt;b&gt;") < page.index("other release<") < page.index("release r2")


def test_list_and_page_of_workers_without_release_say_nothing_of_it(chief, add_worker):
    worker = add_worker()
    for url in (WORKERS, f"{WORKERS}{worker.pk}/change/"):
        assert "elease" not in text_of(chief, url)


@pytest.mark.parametrize("has_stopped", [False, True])
def test_page_of_a_worker_shows_its_release(chief, add_worker, has_stopped):
    worker = add_worker(release="2026-11-30.1", stopped_at=timezone.now() if has_stopped else None)
    assert re.search(r"Release</dt>\s*<dd>2026-11-30\.1</dd>", text_of(chief, f"{WORKERS}{worker.pk}/change/"))
    assert "release 2026-11-30.1" in text_of(chief, WORKERS)


def test_list_silent_and_stopped_workers_follow_the_live_ones(chief, add_worker):
    now = timezone.now()
    add_worker(hostname="gone", stopped_at=now)
    add_worker(hostname="quiet", last_heartbeat_at=now - timedelta(hours=1))
    add_worker(hostname="live")
    page = text_of(chief, WORKERS).split('id="pgqueue-workers"')[1]
    places = [page.index(text) for text in ("<h2>live", "No heartbeat", "quiet:7", "<h2>Stopped", "gone:7")]
    assert places == sorted(places)


def test_page_of_a_silent_worker_offers_no_requests(chief, add_worker):
    page = text_of(chief, f"{WORKERS}{add_worker(supervisor_pid=6).pk}/change/")
    assert "Stop…" in page and "Stacks of all jobs" in page
    silent = add_worker(supervisor_pid=6, last_heartbeat_at=timezone.now() - timedelta(hours=1))
    page = text_of(chief, f"{WORKERS}{silent.pk}/change/")
    assert "no heartbeat" in page and "Stop…" not in page and "Stacks of all jobs" not in page


def test_list_long_lease_tolerates_old_heartbeat(chief, add_worker, settings):
    add_worker(last_heartbeat_at=timezone.now() - timedelta(seconds=121))
    assert "No heartbeat" in text_of(chief, WORKERS)
    settings.PGQUEUE = {"LEASE": 600}
    assert "No heartbeat" not in text_of(chief, WORKERS)


def test_list_without_workers_says_how_to_start_one(chief):
    assert "manage.py runworker" in text_of(chief, WORKERS)


def test_list_of_many_workers_has_few_queries_and_rows(chief, add_worker, run):
    for number in range(30):
        add_worker(stopped_at=timezone.now(), hostname=f"gone{number}")
    for number in range(12):
        run(add_worker(pid=100 + number))
    one = add_worker(pid=99, concurrency=20)
    for _ in range(12):
        run(one)
    with CaptureQueriesContext(connection) as captured:
        page = text_of(chief, WORKERS)
    assert len(captured) <= 8, [query["sql"] for query in captured]
    assert page.count("gone") == 20 and "and 4 more" in page


def test_jobs_of_a_chunk_that_are_not_shown_are_counted(chief, add_worker, run):
    worker = add_worker()
    for _ in range(60):
        run(worker)
    assert "and 52 more" in text_of(chief, WORKERS)
    assert "Not shown: 10 more." in text_of(chief, f"{WORKERS}{worker.pk}/change/")
    page = text_of(chief, f"{WORKERS}{worker.pk}/stop/")
    assert "60 jobs run now" in page and "Not shown: 10 more." in page


def test_list_post_is_refused_and_needs_permission(chief, client_of, make_user):
    assert chief.post(WORKERS, {}).status_code == 405
    other = Client()
    other.force_login(make_user("view_job", name="other"))
    assert other.get(WORKERS).status_code == 403
    assert other.get(f"{WORKERS}1/change/").status_code == 403


# ------------------------------------------------------------------ stacks


def test_stack_of_job_is_requested_shown_and_logged(chief, add_worker, run):
    execution = run(add_worker())
    page = f"{JOBS}{execution.job_id}/change/"
    assert "Show where it is now" in text_of(chief, page)
    for _ in range(2):  # the second of a double click finds the open request
        answer = chief.post(f"{WORKERS}{execution.worker_id}/stack/", {"execution": execution.pk})
        assert answer.headers["Location"] == f"{page}#pgqueue-stack"
    asked = WorkerRequest.objects.get()
    assert (asked.kind, asked.execution_id, asked.requested_by) == ("stack", execution.pk, "staff")
    waiting = text_of(chief, page)
    assert "Waiting for the answer" in waiting and 'http-equiv="refresh"' in waiting
    worker_requests.answer_request(connection, asked.pk, 'File "shop.py", line 7 <b>')
    answered = text_of(chief, page)
    assert "shop.py&quot;, line 7 &lt;b&gt;" in answered and 'http-equiv="refresh"' not in answered
    assert {entry.get_change_message() for entry in LogEntry.objects.all()} == {"Stack requested."}
    assert sorted(entry.content_type.model for entry in LogEntry.objects.all()) == ["job", "worker"]
    history = text_of(chief, f"{JOBS}{execution.job_id}/history/")
    assert history.count("Request for a stack</a>") == 1 and "</span> vm:7" in history
    act = text_of(chief, f"{JOBS}bulk_act/?id={AuditEntry.objects.get().pk}")
    assert "Left unchanged" not in act and f"#{execution.job_id}</a>" in act


def test_stack_unanswered_request_says_since_when(chief, add_worker, run):
    execution = run(add_worker())
    chief.post(f"{WORKERS}{execution.worker_id}/stack/", {"execution": execution.pk})
    WorkerRequest.objects.update(requested_at=F("requested_at") - timedelta(minutes=3))
    page = text_of(chief, f"{JOBS}{execution.job_id}/change/")
    assert "No answer since 20" in page and "(3 min" in page and 'http-equiv="refresh"' not in page


def test_stack_stays_on_page_of_ended_job_without_button(chief, make_job):
    execution = add_execution(make_job("dead"))
    WorkerRequest.objects.create(worker_id=1, kind="stack", execution_id=execution.pk, answer="the frames")
    WorkerRequest.objects.create(worker_id=1, kind="stack", execution_id=execution.pk + 1, answer="other job")
    page = text_of(chief, f"{JOBS}{execution.job_id}/change/")
    assert "the frames" in page and "other job" not in page and "Show where it is now" not in page


def test_stack_of_worker_is_shown_on_its_page(chief, add_worker, run):
    worker = add_worker()
    execution = run(worker)
    page = f"{WORKERS}{worker.pk}/change/"
    assert "Stacks of all jobs" in text_of(chief, page) and f'value="{execution.pk}"' in text_of(chief, page)
    answer = chief.post(f"{WORKERS}{worker.pk}/stack/")
    assert answer.headers["Location"] == f"{page}#pgqueue-requests"
    worker_requests.answer_request(connection, WorkerRequest.objects.get().pk, "x" * 200_000)
    shown = region(text_of(chief, page), "pgqueue-requests")
    assert 50_000 < shown.count("x") < 70_000


def test_stack_without_permission_is_neither_offered_nor_shown(client_of, add_worker, run):
    worker = add_worker()
    execution = run(worker)
    WorkerRequest.objects.create(worker_id=worker.pk, kind="stack", execution_id=execution.pk, answer="secret code")
    client = client_of("view_job", "view_worker", "stop_worker")
    for url in (f"{JOBS}{execution.job_id}/change/", f"{WORKERS}{worker.pk}/change/"):
        page = text_of(client, url)
        assert "secret code" not in page and "/stack/" not in page
    assert client.post(f"{WORKERS}{worker.pk}/stack/", {"execution": execution.pk}).status_code == 403
    assert client.get(f"{WORKERS}{worker.pk}/stack/").status_code == 405


@pytest.mark.parametrize("number", ["", "x", "-1", "9" * 40, "\0"])
def test_stack_bad_execution_asks_for_the_whole_worker(chief, add_worker, number):
    assert chief.post(f"{WORKERS}{add_worker().pk}/stack/", {"execution": number}).status_code == 302
    assert WorkerRequest.objects.get().execution_id == 0


# ------------------------------------------------------------------ stop


def test_stop_asks_first_and_names_processes_and_jobs(chief, add_worker, run):
    worker = add_worker(pid=11)
    add_worker(pid=12)
    add_worker(pid=13, supervisor_pid=66)
    execution = run(worker)
    page = text_of(chief, f"{WORKERS}{worker.pk}/stop/")
    assert "2 processes: 11, 12" in page and f"#{execution.job_id}" in page and "1 job runs now" in page
    assert not WorkerRequest.objects.exists()
    answer = chief.post(f"{WORKERS}{worker.pk}/stop/", {"execution": execution.pk})
    assert answer.headers["Location"] == f"{WORKERS}{worker.pk}/change/#pgqueue-requests"
    asked = WorkerRequest.objects.get()
    assert (asked.kind, asked.execution_id) == ("stop", 0)
    assert [entry.get_change_message() for entry in LogEntry.objects.all()] == ["Stop requested."]


@pytest.mark.parametrize("case", ["stopped", "foreground", "gone"])
def test_stop_worker_that_cannot_answer_is_refused(chief, add_worker, case):
    worker = add_worker(
        supervisor_pid=None if case == "foreground" else 6, stopped_at=timezone.now() if case == "stopped" else None
    )
    if case == "gone":
        Worker.objects.all().delete()
    for send in (chief.get, chief.post):
        answer = send(f"{WORKERS}{worker.pk}/stop/", follow=True)
        assert "Nothing was requested" in answer.content.decode()
    assert not WorkerRequest.objects.exists() and not LogEntry.objects.exists()


@pytest.mark.parametrize("codenames", [("view_worker", "view_job", "view_stack"), ("stop_worker", "view_job")])
def test_stop_without_permission_is_refused(client_of, add_worker, codenames):
    client, worker = client_of(*codenames), add_worker()
    assert client.get(f"{WORKERS}{worker.pk}/stop/").status_code == 403
    assert client.post(f"{WORKERS}{worker.pk}/stop/").status_code == 403
    if "view_worker" in codenames:
        assert "/stop/" not in text_of(client, f"{WORKERS}{worker.pk}/change/")


def test_foreground_worker_page_says_that_it_answers_nothing(chief, add_worker):
    page = text_of(chief, f"{WORKERS}{add_worker(supervisor_pid=None).pk}/change/")
    assert "answers no requests" in page and "/stop/" not in page and "/stack/" not in page


# ------------------------------------------------------------------ processes that do not run any more


def test_page_of_stopped_worker_shows_what_its_row_says(chief, add_worker):
    at = timezone.now() - timedelta(hours=3)
    about = {"hostname": "v\x1bm", "version": "0.1.0<b>", "queue_names": "mail=2,reports=", "started_at": at}
    worker = add_worker(**about, last_heartbeat_at=at + timedelta(hours=1), stopped_at=at + timedelta(hours=2))
    WorkerRequest.objects.create(worker_id=worker.pk, kind="stop", requested_by="ada", answer="It stops.")
    with CaptureQueriesContext(connection) as captured:
        page = text_of(chief, f"{WORKERS}{worker.pk}/change/")
    assert len(captured) <= 10, [query["sql"] for query in captured]
    shown = region(page, "pgqueue-worker-facts")
    for expected in (
        "stopped",
        "v\\x1bm",
        "0.1.0&lt;b&gt;",
        "mail (2), reports",
        ">7<",
        ">6<",
        "2 h",
        "1 h ago",
        "3 h",
    ):
        assert expected in shown, expected
    assert "It has left no job unfinished" in page and "no index finds them" in page
    assert "ada" in region(page, "pgqueue-requests") and "It stops." in page
    assert "/stop/" not in page and "/stack/" not in page
    assert f"{WORKERS}{worker.pk}/change/" in text_of(chief, WORKERS)


def test_page_of_stopped_worker_lists_the_jobs_that_it_has_left(chief, add_worker, run):
    worker = add_worker(stopped_at=timezone.now())
    execution = run(worker)
    assert f"{JOBS}{execution.job_id}/change/" in region(
        text_of(chief, f"{WORKERS}{worker.pk}/change/"), "pgqueue-worker-jobs"
    )


def test_page_of_worker_beyond_the_list_says_that_it_may_be_lost(chief, add_worker, monkeypatch):
    monkeypatch.setattr(fleet, "WORKERS_LIMIT", 0)
    page = text_of(chief, f"{WORKERS}{add_worker().pk}/change/")
    assert "lost, or without a connection" in page and "rescue its jobs" in page


def test_page_of_removed_worker_says_that_no_row_is_kept(chief, db):
    answer = chief.get(f"{WORKERS}4711/change/")
    assert answer.status_code == 404
    assert "No row is kept of the worker process 4711." in answer.content.decode()
    assert chief.get(f"{WORKERS}x/change/").headers["Location"] == WORKERS


def test_attempts_link_the_worker_also_if_it_is_gone(chief, make_user, add_worker, make_job):
    job = make_job("dead")
    stopped = add_worker(stopped_at=timezone.now(), hostname="<i>")
    executions = [add_execution(job, worker_id=worker_id) for worker_id in (stopped.pk, 4711, 0)]
    assert len(executions) == 3
    page = text_of(chief, f"{JOBS}{job.pk}/change/")
    assert f'on <a href="{WORKERS}{stopped.pk}/change/">&lt;i&gt;:7</a>' in page
    assert f'on <a href="{WORKERS}4711/change/">#4711</a>' in page
    assert "on #0<" in page
    other = Client()
    other.force_login(make_user("view_job", name="other"))
    assert WORKERS not in text_of(other, f"{JOBS}{job.pk}/change/")
