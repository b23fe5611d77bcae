"""The pages of the console link lists and pages of the admin with these URLs. Each URL keeps the chosen database."""

from __future__ import annotations

from typing import Any, Final

from django.http import HttpRequest

from django_pgqueue.admin import databases
from django_pgqueue.admin.links import address_for
from django_pgqueue.admin.navigation import PLACES

PERMISSIONS: Final = {place.name: place.permission for place in PLACES}
"""The permissions of the pages that the navigation links. Every other page of the console needs `view_job`."""


def url(request: HttpRequest, name: str, /, **parameters: Any) -> str:
    """Return the URL of the page `admin:pgqueue_<name>`, or "" if the user may not see it or it does not exist."""
    if name in PERMISSIONS and not request.user.has_perm(PERMISSIONS[name]):
        return ""
    found = address_for(request, name)
    return databases.link(request, found, **parameters) if found else ""


def job(request: HttpRequest, job_id: int) -> str:
    """Return the URL of the page of a job, or "" if it does not exist."""
    found = address_for(request, "job_change", job_id)
    return databases.link(request, found) if found else ""


def jobs(request: HttpRequest, word: str, *, queue: str | None = None, since: str | None = None) -> str:
    """Return the URL of the list of jobs in one state, which is a word such as "due"."""
    if word == "dead":
        return url(request, "deadjob_changelist", queue=queue, since=since)
    return url(request, "job_changelist", state=word, queue=queue)
