"""The URLs of the forms that make jobs: *Edit and retry* of one job, and *Enqueue* of one task."""

from __future__ import annotations

from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path

from .edit_and_retry import edit_view
from .enqueue_form import enqueue_view


def job_form_urls(site: AdminSite) -> list[URLPattern]:
    """Return the URLs, below that of the list of jobs."""

    def edit(request: HttpRequest, object_id: int) -> HttpResponse:
        return edit_view(request, object_id, site)

    def enqueue(request: HttpRequest, task_name: str) -> HttpResponse:
        return enqueue_view(request, task_name, site)

    return [
        path("<int:object_id>/edit/", site.admin_view(edit), name="pgqueue_job_edit"),
        path("enqueue/<str:task_name>/", site.admin_view(enqueue), name="pgqueue_enqueue"),
    ]
