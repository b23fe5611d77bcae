"""Change the attempts of one job from its page: the question, the bounds, the permission and the audit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_pgqueue.admin import shown
from django_pgqueue.models import AuditEntry, Job
from tests.admin.conftest import JobMaker

from .test_move_and_delete import JOBS, post

pytestmark = pytest.mark.slow


@pytest.fixture
def client(client_of: Callable[..., Client]) -> Client:
    return client_of("view_job", "set_max_attempts_job")


def most(job: Job) -> int:
    job.refresh_from_db()
    return job.max_attempts


@pytest.mark.quick
def test_form_asks_for_number_and_reason_then_changes(client: Client, make_job: JobMaker) -> None:
    job = make_job(attempt=3, max_attempts=10)
    page = post(client, job, "attempts")
    assert "The job has made 3 attempts. At most 10 attempts may count now." in page
    assert "when this attempt ends" not in page
    assert "This field is required" in post(client, job, "attempts", max_attempts="20", reason="")
    assert most(job) == 10
    page = post(client, job, "attempts", max_attempts="20", reason="the bank is down")
    assert "The attempts of 1 job are changed." in page
    assert most(job) == 20
    assert LogEntry.objects.get().change_message == "Change the attempts to 20 at most: the bank is down."
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason) == ("set_max_attempts", "the bank is down")
    assert entry.filter == {"jobs": [job.pk], "max_attempts": 20}
    assert entry.done_by == LogEntry.objects.get().user.get_username()


@pytest.mark.parametrize(
    ("state", "number", "words"),
    [
        ("ready", "3", "The job has made 3 attempts. Enter 4 or more."),
        ("running", "2", "The job is running attempt 3. Enter 3 or more."),
        ("ready", "10", "The job has this number already."),
        ("ready", "1001", "less than or equal to 1000"),
    ],
)
def test_form_refuses_number_with_reason(
    client: Client, make_job: JobMaker, state: str, number: str, words: str
) -> None:
    job = make_job(state, max_attempts=10)
    Job.objects.filter(pk=job.pk).update(attempt=3)
    assert words in post(client, job, "attempts", max_attempts=number, reason="a")
    assert most(job) == 10


def test_running_job_is_changed_for_the_end_of_its_attempt(client: Client, make_job: JobMaker) -> None:
    job = make_job("running", max_attempts=10)
    Job.objects.filter(pk=job.pk).update(attempt=3)
    assert "The new number counts when this attempt ends." in post(client, job, "attempts")
    assert "are changed" in post(client, job, "attempts", max_attempts="3", reason="a")
    assert most(job) == 3


def test_job_that_has_changed_since_the_page_is_left(client: Client, make_job: JobMaker) -> None:
    job = make_job()
    Job.objects.filter(pk=job.pk).update(state="running")
    assert "Nothing was changed" in post(client, job, "attempts", max_attempts="20", reason="a")
    assert most(job) != 20


@pytest.mark.parametrize(
    ("state", "is_offered"), [("ready", True), ("waiting", True), ("running", True), ("dead", False)]
)
def test_button_is_offered_for_unfinished_jobs(
    client: Client, make_job: JobMaker, state: str, is_offered: bool
) -> None:
    job = make_job(state)
    page = client.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert (f"{JOBS}{job.pk}/attempts/" in page) == is_offered


def test_button_needs_its_permission(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = make_job(), client_of("view_job", "move_job")
    url, shown_now = f"{JOBS}{job.pk}/attempts/", shown.token(job.pk, shown.as_seen(job))
    assert url not in client.get(f"{JOBS}{job.pk}/change/").content.decode()
    assert client.post(url, {"shown": shown_now, "max_attempts": "20", "reason": "a"}).status_code == 403
    assert most(job) != 20
