"""Acknowledge dead jobs from pages and lists: the reason, the permission, what leaves the lists, and who did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from django_pgqueue.admin import shown
from django_pgqueue.models import AuditEntry, Job
from tests.admin.conftest import JobMaker
from tests.admin.test_bulk_acts import REQUEST, form, text_of, url
from tests.admin.test_lists import DEAD, JOBS, ids

pytestmark = pytest.mark.slow


@pytest.fixture
def client(client_of: Callable[..., Client]) -> Client:
    return client_of("view_job", "acknowledge_job", "retry_job")


def post(client: Client, job: Job, **fields: Any) -> str:
    """Post the form of the act with what the page shows now, and return the page that follows."""
    seen = {"shown": shown.token(job.pk, shown.as_seen(job)), **fields}
    page: str = client.post(f"{JOBS}{job.pk}/acknowledge/", seen, follow=True).content.decode()
    return page


def page_of(client: Client, job: Job) -> str:
    return text_of(client, f"{JOBS}{job.pk}/change/")


@pytest.mark.quick
def test_page_asks_for_a_reason_then_acknowledges(client: Client, make_job: JobMaker) -> None:
    job, other = make_job("dead"), make_job("dead")
    assert ">Acknowledge</button>" in page_of(client, job)
    page = post(client, job)
    assert "Acknowledge app.add" in page and 'name="reason"' in page
    assert f'<input type="hidden" name="shown" value="{job.pk}:' in page
    assert "still counts it as failed" in page and "jobs that depend on it stay as they are" in page
    assert "This field is required" in post(client, job, confirmed="1", reason="  ")
    assert not Job.objects.acknowledged().exists()
    page = post(client, job, confirmed="1", reason=" the card <expired> ")
    assert "1 job is acknowledged." in page
    assert "</span> died 1 min" in page
    assert "Acknowledged by staff at 2" in page and ": the card &lt;expired&gt;<" in page
    assert "acknowledged by staff: the card" in page.split("Timeline")[1]
    assert ">Retry</button>" in page and ">Acknowledge</button>" not in page
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by, entry.reason, entry.job_count) == (
        "acknowledge",
        "staff",
        "the card <expired>",
        1,
    )
    assert LogEntry.objects.get().change_message == "Acknowledge: the card <expired>."
    assert ids(client, DEAD) == [other.pk]
    assert ids(client, JOBS, state="dead") == [other.pk]
    assert ids(client, JOBS, state="acknowledged") == [job.pk]
    assert ids(client, JOBS) == [other.pk, job.pk]
    assert "pgqueue-acknowledged" in text_of(client, f"{JOBS}?state=acknowledged")


def test_job_that_a_program_acknowledged_names_nobody(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    job.acknowledge()
    assert "Acknowledged by a program that wrote no audit at 2" in page_of(client, job)


def test_reason_of_an_earlier_death_is_not_shown(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    post(client, job, confirmed="1", reason="the first time")
    AuditEntry.objects.update(began_at=job.enqueued_at)
    Job.objects.filter(pk=job.pk).update(finished_at=AuditEntry.objects.get().began_at.replace(year=2999))
    assert "the first time" not in page_of(client, job)


def test_acknowledged_job_can_be_retried(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead", limit_key="import:7", limit_order=2)
    post(client, job, confirmed="1", reason="gone")
    job.refresh_from_db()
    assert "because it is acknowledged" in page_of(client, job)
    seen = {"shown": shown.token(job.pk, shown.as_seen(job))}
    assert "1 job is ready again." in client.post(f"{JOBS}{job.pk}/retry/", seen, follow=True).content.decode()
    page = page_of(client, job)
    assert "Acknowledged by" not in page and "a dead job blocks the key" in page


def test_job_that_has_changed_is_not_acknowledged(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    job.retry()
    assert "Nothing was changed" in post(client, job, confirmed="1", reason="gone")
    assert not AuditEntry.objects.exists()


def test_act_needs_its_permission(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    client, job = client_of("view_job", "retry_job"), make_job("dead")
    assert "Acknowledge" not in page_of(client, job)
    answer = client.post(f"{JOBS}{job.pk}/acknowledge/", {"confirmed": "1", "reason": "gone"})
    assert answer.status_code == 403
    assert "acknowledge_selected" not in text_of(client, DEAD)


def test_blocker_has_the_button(client: Client, make_job: JobMaker) -> None:
    dead = make_job("dead", limit_key="import:7", limit_order=2)
    waiting = make_job(limit_key="import:7", limit_order=2)
    assert f"Acknowledge #{dead.pk}</button>" in page_of(client, waiting)
    post(client, dead, confirmed="1", reason="gone")
    assert "pgqueue-blocker" not in page_of(client, waiting)


@pytest.mark.parametrize("path", [DEAD, JOBS])
def test_selected_rows_are_acknowledged_for_one_reason(client: Client, make_job: JobMaker, path: str) -> None:
    jobs, other = [make_job("dead") for _ in range(2)], make_job("dead")
    tokens = [shown.token(job.pk, shown.as_seen(job)) for job in jobs]
    data = {"action": "acknowledge_selected", "_selected_action": [job.pk for job in jobs], "shown": tokens}
    page = client.post(path, data).content.decode()
    assert "Acknowledge 2 dead jobs?" in page and 'value="acknowledge_selected"' in page
    again = {"action": "acknowledge_selected", "_selected_action": [jobs[0].pk], "shown": " ".join(tokens)}
    page = client.post(path, {**again, "confirmed": "1", "reason": ""}).content.decode()
    assert "This field is required" in page and not AuditEntry.objects.exists()
    page = client.post(path, {**again, "confirmed": "1", "reason": "gone"}, follow=True).content.decode()
    assert "2 jobs are acknowledged." in page
    entry = AuditEntry.objects.get()
    assert (entry.reason, entry.job_count) == ("gone", 2)
    assert [job.pk for job in Job.objects.dead()] == [other.pk]


def test_selected_acknowledged_rows_are_left(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    job.acknowledge()
    data = {"action": "acknowledge_selected", "_selected_action": [job.pk]}
    data["shown"] = [shown.token(job.pk, shown.as_seen(job))]
    assert "1 job was left as it is" in client.post(JOBS, data, follow=True).content.decode()


def test_bulk_act_needs_a_reason(client: Client, make_job: JobMaker) -> None:
    make_job("dead")
    make_job("dead").acknowledge()
    assert "Acknowledge" in text_of(client, DEAD).split("result_list")[0]
    page = text_of(client, url("acknowledge", state="dead"))
    assert "<strong>1</strong> job meets the filter now." in page and "still counts it as failed" in page
    assert 'aria-describedby="bulk-reason-help" required>' in page
    fields = form(page)
    assert "Give a reason" in client.post(REQUEST, {**fields, "reason": " "}, follow=True).content.decode()
    assert not AuditEntry.objects.exists()
    client.post(REQUEST, {**fields, "reason": "gone"})
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.reason, entry.total) == ("acknowledge", "gone", 1)


def test_other_bulk_acts_need_no_reason(client: Client, make_job: JobMaker) -> None:
    make_job("dead")
    page = text_of(client, url("retry", state="dead"))
    assert 'bulk-reason-help" required' not in page and "still counts it" not in page
