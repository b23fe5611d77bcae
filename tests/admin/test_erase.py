"""Erase values of finished jobs from pages and lists: the question, the permission, and only what the page showed."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import F
from django.test import Client

from django_pgqueue.admin import shown
from django_pgqueue.lifecycle import audit
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.stats import fleet
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.maintenance.bulk_acts import BulkActs
from tests import helpers
from tests.admin.conftest import JobMaker, add_execution
from tests.admin.test_bulk_acts import REQUEST, form, text_of, url
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


def test_erased_values_are_not_called_hidden(client: Client, dead: Job) -> None:
    post(client, dead, confirmed="1", reason="request 91", **ALL)
    User.objects.get().user_permissions.set(Permission.objects.filter(codename="view_job"))
    page = text_of(client, f"{JOBS}{dead.pk}/change/")
    assert "Erased." in page and "Hidden: you do not have" not in page


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


# ------------------------------------------------------------------ all jobs of a filter


@pytest.mark.parametrize(
    ("path", "filters"), [(DEAD, {"word": "dead"}), (f"{JOBS}?state=succeeded", {"word": "succeeded"})]
)
@pytest.mark.parametrize("more", [{}, {"confirmed": "1", "reason": "a", **ALL}])
def test_all_jobs_of_a_list_show_the_preview(
    client: Client, make_job: JobMaker, path: str, filters: dict[str, str], more: dict[str, str]
) -> None:
    """Also if somebody sends the answer of the other form with it: nothing is erased without the preview."""
    jobs = [make_job("dead"), make_job("succeeded")]
    data = {"action": "erase_selected", "_selected_action": [jobs[0].pk], "select_across": "1"}
    page = client.post(path, {**data, **more}).content.decode()
    assert "<strong>1</strong> job meets the filter now." in page and "Erased values cannot be restored" in page
    assert form(page)["state"] == filters["word"] and not AuditEntry.objects.exists()


def test_list_links_the_erasure_of_finished_jobs(client: Client, make_job: JobMaker) -> None:
    for state in ("dead", "ready", "succeeded"):
        make_job(state, queue_name="mail")
    for path, is_linked in ((DEAD, True), (f"{JOBS}?state=succeeded", True), (f"{JOBS}?state=ready", False)):
        assert ("Erase values…</a>" in text_of(client, path)) == is_linked, path


def test_preview_asks_what_to_erase_and_why_then_requests_it(client: Client, dead: Job, make_job: JobMaker) -> None:
    make_job("dead", task_name="app.other")
    page = text_of(client, url("erase", state="dead", task="app.add"))
    for text in ("Erased values cannot be restored", "another job of it is unfinished", "callback of a batch"):
        assert text in page
    assert all(re.search(f'name="{name}" value="1" checked', page) for name in ALL)
    assert '" required' not in page.partition('id="bulk-reason"')[0] and "required" in page
    fields = form(page)
    for wrong, says in ((ALL, "Give a reason"), ({"reason": "a"}, "Choose at least one kind")):
        assert says in client.post(REQUEST, {**fields, **wrong}, follow=True).content.decode()
    assert not AuditEntry.objects.exists()
    data = {**fields, "reason": "request 91", "rate": "5", "erase_logs": "on", "erase_arguments": "on"}
    answers = [client.post(REQUEST, data, follow=True) for _ in range(2)]
    entry = AuditEntry.objects.get()
    assert {answer.redirect_chain[0] for answer in answers} == {(f"{JOBS}bulk_act/?id={entry.pk}", 302)}
    assert entry.filter == {"word": "dead", "task_name": "app.add", "erased": ["arguments", "logs"]}
    assert (entry.action, entry.done_by, entry.reason, entry.rate) == ("erase", "staff", "request 91", 5.0)
    assert Job.objects.get(pk=dead.pk).arguments["args"] == [SECRET], "a worker does it, and the request does not"


@pytest.mark.django_db(transaction=True)
def test_progress_and_history_show_the_erasure(client: Client, dead: Job) -> None:
    fields = form(text_of(client, url("erase", state="dead")))
    page = client.post(REQUEST, {**fields, "reason": "request 91", **ALL}, follow=True).content.decode()
    assert "Stop</button>" in page and "waiting for a worker" in page
    with closing(helpers.connect()) as session:
        BulkActs(FOREGROUND, lambda: None).go_on(session)
    page = text_of(client, f"{JOBS}bulk_act/?id={AuditEntry.objects.get().pk}")
    assert "<dd>1 of 1</dd>" in page and "arguments, results, errors, logs" in page and "request 91" in page
    history = text_of(client, f"{JOBS}{dead.pk}/history/")
    assert "Erase values" in history and "request 91" in history
    assert SECRET not in text_of(client, f"{JOBS}{dead.pk}/change/")


def test_erasure_of_a_filter_needs_its_permission(client_of: Callable[..., Client], dead: Job) -> None:
    viewer = client_of("view_job", "retry_job")
    assert "Erase values…" not in text_of(viewer, DEAD)
    assert viewer.get(url("erase", state="dead")).status_code == 403
    fields = {"action": "erase", "state": "dead", "reason": "a", **ALL}
    assert viewer.post(REQUEST, fields).status_code == 403 and not AuditEntry.objects.exists()


def test_erasure_by_message_needs_the_permission_to_see_it(client_of: Callable[..., Client], dead: Job) -> None:
    eraser = client_of("view_job", "erase_job")
    assert eraser.get(url("erase", state="dead")).status_code == 200
    assert eraser.get(url("erase", state="dead", message=SECRET)).status_code == 403
    fields = {"action": "erase", "state": "dead", "message": SECRET, "reason": "a", **ALL}
    assert eraser.post(REQUEST, fields).status_code == 403 and not AuditEntry.objects.exists()


@pytest.mark.parametrize(("roles", "says"), [([], False), (["jobs\0", "jobs2"], True)])
def test_pages_say_that_no_worker_may_erase(
    client: Client, dead: Job, monkeypatch: pytest.MonkeyPatch, roles: list[str], says: bool
) -> None:
    monkeypatch.setattr(fleet, "roles_without_erasure", lambda alias: roles)
    page = text_of(client, url("erase", state="dead"))
    fields = {**form(page), "reason": "a", **ALL}
    progress = client.post(REQUEST, fields, follow=True).content.decode()
    for text in (page, progress):
        assert ("No worker may erase values" in text and "jobs2) a member of queue_archivist" in text) == says
    audit.stop_audit(connection, AuditEntry.objects.get().pk, "ada")
    assert "No worker may erase" not in text_of(client, f"{JOBS}bulk_act/?id={AuditEntry.objects.get().pk}")
