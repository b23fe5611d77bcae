"""The addresses of the HTTP interface, to include in a project's URLs.

Example::

    path("remote/", include("django_pgqueue.contrib.remote.urls"))

The jobs of another database: `path("remote/", include("django_pgqueue.contrib.remote.urls"), {"database": "other"})`.
"""

from __future__ import annotations

from django.urls import path

from . import views

urlpatterns = [
    path("v1/workers", views.workers, name="pgqueue_remote_workers"),
    path("v1/workers/stop", views.stop, name="pgqueue_remote_stop"),
    path("v1/claim", views.claim, name="pgqueue_remote_claim"),
    path("v1/extend", views.extend, name="pgqueue_remote_extend"),
    path("v1/complete", views.complete, name="pgqueue_remote_complete"),
    path("v1/fail", views.fail, name="pgqueue_remote_fail"),
    path("v1/release", views.release, name="pgqueue_remote_release"),
    path("v1/openapi.json", views.openapi, name="pgqueue_remote_openapi"),
]
