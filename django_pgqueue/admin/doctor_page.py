"""The page *Doctor*: the findings of an examination of the database of the jobs, the most serious first.

`jobs` gives it a URL, and the template `admin/pgqueue/app_index.html` links it. It is read-only and needs the
permission to view jobs. It runs a fixed number of statements, each with a time limit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext_lazy as _

from django_pgqueue.doctor import Finding, Level, examine
from django_pgqueue.models import Job

if TYPE_CHECKING:
    from .readonly import ReadOnlyAdmin

LABELS = {Level.OK: _("ok"), Level.INFO: _("info"), Level.WARNING: _("warning"), Level.ERROR: _("error")}


def doctor_urls(jobs: ReadOnlyAdmin) -> list[URLPattern]:
    """Return the URL of the page, below that of the list of jobs."""

    def view(request: HttpRequest) -> HttpResponse:
        return _page(jobs, request)

    return [path("doctor/", jobs.admin_site.admin_view(view), name="pgqueue_doctor")]


def _page(jobs: ReadOnlyAdmin, request: HttpRequest) -> HttpResponse:
    if request.method not in {"GET", "HEAD"}:
        return HttpResponseNotAllowed(["GET", "HEAD"])
    if not jobs.has_view_permission(request):
        raise PermissionDenied
    alias = router.db_for_write(Job)
    findings = examine(alias)
    request.current_app = jobs.admin_site.name
    context = {
        **jobs.admin_site.each_context(request),
        "title": _("Doctor"),
        "original": _("Doctor"),
        "opts": jobs.opts,
        "media": jobs.media,
        "has_view_permission": True,
        "database": alias,
        "findings": [(finding, LABELS[finding.level]) for finding in _by_level(findings)],
        "healthy": sum(finding.level is Level.OK for finding in findings),
    }
    return TemplateResponse(request, "pgqueue/admin/doctor.html", context)


def _by_level(findings: list[Finding]) -> list[Finding]:
    order = list(Level)
    return sorted(findings, key=lambda finding: order.index(finding.level), reverse=True)
