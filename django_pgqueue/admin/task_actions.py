"""Pause and resume a task with one click on its row of the page *Tasks*.

The form posts the pause that the page showed. If somebody else has paused or resumed the task since, nothing changes
and the operator gets a message. All changes go through `control`, as those of the list of pauses do.
"""

from __future__ import annotations

from typing import Final

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from django_pgqueue import control, registry
from django_pgqueue.models import Pause
from django_pgqueue.states import Pausable
from django_pgqueue.validation import NAME

from . import databases, shown
from .console.tasks import PAUSE_PERMISSION
from .formatting import shortened
from .pauses import in_force

TASK_FIELD: Final = "task"
PAUSE_FIELD: Final = "shown_pause"
REASON_LENGTH: Final = 1000


def task_urls(site: AdminSite) -> list[URLPattern]:
    """Return the URLs of the two operations, below that of the page *Tasks*."""

    def pause_view(request: HttpRequest) -> HttpResponse:
        return _view(request, site, pauses=True)

    def resume_view(request: HttpRequest) -> HttpResponse:
        return _view(request, site, pauses=False)

    return [
        path("tasks/pause/", site.admin_view(pause_view), name="pgqueue_task_pause"),
        path("tasks/resume/", site.admin_view(resume_view), name="pgqueue_task_resume"),
    ]


def _view(request: HttpRequest, site: AdminSite, *, pauses: bool) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not request.user.has_perms(["pgqueue.view_job", PAUSE_PERMISSION]):
        raise PermissionDenied
    alias, name = databases.chosen(request), request.POST.get(TASK_FIELD, "").replace("\0", "")
    with transaction.atomic(using=alias):
        existing = _pause_of(name, alias)
        if request.POST.get(PAUSE_FIELD) != str(shown.number(existing.paused_at if existing else None)):
            text = _("Nothing was changed: the pause of %(name)s has changed since the page was shown.")
            messages.warning(request, text % {"name": shortened(name)})
        elif pauses:
            _pause(request, name, alias)
        elif existing is not None:
            _resume(request, name, alias, existing)
    url = reverse("admin:pgqueue_tasks", current_app=site.name)
    return HttpResponseRedirect(databases.link(request, url))


def _pause_of(name: str, alias: str) -> Pause | None:
    """Return the pause of a task under any of its names, and lock it until the end of the transaction."""
    pauses = in_force().using(alias).select_for_update().filter(kind=Pausable.TASK, name__in=registry.names_of(name))
    return pauses.first()


def _pause(request: HttpRequest, name: str, alias: str) -> None:
    if not NAME.fullmatch(name):
        text = _("Task “%(name)s” cannot be paused, because its name is invalid.")
        messages.error(request, text % {"name": shortened(name)})
        return
    reason = request.POST.get("reason", "").replace("\0", "")[:REASON_LENGTH]
    control.pause_named(Pausable.TASK, name, alias, until=None, reason=reason, by=request.user.get_username())
    if (pause := _pause_of(name, alias)) is not None:
        _log(request, pause, f"Paused: {reason}" if reason else "Paused.")
    messages.success(request, _("Task %(name)s is paused. Running jobs continue.") % {"name": shortened(name)})


def _resume(request: HttpRequest, name: str, alias: str, existing: Pause) -> None:
    if control.resume_named(Pausable.TASK, existing.name, alias):
        _log(request, existing, "Resumed.")
        messages.success(request, _("Task %(name)s is resumed.") % {"name": shortened(name)})


def _log(request: HttpRequest, pause: Pause, message: str) -> None:
    LogEntry.objects.log_actions(request.user.pk, [pause], CHANGE, message)  # type: ignore[arg-type]  # not anonymous
