"""The steps of a job on its page in the admin, and in `pgqueue jobs show`."""

from __future__ import annotations

import json
import re

import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.urls import reverse

from django_pgqueue import log, signals
from django_pgqueue.testing import run_jobs

from . import tasks

pytestmark = pytest.mark.django_db


@pytest.fixture
def job():
    """Return a job that has stored a value, and that waits for an event."""

    def code(context):
        context.step("charge", lambda: {"card": "4711-secret"})
        context.wait_for_event("approved", "customer-secret", timeout=3600)

    tasks.CODE["code"] = code
    job = tasks.scripted.enqueue()
    run_jobs()
    return job


def page(client, job, *names):
    user = User.objects.create_user("anna", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=["view_job", *names]))
    client.force_login(user)
    return client.get(reverse("admin:pgqueue_job_change", args=[job.pk])).content.decode()


def test_job_page_shows_steps_and_values(client, job):
    text = page(client, job, "view_arguments")
    for words in ("charge", "4711-secret", "finished", "waiting", "event approved, key customer-secret"):
        assert words in text


def test_job_page_without_permission_shows_no_value_and_no_key(client, job):
    text = page(client, job)
    assert "charge" in text
    assert "event approved, key …" in text
    assert "4711-secret" not in text
    assert "customer-secret" not in text


def test_job_page_of_job_without_steps_has_no_section(client):
    tasks.CODE["code"] = lambda context: None
    job = tasks.scripted.enqueue()
    run_jobs()
    assert "Steps</h2>" not in page(client, job)


def test_jobs_show_prints_the_steps(job, capsys):
    call_command("pgqueue", "jobs", "show", str(job.pk))
    text = capsys.readouterr().out
    assert "Steps" in text
    assert "4711-secret" in text
    assert "event approved, key customer-secret" in text
    call_command("pgqueue", "jobs", "show", str(job.pk), "--json")
    charge, wait = json.loads(capsys.readouterr().out)["steps"]
    assert (charge["name"], charge["state"], charge["event"]) == ("charge", "finished", None)
    assert (wait["kind"], wait["state"], wait["event_key"]) == ("event", "waiting", "customer-secret")


@pytest.fixture
def endless():
    """Return a job that waits for an event without a timeout. Its row is due in 100 years."""
    tasks.CODE["code"] = lambda context: context.wait_for_event("approved", "customer-secret")
    job = tasks.scripted.enqueue()
    run_jobs()
    return job


@pytest.mark.parametrize("permission", ["view_arguments", "view_job"])
def test_page_of_wait_without_timeout_names_no_due_time(client, endless, permission):
    text = page(client, endless, permission)
    assert "suspended until its event comes" in text
    assert "when its event comes" in text
    assert "next attempt due" not in text
    assert not re.search(rf"\b{endless.run_after.year + 100}\b", text), "no day in a hundred years"
    assert " 36499 d" not in text
    listed = client.get(reverse("admin:pgqueue_job_changelist")).content.decode()
    assert "for an event" in listed
    assert "36499 d" not in listed


def test_page_of_suspended_job_says_so_without_permission(client, job):
    text = page(client, job)
    assert re.search(r"suspended, due in (59 min|1 h)", text)
    assert "It is suspended" not in text, "the reason can quote an error"


def test_shell_shows_no_due_time_of_wait_without_timeout(endless, capsys):
    call_command("pgqueue", "jobs", "list")
    assert "for an event" in capsys.readouterr().out
    call_command("pgqueue", "jobs", "show", str(endless.pk))
    assert "Due              when its event comes" in capsys.readouterr().out


def test_job_page_says_which_step_the_code_left_out(client, job):
    assert "pgqueue-step-waited" in page(client, job)
    assert "did not call it any more" not in client.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()
    tasks.CODE["code"] = lambda context: None
    job.refresh_from_db()
    job.run_now()
    run_jobs()
    assert "did not call it any more" in client.get(f"/admin/pgqueue/job/{job.pk}/change/").content.decode()


@pytest.mark.parametrize(
    ("code", "delay_seconds", "says"),
    [
        (lambda context: context.sleep("nap", 60), 60.0, "step 'nap' sleeps"),
        (lambda context: context.wait_for_event("go", 7), None, "step 'go' waits for the event go"),
    ],
    ids=["sleep", "wait without end"],
)
def test_suspension_sends_a_signal_of_its_own(code, delay_seconds, says):
    seen: list[tuple[str, float | None, str]] = []

    def receive(signal, *, delay_seconds, error, **about):
        seen.append((signal, delay_seconds and round(delay_seconds), error))

    for signal in (signals.job_suspended, signals.job_snoozed):
        signal.connect(receive)
    try:
        tasks.CODE["code"] = code
        tasks.scripted.enqueue()
        run_jobs()
    finally:
        for signal in (signals.job_suspended, signals.job_snoozed):
            signal.disconnect(receive)
    assert seen == [(signals.job_suspended, delay_seconds, says)]


def test_suspension_is_logged_with_its_reason(caplog):
    caplog.set_level("INFO", "django_pgqueue")
    about = {"job_id": 7, "delay_seconds": None, "error": "step 'go' waits for the event paid", "database": "default"}
    _, line = log.LINES[signals.job_suspended]
    line(tasks.scripted.name, about)
    assert "job 7 (tests.steps.tasks.scripted) is suspended: step 'go' waits for the event paid" in caplog.text
