"""Erase values of finished jobs from pages and lists: the question, the permission, and only what the page showed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db.models import F
from django.test import Client

from django_pgqueue.admin import shown
from django_pgqueue.models import AuditEntry, Job
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.test_bulk_acts import text_of
from tests.admin.test_lists import DEAD, JOBS

pytestmark = pytest.mark.slow

ALL = {f"erase_{kind}": "on" for kind in ("arguments", "results", "errors", "logs")}
SECRET = "4711 of ada"


@pytest.fixture
def client(client_of: Callable[..., Client]) -> Client:
    return client_of("view_job", "view_arguments", "erase_job")


@pytest.fixture
def dead(make_job: JobMaker) -> Job:
    """Make a dead job whose arguments and error have a value to erase."""
    job = make_job("dead", arguments={"args": [SECRET], "kwargs": {}})
    add_execution(job, error=f"no card {SECRET}")
    return job


def post(client: Client, job: Job, **fields: Any) -> str:
    """Post the form of the act with what the page shows now, and return the page that follows."""
    seen = {"shown": shown.token(job.pk, shown.as_seen(job)), **fields}
    page: str = client.post(f"{JOBS}{job.pk}/erase/", seen, follow=True).content.decode()
    return page


@pytest.mark.quick
def test_page_asks_what_to_erase_then_erases_it(client: Client, dead: Job, make_job: JobMaker) -> None:
    other = make_job("dead", arguments={"args": [SECRET], "kwargs": {}})
    page = text_of(client, f"{JOBS}{dead.pk}/change/")
    assert "Erase values</button>" in page and SECRET in page
    page = post(client, dead)
    assert "Erase values of app.add" in page and "Erased values cannot be restored" in page
    assert all(f'name="{name}"' in page for name in ALL)
    for wrong, says in ((ALL, "This field is required"), ({"reason": "a"}, "Choose at least one kind")):
        assert says in post(client, dead, confirmed="1", **wrong)
    assert not AuditEntry.objects.exists()
    page = post(client, dead, confirmed="1", reason="request 91", **ALL)
    assert "Values of 1 job are erased." in page and SECRET not in page
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.done_by, entry.reason, entry.job_count) == ("erase", "staff", "request 91", 1)
    assert LogEntry.objects.get().change_message == "Erase values."
    other.refresh_from_db()
    assert other.arguments["args"] == [SECRET]


def test_only_chosen_kinds_are_erased(client: Client, dead: Job) -> None:
    post(client, dead, confirmed="1", reason="a", erase_errors="on")
    assert dead.executions.get().error == "[erased]" and Job.objects.get().arguments["args"] == [SECRET]
    assert AuditEntry.objects.get().filter["erased"] == ["errors"]


def test_job_that_changed_since_the_page_stays(client: Client, dead: Job) -> None:
    """The job was retried and has died again: the page did not show this end."""
    Job.objects.update(finished_at=F("finished_at") + timedelta(seconds=1))
    assert "Nothing was changed" in post(client, dead, confirmed="1", reason="a", **ALL)
    assert not AuditEntry.objects.exists() and Job.objects.get().arguments["args"] == [SECRET]


def test_erasure_needs_its_permission_and_a_finished_job(
    client_of: Callable[..., Client], dead: Job, make_job: JobMaker
) -> None:
    ready = make_job()
    operator = client_of("view_job", "erase_job")
    assert "Erase values</button>" not in text_of(operator, f"{JOBS}{ready.pk}/change/")
    assert "Nothing was changed" in post(operator, ready, confirmed="1", reason="a", **ALL)
    User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_job"))
    assert "Erase values</button>" not in text_of(operator, f"{JOBS}{dead.pk}/change/")
    assert operator.post(f"{JOBS}{dead.pk}/erase/", {**ALL, "reason": "a", "confirmed": "1"}).status_code == 403
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize("path", [DEAD, JOBS])
def test_selected_rows_are_erased_after_the_question(client: Client, make_job: JobMaker, path: str) -> None:
    jobs = [make_job("dead", arguments={"args": [number], "kwargs": {}}) for number in range(3)]
    tokens = [shown.token(job.pk, shown.as_seen(job)) for job in jobs[:2]]
    data = {"action": "erase_selected", "_selected_action": [job.pk for job in jobs[:2]], "shown": tokens}
    page = client.post(path, data).content.decode()
    assert "Erase values of 2 jobs?" in page and 'value="erase_selected"' in page
    again = {"action": "erase_selected", "_selected_action": [jobs[0].pk], "shown": " ".join(tokens), "confirmed": "1"}
    page = client.post(path, {**again, "reason": "request 91", **ALL}, follow=True).content.decode()
    assert "Values of 2 jobs are erased." in page
    entry, kept = AuditEntry.objects.get(), Job.objects.get(pk=jobs[2].pk)
    assert sorted(entry.jobs.values_list("job_id", flat=True)) == [jobs[0].pk, jobs[1].pk]
    assert kept.arguments["args"] == [2]
    assert {entry.change_message for entry in LogEntry.objects.all()} == {"Erase values, one of 2 jobs selected."}


def test_all_jobs_of_a_list_are_not_erased(client: Client, dead: Job) -> None:
    data = {"action": "erase_selected", "_selected_action": [dead.pk], "select_across": "1"}
    for more in ({}, {"confirmed": "1", "reason": "a", **ALL}):
        page = client.post(DEAD, {**data, **more}, follow=True).content.decode()
        assert "Nothing was erased: select rows of the page." in page
    assert not AuditEntry.objects.exists()
