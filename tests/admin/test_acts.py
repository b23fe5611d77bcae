"""What an operator may do: by permission, from the list and from the page, and what is told and written down."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.utils import timezone

from django_pgqueue import lifecycle
from django_pgqueue.admin import job_actions, shown
from django_pgqueue.db import engine_connection
from django_pgqueue.models import Job
from tests.admin.conftest import JobMaker

JOBS = "/admin/pgqueue/job/"
DEAD = "/admin/pgqueue/deadjob/"

LATER = timezone.now().replace(year=timezone.now().year + 1)
ACTS = {
    # the act: a state that it changes, and what it makes of it
    "retry": ("dead", "ready"),
    "cancel": ("ready", "cancelled"),
    "run": ("ready", "ready"),
}


def post_action(client: Client, url: str, action: str, *jobs: Job, across: bool = False) -> str:
    """Choose an action in a list, as the browser does; return the page that follows."""
    data = {"action": action, "_selected_action": [job.pk for job in jobs], "select_across": str(int(across))}
    return client.post(url, data, follow=True).content.decode()


def click(client: Client, job: Job, name: str) -> Any:
    """Press a button on a job's page as it is now."""
    return press(client, job, name, as_shown(job))


def as_shown(job: Job) -> dict[str, str]:
    """Return what a job's page shows of it now."""
    job.refresh_from_db()
    return {"shown": shown.token(job.pk, shown.as_seen(job))}


def press(client: Client, job: Job, name: str, data: dict[str, str]) -> Any:
    """Press a button on a page that was shown before."""
    return client.post(f"{JOBS}{job.pk}/{name}/", data, follow=True)


def as_row(job: Job) -> tuple[object, ...]:
    """Return what any act would change."""
    job.refresh_from_db()
    return job.state, job.run_after, job.attempt, job.cancel_requested_at, job.finished_at


@pytest.mark.parametrize("name", ACTS)
def test_button_does_it_and_writes_it_down(operator: Client, make_job: JobMaker, name: str) -> None:
    before, after = ACTS[name]
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
    assert f">{entry.get_change_message()}<" in operator.get(f"{JOBS}{job.pk}/history/").content.decode()


@pytest.mark.parametrize("name", ACTS)
def test_button_too_late_changes_nothing(operator: Client, make_job: JobMaker, name: str) -> None:
    job = make_job("cancelled" if name != "retry" else "running")
    row = as_row(job)
    assert "Nothing was changed" in click(operator, job, name).content.decode()
    assert as_row(job) == row
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("held", [(), ("view_job",), ("others",), ("alone",)])
def test_without_the_permission_nothing_happens(
    client_of: Callable[..., Client], make_job: JobMaker, name: str, held: tuple[str, ...]
) -> None:
    if held == ("others",):
        held = ("view_job", *(f"{other}_job" for other in ACTS if other != name))
    if held == ("alone",):  # without the permission to see jobs
        held = (f"{name}_job",)
    client, job = client_of(*held), make_job(ACTS[name][0], run_after=LATER)
    row = as_row(job)
    assert client.post(f"{JOBS}{job.pk}/{name}/", as_shown(job)).status_code == 403
    post_action(client, JOBS, f"{name}_selected", job)
    post_action(client, JOBS, f"{name}_selected", job, across=True)
    post_action(client, DEAD, f"{name}_selected", job)
    assert as_row(job) == row
    assert not LogEntry.objects.exists()
    if "view_job" in held:
        assert f"{name}_selected" not in client.get(JOBS).content.decode()
        assert f"/{name}/" not in client.get(f"{JOBS}{job.pk}/change/").content.decode()


def test_only_those_who_view_see_anything(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = make_job("dead"), client_of("retry_job", "cancel_job", "run_job")
    for url in (JOBS, DEAD, f"{JOBS}{job.pk}/change/", f"{DEAD}{job.pk}/change/", "/admin/pgqueue/worker/"):
        assert client.get(url).status_code == 403, url


def test_view_only_user_is_offered_nothing(client_of: Callable[..., Client], make_job: JobMaker) -> None:
    job, client = make_job("dead"), client_of("view_job", "view_worker")
    for url in (JOBS, DEAD, "/admin/pgqueue/worker/"):
        page = client.get(url).content.decode()
        assert "_selected_action" not in page and 'name="action"' not in page, url
    assert "<button" not in client.get(f"{JOBS}{job.pk}/change/").content.decode().split('id="content-main"')[1]


def test_anonymous_gets_the_login_page(client: Client, make_job: JobMaker) -> None:
    job = make_job("dead")
    row = as_row(job)
    urls = [JOBS, DEAD, f"{JOBS}{job.pk}/change/", *(f"{JOBS}{job.pk}/{name}/" for name in ACTS)]
    for url in urls:
        for response in (client.get(url), client.post(url, {"action": "retry_selected", "_selected_action": job.pk})):
            assert response.status_code == 302 and response.headers["Location"].startswith("/admin/login/"), url
    assert as_row(job) == row


@pytest.mark.parametrize("what", ["add/", "{}/delete/", "{}/change/"])
@pytest.mark.parametrize("url", [JOBS, DEAD, "/admin/pgqueue/worker/"])
def test_nothing_is_edited(admin_client: Client, make_job: JobMaker, url: str, what: str) -> None:
    job = make_job("dead")
    row = as_row(job)
    response = admin_client.post(url + what.format(job.pk), {"state": "ready", "post": "yes", "task_name": "os.system"})
    assert response.status_code in {302, 403, 405}
    assert as_row(job) == row


@pytest.mark.parametrize("name", ACTS)
def test_get_and_a_missing_token_change_nothing(
    operator: Client, make_job: JobMaker, make_user: Callable[..., object], name: str
) -> None:
    job = make_job(ACTS[name][0], run_after=LATER)
    row = as_row(job)
    assert operator.get(f"{JOBS}{job.pk}/{name}/").status_code == 405
    assert operator.put(f"{JOBS}{job.pk}/{name}/").status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.cookies
    assert strict.post(f"{JOBS}{job.pk}/{name}/").status_code == 403
    assert strict.post(JOBS, {"action": f"{name}_selected", "_selected_action": job.pk}).status_code == 403
    assert as_row(job) == row


def test_a_job_that_is_gone(operator: Client, db: None) -> None:
    for number in ("17", "9" * 30):
        response = operator.post(f"{JOBS}{number}/retry/", follow=True)
        assert response.status_code == 200 and "does not exist. It may have been pruned" in response.content.decode()


@pytest.mark.parametrize("name", ACTS)
def test_action_tells_how_many_changed_and_how_many_not(operator: Client, make_job: JobMaker, name: str) -> None:
    before, after = ACTS[name]
    good = [make_job(before, run_after=LATER) for _ in range(3)]
    bad = make_job("running" if name != "cancel" else "succeeded")
    untouched = make_job(before, run_after=LATER)
    page = post_action(operator, JOBS, f"{name}_selected", *good, bad)
    assert ">3 jobs " in page and ">1 job was left as it is" in page
    assert {Job.objects.get(pk=job.pk).state for job in good} == {after}
    assert as_row(untouched)[:2] == (before, LATER)
    assert {entry.object_id for entry in LogEntry.objects.all()} == {str(job.pk) for job in good}


def test_action_across_takes_all_that_is_filtered_in_batches(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_actions, "BATCH_SIZE", 3)
    wanted = [make_job("dead", queue_name="a") for _ in range(7)]
    other = make_job("dead", queue_name="b")
    page = post_action(operator, f"{JOBS}?queue=a", "retry_selected", wanted[0], across=True)
    assert ">7 jobs are ready again" in page and "left as" not in page
    assert {Job.objects.get(pk=job.pk).state for job in wanted} == {"ready"}
    other.refresh_from_db()
    assert other.state == "dead"
    entries = LogEntry.objects.all()
    assert {entry.object_id for entry in entries} == {str(job.pk) for job in wanted}
    assert {entry.get_change_message() for entry in entries} == {"Retry, one of 7 jobs selected."}
    assert "one of 7 jobs" in operator.get(f"{JOBS}{wanted[-1].pk}/history/").content.decode()


def test_action_across_stops_at_the_limit_and_says_so(
    operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_actions, "SELECTION_LIMIT", 4)
    jobs = [make_job("dead") for _ in range(6)]
    page = post_action(operator, DEAD, "retry_selected", jobs[0], across=True)
    assert ">4 jobs are ready again" in page and "Only the first 4 selected jobs were processed" in page
    assert Job.objects.filter(state="dead").count() == 2


def test_dead_letters_are_retried_from_their_own_list(operator: Client, make_job: JobMaker) -> None:
    dead, kept = make_job("dead"), make_job("dead")
    assert ">1 job is ready again" in post_action(operator, DEAD, "retry_selected", dead)
    assert as_row(dead)[0] == "ready" and as_row(kept)[0] == "dead"
    page = operator.get(f"{DEAD}{kept.pk}/change/").content.decode()
    assert f'action="{JOBS}{kept.pk}/retry/"' in page


def test_a_running_job_is_asked_to_stop_once(operator: Client, make_job: JobMaker) -> None:
    job = make_job("running")
    page = click(operator, job, "cancel").content.decode()
    assert "asked to stop" in page
    assert f"{JOBS}{job.pk}/cancel/" not in page
    assert as_row(job)[0] == "running" and job.cancel_requested_at
    assert ">1 job was left" in post_action(operator, JOBS, "cancel_selected", job)


@pytest.mark.django_db(transaction=True)
def test_locked_jobs_are_told(operator: Client, make_job: JobMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle.operator, "LOCK_WAIT_SECONDS", 0.05)
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
