"""The attempts on the pages of jobs: whose error is shown, lost attempts, code that goes on, and retries."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_pgqueue.acts.job_retries import READ
from django_pgqueue.ground.attempt_ends import ISOLATED_DIED, KEPT_RUNNING, LEASE_RAN_OUT, STACK_OF_RUNNING
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import Execution, Job, Worker, WorkerRequest
from tests.admin.conftest import JobMaker, add_execution, set_state
from tests.admin.test_lists import JOBS

pytestmark = pytest.mark.slow

TIMES = ("claimed_at", "started_at", "finished_at", "lease_expires_at")
LOST = {"outcome": "crashed", "exception_class": "", "error": LEASE_RAN_OUT, "traceback": ""}


def page_of(client: Client, job_id: int) -> str:
    return client.get(f"{JOBS}{job_id}/change/").content.decode()


def labels_of(page: str) -> list[str]:
    timeline = page.partition('class="pgqueue-timeline"')[2].partition("</ol>")[0]
    return re.findall(r"</time></span> <span>([^<]*)<", timeline)


def situation_of(page: str) -> str:
    return re.sub(r"<[^>]+>", "", page.partition('class="pgqueue-situation">')[2].partition("</p>")[0])


def add_worker(**columns: Any) -> Worker:
    return Worker.objects.create(**{"hostname": "box", "pid": 7, "version": "1", "concurrency": 1, **columns})


def clock(at: datetime) -> str:
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")


def run_again(job: Job) -> None:
    """Open a second attempt."""
    set_state(job.pk, "running")
    Execution.objects.filter(job=job, outcome=None).update(attempt=2)


# ------------------------------------------------------------------ errors of earlier attempts


def test_error_beside_open_attempt_is_of_the_last_failed_one(operator: Client, make_job: JobMaker) -> None:
    job = make_job()
    failed = add_execution(job, error="the card was declined", traceback="the old frames")
    run_again(job)
    page = page_of(operator, job.pk)
    heading = page.partition("<h2>Error of attempt 1, the last that failed before attempt 2")[2].partition("</h2>")[0]
    assert failed.finished_at is not None and clock(failed.finished_at) in heading
    assert page.index("attempt 2 of 10") < page.index("Error of attempt 1") < page.index("the old frames")
    assert page.count("the old frames") == 1 and "Its error is shown above." in page


def test_error_before_a_success_is_not_that_of_a_retry(operator: Client, make_job: JobMaker) -> None:
    job = make_job("succeeded")
    earlier = [{**{name: timezone.now() - timedelta(hours=hours) for name in TIMES}} for hours in (3, 2, 1)]
    add_execution(job, error="the card was declined", **earlier[0])
    add_execution(job, attempt=2, outcome="succeeded", error="", exception_class="", **earlier[1])
    operator.post(f"{JOBS}{job.pk}/retry/", {"confirmed": "1"})
    set_state(job.pk, "running")
    page = page_of(operator, job.pk)
    assert "running attempt 1 of 10" in situation_of(page) and "<h2>Error of attempt" not in page
    add_execution(job, **earlier[2])
    assert "<h2>Error of attempt 1, the last that failed before attempt 1</h2>" not in page_of(operator, job.pk)


def test_heading_of_an_earlier_error_names_the_retry_after_it(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    add_execution(job, **{name: timezone.now() - timedelta(hours=1) for name in TIMES})
    operator.post(f"{JOBS}{job.pk}/retry/")
    set_state(job.pk, "running")
    heading = page_of(operator, job.pk).partition("<h2>Error of attempt 1, ")[2]
    assert heading.startswith("the last that failed before attempt 1 (after the retry of staff) <span")


def test_error_of_the_latest_attempt_has_its_time(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    failed = add_execution(job)
    heading = page_of(operator, job.pk).partition("<h2>Error of attempt 1")[2].partition("</h2>")[0]
    assert failed.finished_at is not None and clock(failed.finished_at) in heading and "before" not in heading


def test_stack_of_an_earlier_attempt_says_that_it_has_ended(admin_client: Client, make_job: JobMaker) -> None:
    job = make_job()
    add_execution(job)
    run_again(job)
    for execution in Execution.objects.filter(job=job):
        WorkerRequest.objects.create(worker_id=1, kind="stack", execution_id=execution.pk, answer="frames")
    titles = re.findall(r"<header><strong>(Stack [^<]*)<", page_of(admin_client, job.pk))
    assert titles == ["Stack of attempt 2", "Stack of attempt 1, which has ended"]


# ------------------------------------------------------------------ lost attempts


def test_lost_attempt_has_no_run_time(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    worker = add_worker(last_heartbeat_at=timezone.now() - timedelta(seconds=66))
    lost = add_execution(job, worker_id=worker.pk, **LOST)
    assert lost.started_at is not None and lost.finished_at is not None
    seen, found = clock(worker.last_heartbeat_at), clock(lost.finished_at)
    page = page_of(operator, job.pk)
    assert f"<span>started at {clock(lost.started_at)}, last seen {seen}, found lost at {found}</span>" in page
    assert "ran 10 s" not in page and "<dt>Found lost</dt>" in page
    events = [label.partition("attempt 1 ")[2] for label in labels_of(page) if label.startswith("attempt 1")]
    assert events == ["claimed by box:7", "started", "last seen by the heartbeat of its worker", "found lost"]
    assert "not known" in operator.get(f"{JOBS}?state=dead").content.decode()


def test_crash_that_its_worker_has_seen_has_a_run_time(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    add_execution(job, **{**LOST, "error": f"{ISOLATED_DIED} (signal SIGSEGV)"})
    page = page_of(operator, job.pk)
    assert "ran 10 s" in page and "found lost" not in page
    assert "not known" not in operator.get(f"{JOBS}?state=dead").content.decode()


def test_lost_attempt_that_nobody_has_rescued_has_no_run_time(operator: Client, make_job: JobMaker) -> None:
    job = make_job("running")
    now = timezone.now()
    worker = add_worker(last_heartbeat_at=now - timedelta(seconds=70))
    columns = {"started_at": now - timedelta(seconds=80), "lease_expires_at": now - timedelta(seconds=10)}
    Execution.objects.filter(job=job).update(worker_id=worker.pk, **columns)
    page = page_of(operator, job.pk)
    since, seen = clock(now - timedelta(seconds=80)), clock(worker.last_heartbeat_at)
    assert situation_of(page) == f"lost attempt 1 of 10, started at {since}, last seen {seen}"
    assert "for 1 min" not in page
    assert "not known" in operator.get(f"{JOBS}?state=lost").content.decode()


def test_claimed_job_without_start_does_not_say_running_since(operator: Client, make_job: JobMaker) -> None:
    job = make_job("running")
    Execution.objects.filter(job=job).update(started_at=None)
    situation = situation_of(page_of(operator, job.pk))
    assert re.fullmatch(r"running attempt 1 of 10, claimed .* ago, and no start is recorded yet", situation)


# ------------------------------------------------------------------ code that may still run

ABANDONED = {
    "cancelled": {"outcome": "cancelled", "error": f"{KEPT_RUNNING}\nFile …", "traceback": ""},
    "dead": {"outcome": "failed", "error": "", "traceback": f"{STACK_OF_RUNNING}\n" + "x" * 30_000},
    "ready": LOST,
}


@pytest.mark.parametrize("state", ABANDONED)
def test_page_and_list_say_that_the_code_may_still_run(operator: Client, make_job: JobMaker, state: str) -> None:
    job = make_job(state)
    worker = add_worker()
    add_execution(job, worker_id=worker.pk, **ABANDONED[state])
    for is_stopped in (False, True):
        Worker.objects.update(stopped_at=timezone.now() if is_stopped else None)
        assert says_that_code_runs(operator, job) is not is_stopped


def says_that_code_runs(client: Client, job: Job) -> bool:
    """Return whether the page and the list of jobs say it."""
    says = "The code of attempt 1 may still run on box:7." in situation_of(page_of(client, job.pk))
    assert says is ("its code may still run" in client.get(JOBS).content.decode())
    return says


@pytest.mark.parametrize("state", ABANDONED)
def test_code_of_a_silent_worker_is_not_said_to_run(operator: Client, make_job: JobMaker, state: str) -> None:
    """A worker whose host was lost records no stop, and stays in its table for a week."""
    job = make_job(state)
    worker = add_worker()
    add_execution(job, worker_id=worker.pk, **ABANDONED[state])
    for seconds in (70, 61):
        Worker.objects.update(last_heartbeat_at=timezone.now() - timedelta(seconds=seconds))
        assert not says_that_code_runs(operator, job)
    Worker.objects.update(last_heartbeat_at=timezone.now() - timedelta(seconds=30))
    assert says_that_code_runs(operator, job)


def test_code_runs_on_only_with_a_heartbeat_after_its_loss(operator: Client, make_job: JobMaker) -> None:
    job = make_job("ready")
    worker = add_worker(last_heartbeat_at=timezone.now() - timedelta(seconds=40))
    add_execution(job, worker_id=worker.pk, **{**LOST, "finished_at": timezone.now() - timedelta(seconds=30)})
    assert not says_that_code_runs(operator, job)
    Worker.objects.update(last_heartbeat_at=timezone.now() - timedelta(seconds=20))
    assert says_that_code_runs(operator, job)


def test_running_job_is_not_said_to_run_on(operator: Client, make_job: JobMaker) -> None:
    """Its earlier attempt was lost, and its worker lives."""
    job = make_job("running")
    add_execution(job, worker_id=add_worker().pk, **LOST)
    assert "may still run" not in situation_of(page_of(operator, job.pk))


def test_running_job_with_a_cancel_request_is_cancelling(operator: Client, make_job: JobMaker) -> None:
    job = make_job("running", cancel_requested_at=timezone.now())
    situation = situation_of(page_of(operator, job.pk))
    assert situation.startswith("cancelling attempt 1 of 10, for ") and "cancel requested" in situation


def test_cancelled_job_with_an_open_attempt_may_still_run(operator: Client, make_job: JobMaker) -> None:
    """No transition leads here, but a program can write the rows by SQL."""
    job = make_job("running")
    worker = add_worker()
    Execution.objects.filter(job=job).update(worker_id=worker.pk)
    Job.objects.filter(pk=job.pk).update(state="cancelled", finished_at=timezone.now())
    situation = situation_of(page_of(operator, job.pk))
    assert situation.startswith("cancelled ") and situation.endswith("may still run on box:7.")


# ------------------------------------------------------------------ retries


def test_retry_by_operator_is_in_timeline_and_beside_attempts(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    now = timezone.now()
    for number in (1, 2):
        add_execution(job, attempt=number)
    operator.post(f"{JOBS}{job.pk}/retry/")
    later = {name: now + timedelta(hours=1, seconds=number) for number, name in enumerate(TIMES)}
    add_execution(job, attempt=1, **later)
    page = page_of(operator, job.pk)
    labels = labels_of(page)
    assert "attempt 1 after the retry of staff claimed by #1" in labels
    assert labels.index("attempt 2 failed: builtins.ValueError") < labels.index("retried by staff")
    assert labels.index("retried by staff") < labels.index("attempt 1 after the retry of staff claimed by #1")
    headings = re.findall(r"<strong>Attempt (\d)</strong>( <span [^>]*>([^<]*)<)?", page)
    assert [(number, text) for number, _, text in headings] == [("1", "after the retry of staff"), ("2", ""), ("1", "")]


def test_retry_that_the_audit_does_not_have_is_named_too(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    for number in (1, 2, 1, 2):
        add_execution(job, attempt=number)
    page = page_of(operator, job.pk)
    labels = labels_of(page)
    assert page.count("after a retry that the audit does not have</span>") == 2
    assert labels.count("attempt 1 after a retry that the audit does not have claimed by #1") == 1
    assert labels.count("attempt 2 claimed by #1") == 2


def test_every_retry_by_code_is_in_the_timeline(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    for number in (1, 2, 1, 1, 2):
        add_execution(job, attempt=number)
    labels = labels_of(page_of(operator, job.pk))
    assert labels.count("attempt 1 after a retry that the audit does not have claimed by #1") == 2
    assert labels.count("attempt 1 claimed by #1") == 1 and labels.count("attempt 2 claimed by #1") == 2


def test_retry_before_those_that_were_read_is_an_earlier_one(operator: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    for _ in range(2):
        add_execution(job)
    for _ in range(READ):
        audit.add_audit(connection, "retry", {}, [job.pk], done_by="anna")
    page = page_of(operator, job.pk)
    assert labels_of(page).count("attempt 1 after an earlier retry claimed by #1") == 1 and "does not have" not in page


def test_retry_of_several_jobs_says_when_the_act_began(operator: Client, make_job: JobMaker) -> None:
    jobs = [make_job("dead").pk for _ in range(2)]
    audit.add_audit(connection, "retry", {}, jobs, reason="<b>gateway is back")
    audit.add_audit(connection, "cancel", {}, jobs, done_by="ben")
    labels = labels_of(page_of(operator, jobs[0]))
    assert "an operator began to retry several jobs, this one included: &lt;b&gt;gateway is back" in labels
    assert [label for label in labels if "ben" in label] == ["cancelled by ben"]


def test_retries_cost_one_query_if_there_are_any(operator: Client, make_job: JobMaker) -> None:
    retried, other = make_job("dead"), make_job("dead")
    for number in range(20):
        audit.add_audit(connection, "retry", {}, [retried.pk], done_by=f"operator{number}")
    counts = []
    for job in (other, retried):
        with CaptureQueriesContext(connection) as captured:
            page = page_of(operator, job.pk)
        counts.append(len(captured))
    assert counts[1] == counts[0] + 1
    assert page.count("retried by operator") == 10 and "retried by operator19" in page


def test_retries_are_shown_without_view_arguments(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    """The history of a job, which needs the same permission, names the operators too."""
    job = make_job("dead")
    audit.add_audit(connection, "retry", {}, [job.pk], done_by="anna")
    assert "retried by anna" in page_of(client_of("view_job"), job.pk)


def test_attempt_names_the_release_of_its_worker(operator, make_job):
    job = make_job("dead")
    worker = Worker.objects.create(hostname="web-1", pid=7, version="1", concurrency=1, release="v2<b>")
    add_execution(job, worker_id=worker.pk)
    page = unescape(operator.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode())
    assert "web-1:7, release v2<b>" in re.sub(r"<(?!b>)[^>]*>", "", page)
