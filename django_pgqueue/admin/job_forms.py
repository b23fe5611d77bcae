"""The URLs of the forms that make jobs: *Edit and retry* of one job, and *Enqueue* of one task."""

from __future__ import annotations

from functools import partial

from django.contrib.admin import AdminSite
from django.urls import URLPattern, path

from django_pgqueue.acts import EDIT_AND_RETRY, ENQUEUE

from .act_view import FORM, act_view
from .edit_and_retry import edit_view
from .enqueue_form import enqueue_view


def job_form_urls(site: AdminSite) -> list[URLPattern]:
    """Return the URLs, below that of the list of jobs."""
    edit = act_view(site, EDIT_AND_RETRY, partial(edit_view, site=site), FORM)
    enqueue = act_view(site, ENQUEUE, partial(enqueue_view, site=site), FORM)
    return [
        path("<int:object_id>/edit/", edit, name="pgqueue_job_edit"),
        path("enqueue/<str:task_name>/", enqueue, name="pgqueue_enqueue"),
    ]
