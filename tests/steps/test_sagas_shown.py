"""The compensations of a job on its page in the admin, and in `pgqueue jobs show`."""

from __future__ import annotations

import json

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from django_pgqueue.models import Job, JobStep
from django_pgqueue.testing import run_jobs
from tests.admin.test_job_actions import click

from . import tasks
from .tasks import CODE

pytestmark = pytest.mark.django_db


@pytest.fixture
def waiting() -> Job:
    """Return a job that has stored two steps with compensations, and that waits for an event."""
    CODE["wait"] = True
    job = tasks.order.enqueue()
    run_jobs()
    return job


def page(client: Client, job: Job) -> str:
    return client.get(reverse("admin:pgqueue_job_change", args=[job.pk])).content.decode()


def test_page_names_the_compensations_and_links_their_jobs(admin_client, waiting):
    assert page(admin_client, waiting).count("If the job fails, ") == 2
    Job.objects.filter(pk=waiting.pk).update(state="dead", finished_at=waiting.enqueued_at)
    assert page(admin_client, waiting).count("Not yet undone. ") == 2
    CODE["undo"] = tasks.fail_to
    run_jobs()
    [undo] = JobStep.objects.filter(job=waiting, compensation_id__isnull=False)
    text = page(admin_client, waiting)
    assert f'{reverse("admin:pgqueue_job_change", args=[undo.compensation_id])}">#{undo.compensation_id}</a>' in text
    assert text.count("Not yet undone. ") == 1
    assert text.count("× dead") == 0 and text.count('pgqueue-dead">dead<') == 2, "the job and its compensation"
    start, end = text.index("A compensation has failed or was cancelled. Retry it"), text.index("Steps</h2>")
    assert f">#{undo.compensation_id}</a>" in text[start:end]


def test_page_says_whether_the_compensations_are_over(admin_client, waiting):
    assert "being undone" not in page(admin_client, waiting)
    Job.objects.filter(pk=waiting.pk).update(state="dead", finished_at=waiting.enqueued_at)
    assert "Its steps are being undone, the last one first." in page(admin_client, waiting)
    run_jobs()
    text = page(admin_client, waiting)
    assert "being undone" not in text and "A compensation has failed" not in text
    Job.objects.exclude(pk=waiting.pk).delete()
    text = page(admin_client, waiting)
    assert text.count(">removed<") == 2
    for step in JobStep.objects.filter(job=waiting, compensation_id__isnull=False):
        assert reverse("admin:pgqueue_job_change", args=[step.compensation_id]) not in text, "it is gone"


def test_page_says_why_a_job_cannot_be_retried_yet(admin_client, waiting):
    Job.objects.filter(pk=waiting.pk).update(state="dead", finished_at=waiting.enqueued_at)
    CODE["undo"] = tasks.fail_to
    run_jobs()
    text = click(admin_client, waiting, "retry").content.decode()
    assert "the steps of this job are being undone" in text
    assert Job.objects.get(pk=waiting.pk).state == "dead"


def test_jobs_show_names_the_compensations(capsys, waiting):
    Job.objects.filter(pk=waiting.pk).update(state="dead", finished_at=waiting.enqueued_at)
    CODE["undo"] = tasks.fail_to
    run_jobs()
    [undo] = JobStep.objects.filter(job=waiting, compensation_id__isnull=False)
    call_command("pgqueue", "jobs", "show", str(waiting.pk))
    assert f"finished, compensation #{undo.compensation_id} dead" in capsys.readouterr().out
    call_command("pgqueue", "jobs", "show", str(waiting.pk), "--json")
    steps = {step["name"]: step for step in json.loads(capsys.readouterr().out)["steps"]}
    assert steps["reserve"]["compensation_id"] == undo.compensation_id
    assert steps["reserve"]["compensation_state"] == "dead"
    assert (steps["charge"]["compensation"], steps["charge"]["compensation_id"]) == (tasks.undo.name, None)
