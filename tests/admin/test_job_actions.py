"""Operations on jobs from the list and from the job's page: permissions, messages and log entries."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_pgqueue import Workflow, chain
from django_pgqueue.acts import job_changes
from django_pgqueue.admin import shown
from django_pgqueue.db import engine_connection
from django_pgqueue.lifecycle import operator as lifecycle_operator
from django_pgqueue.models import AuditEntry, Job
from django_pgqueue.testing import run_jobs
from tests.admin.conftest import JobMaker, shown_by
from tests.admin.test_edit_and_retry import fields_in
from tests.app import tasks

pytestmark = pytest.mark.slow

JOBS = "/admin/pgqueue/job/"
DEAD = "/admin/pgqueue/deadjob/"

LATER = timezone.now().replace(year=timezone.now().year + 1)
OPERATIONS = {
    # operation: (a state in which it is possible, the state it leads to)
    "retry": ("dead", "ready"),
    "cancel": ("ready", "cancelled"),
    "run": ("ready", "ready"),
}


def post_action(client: Client, url: str, action: str, *jobs: Job, across: bool = False) -> str:
    """Run an action of a list, as a browser does; return the page that follows."""
    data = {"action": action, "_selected_action": [job.pk for job in jobs], "select_across": str(int(across))}
    return client.post(url, data, follow=True).content.decode()


def click(client: Client, job: Job, name: str) -> Any:
    """Press a button on the current page of a job."""
    return press(client, job, name, shown_state(job))


def shown_state(job: Job) -> dict[str, str]:
    """Return the hidden inputs of the current page of a job."""
    job.refresh_from_db()
    return {"shown": shown.token(job.pk, shown.as_seen(job))}


def press(client: Client, job: Job, name: str, data: dict[str, str]) -> Any:
    """Press a button on a page that was shown before."""
    return client.post(f"{JOBS}{job.pk}/{name}/", data, follow=True)


def columns_of(job: Job) -> tuple[object, ...]:
    """Return the columns that operations change."""
    job.refresh_from_db()
    return job.state, job.run_after, job.attempt, job.cancel_requested_at, job.finished_at


@pytest.mark.quick
@pytest.mark.parametrize("name", OPERATIONS)
def test_button_valid_state_changes_job_and_logs_it(operator: Client, make_job: JobMaker, name: str) -> None:
    before, after = OPERATIONS[name]
    job = make_job(before, run_after=LATER)
    response = click(operator, job, name)
    assert response.redirect_chain == [(f"{JOBS}{job.pk}/change/", 302)]
    assert 'class="success"' in response.content.decode()
    job.refresh_from_db()
    assert job.state == after
    assert job.run_after < LATER or name == "cancel"
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username, entry.action_flag) == (str(job.pk), "staff", 2)
    assert entry.get_change_message() == {"retry": "Retry.", "cancel": "Cancel.", "run": "Run now."}[name]
    [audit] = AuditEntry.objects.all()
    assert (audit.action, audit.done_by) == ({"run": "run_now"}.get(name, name), "staff")
    assert (audit.outcome, list(audit.jobs.values_list("job_id", flat=True))) == ("done", [job.pk])
    assert f">{entry.get_change_message()}<" in operator.get(f"{JOBS}{job.pk}/history/").content.decode()


def test_stop_of_a_running_job_takes_a_reason(operator: Client, make_job: JobMaker) -> None:
    job = make_job("running")
    question = click(operator, job, "cancel").content.decode()
    assert 'name="reason"' in question and not AuditEntry.objects.exists()
    answer = {**fields_in(question), "reason": "the export <is> wrong"}
    assert "Ensure this value" in press(operator, job, "cancel", {**answer, "reason": "x" * 1001}).content.decode()
    page = unescape(press(operator, job, "cancel", answer).content.decode())
    assert "asked to stop by staff: the export <is> wrong" in page, "the timeline has the reason"
    assert AuditEntry.objects.get().reason == "the export <is> wrong"
    assert LogEntry.objects.get().get_change_message() == "Cancel: the export <is> wrong."
    job = make_job("running")
    press(operator, job, "cancel", fields_in(click(operator, job, "cancel").content.decode()))
    assert AuditEntry.objects.latest("pk").reason == "", "it is optional"


@pytest.mark.parametrize("name", OPERATIONS)
def test_button_wrong_state_changes_nothing(operator: Client, make_job: JobMaker, name: str) -> None:
    job = make_job("cancelled" if name != "retry" else "running")
    row = columns_of(job)
    assert "Nothing was changed" in click(operator, job, name).content.decode()
    assert columns_of(job) == row
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("held", [(), ("view_job",), ("others",), ("alone",)])
def test_button_and_action_without_permission_change_nothing(
    client_of: Callable[..., Client], make_job: JobMaker, name: str, held: tuple[str, ...]
) -> None:
    if held == ("others",):
        held = ("view_job", *(f"{other}_job" for other in OPERATIONS if other != name))
    if held == ("alone",):  # the operation's permission without the one to view jobs
        held = (f"{name}_job",)
    client, job = client_of(*held), make_job(OPERATIONS[name][0], run_after=LATER)
    row = columns_of(job)
    assert client.post(f"{JOBS}{job.pk}/{name}/", shown_state(job)).status_code == 403
    post_action(client, JOBS, f"{name}_selected", job)
    post_action(client, JOBS, f"{name}_selected", job, across=True)
    post_action(client, DEAD, f"{name}_selected", job)
    assert columns_of(job) == row
    assert not LogEntry.objects.exists()
    if "view_job" in held:
        assert f"{name}_selected" not in client.get(JOBS).content.decode()
        assert f"/{name}/" not in client.get(f"{JOBS}{job.pk}/change/").content.decode()


@pytest.mark.quick
def test_pages_without_view_permission_return_403(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = make_job("dead"), client_of("retry_job", "cancel_job", "run_job")
    for url in (JOBS, DEAD, f"{JOBS}{job.pk}/change/", f"{DEAD}{job.pk}/change/", "/admin/pgqueue/worker/"):
        assert client.get(url).status_code == 403, url


def test_pages_view_only_user_offer_no_operation(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = make_job("dead"), client_of("view_job", "view_worker")
    for url in (JOBS, DEAD, "/admin/pgqueue/worker/"):
        page = client.get(url).content.decode()
        assert "_selected_action" not in page and 'name="action"' not in page, url
    assert "<button" not in client.get(f"{JOBS}{job.pk}/change/").content.decode().split('id="content-main"')[1]


def test_pages_anonymous_user_redirect_to_login(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    row = columns_of(job)
    urls = [JOBS, DEAD, f"{JOBS}{job.pk}/change/", *(f"{JOBS}{job.pk}/{name}/" for name in OPERATIONS)]
    for url in urls:
        for response in (client.get(url), client.post(url, {"action": "retry_selected", "_selected_action": job.pk})):
            assert response.status_code == 302 and response.headers["Location"].startswith("/admin/login/"), url
    assert columns_of(job) == row


@pytest.mark.parametrize("what", ["add/", "{}/delete/", "{}/change/"])
@pytest.mark.parametrize("url", [JOBS, DEAD, "/admin/pgqueue/worker/"])
def test_job_add_edit_and_delete_urls_change_nothing(
    admin_client: Client, make_job: JobMaker, url: str, what: str
) -> None:
    job = make_job("dead")
    row = columns_of(job)
    response = admin_client.post(url + what.format(job.pk), {"state": "ready", "post": "yes", "task_name": "os.system"})
    assert response.status_code in {302, 403, 405}
    assert columns_of(job) == row


@pytest.mark.parametrize("name", OPERATIONS)
def test_button_get_or_missing_csrf_token_is_refused(
    operator: Client, make_job: JobMaker, make_user: Callable[..., object], name: str
) -> None:
    job = make_job(OPERATIONS[name][0], run_after=LATER)
    row = columns_of(job)
    assert operator.get(f"{JOBS}{job.pk}/{name}/").status_code == 405
    assert operator.put(f"{JOBS}{job.pk}/{name}/").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert strict.post(f"{JOBS}{job.pk}/{name}/").status_code == 403
    assert strict.post(JOBS, {"action": f"{name}_selected", "_selected_action": job.pk}).status_code == 403
    assert columns_of(job) == row


def test_button_deleted_job_reports_that_it_does_not_exist(operator: Client, db: None) -> None:
    for number in ("17", "9" * 30):
        response = operator.post(f"{JOBS}{number}/retry/", follow=True)
        assert response.status_code == 200 and "does not exist. It may have been pruned" in response.content.decode()


@pytest.mark.parametrize("name", OPERATIONS)
def test_action_mixed_states_reports_changed_and_unchanged(operator: Client, make_job: JobMaker, name: str) -> None:
    before, after = OPERATIONS[name]
    good = [make_job(before, run_after=LATER) for _ in range(3)]
    bad = make_job("running" if name != "cancel" else "succeeded")
    untouched = make_job(before, run_after=LATER)
    page = post_action(operator, JOBS, f"{name}_selected", *good, bad)
    assert ">3 jobs " in page and ">1 job was left as it is" in page
    assert {Job.objects.get(pk=job.pk).state for job in good} == {after}
    assert columns_of(untouched)[:2] == (before, LATER)
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(job.pk) for job in good}


def test_action_applies_to_selected_jobs_in_batches(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "BATCH_SIZE", 3)
    wanted = [make_job("dead", queue_name="a") for _ in range(7)]
    other = make_job("dead", queue_name="a")
    page = post_action(operator, f"{JOBS}?queue=a", "retry_selected", *wanted)
    assert ">7 jobs are ready again" in page and "left as" not in page
    assert {Job.objects.get(pk=job.pk).state for job in wanted} == {"ready"}
    other.refresh_from_db()
    assert other.state == "dead"
    entries = LogEntry.objects.all()
    assert {entry.object_id for entry in entries} == {str(job.pk) for job in wanted}
    assert {entry.get_change_message() for entry in entries} == {"Retry, one of 7 jobs selected."}
    assert "one of 7 jobs" in operator.get(f"{JOBS}{wanted[-1].pk}/history/").content.decode()


def test_action_retry_of_many_jobs_of_a_key_revives_the_latest(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "BATCH_SIZE", 2)
    jobs = [make_job("dead") for _ in range(5)]
    Job.objects.update(unique_key="one")
    page = post_action(operator, JOBS, "retry_selected", *jobs)
    assert ">1 job is ready again" in page and ">4 jobs were left as they are" in page
    assert [Job.objects.get(pk=job.pk).state for job in jobs] == ["dead"] * 4 + ["ready"]


def test_action_cancel_counts_dependents_of_later_batches(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_changes, "BATCH_SIZE", 2)
    workflow = Workflow()
    first = workflow.add(tasks.noop.s())
    for _ in range(4):
        workflow.add(tasks.noop.s(), after=[first])
    workflow.enqueue()
    page = post_action(operator, JOBS, "cancel_selected", *Job.objects.order_by("pk"))
    assert ">5 jobs are cancelled" in page and "left as" not in page
    assert AuditEntry.objects.get().job_count == 5


def test_action_audit_counts_the_jobs_that_it_left(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_changes, "BATCH_SIZE", 1)
    died_again, dead = make_job("dead"), make_job("dead")
    form = {"action": "retry_selected", "_selected_action": [died_again.pk, dead.pk], **shown_by(operator, JOBS)}
    Job.objects.filter(pk=died_again.pk).update(finished_at=timezone.now())
    assert "1 job is ready again" in operator.post(JOBS, form, follow=True).content.decode()
    entry = AuditEntry.objects.get()
    assert (entry.total, entry.job_count, entry.left_count) == (2, 1, 1)


def test_retry_from_dead_letter_list_requeues_the_job(operator: Client, make_job: JobMaker) -> None:
    dead, kept = make_job("dead"), make_job("dead")
    assert ">1 job is ready again" in post_action(operator, DEAD, "retry_selected", dead)
    assert columns_of(dead)[0] == "ready" and columns_of(kept)[0] == "dead"
    page = operator.get(f"{DEAD}{kept.pk}/change/").content.decode()
    assert f'action="{JOBS}{kept.pk}/retry/"' in page


def test_cancel_running_job_requests_stop_once(operator: Client, make_job: JobMaker) -> None:
    job = make_job("running")
    page = click(operator, job, "cancel").content.decode()
    assert "which is running?" in page and "stopped in the middle" in page
    assert not Job.objects.exclude(cancel_requested_at=None).exists() and not AuditEntry.objects.exists()
    fields = dict(re.findall('name="(shown|confirmed|back)" value="([^"]*)"', page))
    page = operator.post(f"{JOBS}{job.pk}/cancel/", fields, follow=True).content.decode()
    assert "asked to stop" in page
    assert f"{JOBS}{job.pk}/cancel/" not in page
    assert columns_of(job)[0] == "running" and job.cancel_requested_at
    assert ">1 job was left" in post_action(operator, JOBS, "cancel_selected", job)


def test_retry_of_a_node_that_a_failed_dependency_has_cancelled_asks_first(operator: Client, db: None) -> None:
    """It would run at once, without the result that it needs."""
    workflow = chain(tasks.fail.using(max_attempts=1).s()).then(tasks.noop).enqueue()
    run_jobs()
    dead, cancelled = workflow.jobs.order_by("pk")
    assert (dead.state, cancelled.state) == ("dead", "cancelled")
    page = click(operator, cancelled, "retry").content.decode()
    assert "although a job that it depends on has failed?" in page and f"depends on #{dead.pk}" in page
    cancelled.refresh_from_db()
    assert cancelled.state == "cancelled"
    fields = dict(re.findall('name="(shown|confirmed|back)" value="([^"]*)"', page))
    operator.post(f"{JOBS}{cancelled.pk}/retry/", fields, follow=True)
    cancelled.refresh_from_db()
    assert cancelled.state == "ready"
    assert ">1 job is ready again" in click(operator, dead, "retry").content.decode(), "there is no question"


@pytest.mark.django_db(transaction=True)
def test_retry_locked_job_is_reported_and_unchanged(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle_operator, "LOCK_WAIT_SECONDS", 0.05)
    locked, free = make_job("dead"), make_job("dead")
    with closing(engine_connection.connect("default", "test")) as holder, holder.transaction():
        holder.execute("SELECT 1 FROM pgqueue_job WHERE id = %s FOR UPDATE", [locked.pk])
        page = click(operator, locked, "retry").content.decode()
        assert 'class="error"' in page and "another session has locked this job" in page
        assert ">1 job was left" in post_action(operator, JOBS, "retry_selected", locked)
        page = post_action(operator, JOBS, "retry_selected", locked, free)
        assert ">1 job is ready again" in page and ">1 job was left" in page
    assert Job.objects.get(pk=locked.pk).state == "dead"
    assert [entry.object_id for entry in LogEntry.objects.all()] == [str(free.pk)]
    assert connection.in_atomic_block is False
