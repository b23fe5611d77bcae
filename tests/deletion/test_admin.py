"""Django's action *delete selected*, and what the console says of a job that unfinished work needs."""

from __future__ import annotations

from io import StringIO

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client, RequestFactory

from django_pgqueue.admin import shown
from django_pgqueue.exceptions import CannotDelete
from django_pgqueue.models import Job, JobBatch
from tests.app import tasks

from .scenes import finished, pending_saga, waiting_chain

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("known_tasks")]


def test_delete_selected_is_not_offered_for_rows_of_the_queue():
    request = RequestFactory().get("/")
    request.user = User(is_superuser=True, is_active=True)
    ours = {model: each for model, each in admin.site._registry.items() if model._meta.app_label == "pgqueue"}
    assert {Job, JobBatch} <= ours.keys()
    offered = {model for model, each in ours.items() if "delete_selected" in each.get_actions(request)}
    assert {model._meta.model_name for model in offered} <= {"schedule"}


def test_delete_selected_of_a_project_obeys_the_engine():
    """A project can register a plain admin of its own, with Django's action."""
    plain = admin.ModelAdmin(Job, admin.AdminSite())
    needed, free = waiting_chain(), finished()
    plain.delete_queryset(RequestFactory().post("/"), Job.objects.filter(pk__in=[needed.pk, free.pk]))
    assert Job.objects.filter(pk__in=[needed.pk, free.pk]).get() == needed
    tasks.noop.enqueue()
    with pytest.raises(CannotDelete):
        plain.delete_queryset(RequestFactory().post("/"), Job.objects.all())


@pytest.mark.parametrize(
    ("scene", "reason"),
    [
        (waiting_chain, "another job of its workflow can need it"),
        (pending_saga, "its compensations are not all enqueued yet"),
    ],
)
def test_button_says_why_a_job_was_not_deleted(scene, reason, admin_client: Client):
    job = scene()
    fields = {"shown": shown.token(job.pk, shown.as_seen(job)), "confirmed": "1"}
    url = f"/admin/pgqueue/job/{job.pk}/delete/"
    text = admin_client.post(url, fields, follow=True).content.decode()
    assert f"Nothing was deleted: unfinished work needs this job, because {reason}." in text
    assert Job.objects.filter(pk=job.pk).exists()


def test_command_says_that_jobs_were_left():
    job, out = pending_saga(), StringIO()
    call_command("pgqueue", "jobs", "delete", str(job.pk), "--yes", stdout=out)
    assert "Left 1 job unchanged: they have changed since, are locked, or unfinished work needs them." in out.getvalue()
