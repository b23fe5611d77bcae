"""Pause and resume a queue, from the pages of the queues.

The forms post the queue's name and what the page showed of its pause. If the pause is another one by now, nothing
changes and the operator gets a message. All changes go through `control`, so the admin and the command line do the
same. Each change is written into the history of the admin.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from django_pgqueue import control
from django_pgqueue.models import Pause
from django_pgqueue.states import Pausable
from django_pgqueue.validation import NAME, unknown_queue

from . import databases, shown
from .console.queues import LENGTHS, PAUSE_PERMISSION
from .formatting import shortened
from .pauses import in_force
from .posted import back_of, text_of

if TYPE_CHECKING:
    from .readonly import ReadOnlyAdmin

QUEUE_FIELD: Final = "queue"
PAUSE_FIELD: Final = "shown_pause"
REASON_LENGTH: Final = 1000

Act = Callable[["ReadOnlyAdmin", HttpRequest, str], HttpResponse]


def queue_urls(jobs: ReadOnlyAdmin) -> list[URLPattern]:
    """Return the URLs of the operations on a queue, below that of the page *Queues*."""
    return [
        path(
            f"queues/{name}/", jobs.admin_site.admin_view(partial(_view, jobs, act, permissions)), name=f"pgqueue_{url}"
        )
        for name, url, act, permissions in (
            ("pause", "queue_pause", _pause, (PAUSE_PERMISSION,)),
            ("resume", "queue_resume", _resume, (PAUSE_PERMISSION,)),
        )
    ]


def _view(jobs: ReadOnlyAdmin, act: Act, permissions: tuple[str, ...], request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not request.user.has_perms(["pgqueue.view_job", *permissions]):
        raise PermissionDenied
    return act(jobs, request, text_of(request, QUEUE_FIELD))


def _pause(jobs: ReadOnlyAdmin, request: HttpRequest, name: str) -> HttpResponse:
    alias, length = databases.chosen(request), request.POST.get("length", "")
    if problem := _problem(name, length):
        messages.error(request, problem)
        return _back(jobs, request)
    until = datetime.now(UTC) + timedelta(seconds=int(length)) if length else None
    reason = text_of(request, "reason")[:REASON_LENGTH]
    by = request.user.get_username()
    with transaction.atomic(using=alias):
        if _is_as_shown(request, alias, name):
            control.pause_named(Pausable.QUEUE, name, alias, until=until, reason=reason, by=by)
            pause = Pause.objects.using(alias).get(kind=Pausable.QUEUE, name=name)
            _log(request, pause, f"Paused: {reason}" if reason else "Paused.")
            messages.success(request, _("Queue %(name)s is paused. Running jobs continue.") % {"name": name})
    return _back(jobs, request)


def _problem(name: str, length: str) -> str:
    """Return why a queue cannot be paused, or "" if it can."""
    if not NAME.fullmatch(name):
        words = {"name": shortened(name)}
        return _("Queue “%(name)s” cannot be paused, because its name is invalid.") % words
    if length not in dict(LENGTHS):
        return _("Nothing was changed: choose one of the lengths of a pause.")
    return next(iter(unknown_queue("queue", name)), "")


def _resume(jobs: ReadOnlyAdmin, request: HttpRequest, name: str) -> HttpResponse:
    alias = databases.chosen(request)
    with transaction.atomic(using=alias):
        pause = _is_as_shown(request, alias, name) and _pause_of(alias, name)
        if pause and control.resume_named(Pausable.QUEUE, name, alias):
            _log(request, pause, "Resumed.")
            messages.success(request, _("Queue %(name)s is resumed.") % {"name": shortened(name)})
    return _back(jobs, request)


def _is_as_shown(request: HttpRequest, alias: str, name: str) -> bool:
    """Return whether the pause of a queue is the one that the page showed. Otherwise show a message."""
    pause = _pause_of(alias, name)
    if request.POST.get(PAUSE_FIELD) == ("" if pause is None else str(shown.number(pause.paused_at))):
        return True
    words = {"name": shortened(name), "who": shortened(pause.paused_by) if pause else ""}
    if pause is None:
        text = _("Nothing was changed: queue %(name)s is not paused any more.")
    elif pause.paused_by:
        text = _("Nothing was changed: %(who)s has paused queue %(name)s since the page was shown.")
    else:
        text = _("Nothing was changed: queue %(name)s was paused since the page was shown.")
    messages.warning(request, text % words)
    return False


def _pause_of(alias: str, name: str) -> Pause | None:
    """Return the pause of a queue, and lock it until the end of the transaction."""
    return in_force().using(alias).select_for_update().filter(kind=Pausable.QUEUE, name=name).first()


def _back(jobs: ReadOnlyAdmin, request: HttpRequest) -> HttpResponseRedirect:
    """Redirect to the page with the form."""
    url = reverse("admin:pgqueue_queues", current_app=jobs.admin_site.name)
    return HttpResponseRedirect(back_of(request) or databases.link(request, url))


def _log(request: HttpRequest, pause: Pause, message: str) -> None:
    user_id = cast(int, request.user.pk)  # not None: anonymous users have no permission to get here
    LogEntry.objects.log_actions(user_id, [pause], CHANGE, message)
