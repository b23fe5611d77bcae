"""Pause and resume a limit or a limit key, undo an override, and end a hold, from the pages of the limits.

Each form posts the limit key and what the page showed. If that has changed since, nothing changes and the operator gets
a message. Pauses go through `control` and are written into the history of the admin. The other changes go through
`limit_control`, which writes them into the audit.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, cast

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from django_pgqueue import control, control_targets, limit_control
from django_pgqueue.limits import MAX_KEY_LENGTH
from django_pgqueue.models import LimitOverride, LimitState, Pause
from django_pgqueue.states import Pausable

from . import databases, shown
from .console.queues import LENGTHS
from .formatting import shortened
from .limit_controls import PAUSE_PERMISSION, PERMISSION, overrides_in_force, pauses_in_force
from .limit_form import change_view
from .limit_links import limit_url
from .posted import back_of, text_of

KEY_FIELD: Final = "key"
PAUSE_FIELD: Final = "shown_pause"
CHANGE_FIELD: Final = "shown_change"
HOLD_FIELD: Final = "shown_hold"
REASON_LENGTH: Final = 1000

Act = Callable[[HttpRequest, str, str], None]
"""Changes a limit key in a database, and shows a message."""


def limit_urls(site: AdminSite) -> list[URLPattern]:
    """Return the URLs of the operations on limits and keys, below that of the page *Limits*."""
    acts: tuple[tuple[str, Act, str], ...] = (
        ("pause", _pause, PAUSE_PERMISSION),
        ("resume", _resume, PAUSE_PERMISSION),
        ("restore", _restore, PERMISSION),
        ("end_hold", _end_hold, PERMISSION),
    )
    posts = [
        path(f"limits/{name}/", site.admin_view(partial(_view, act, permission)), name=f"pgqueue_limit_{name}")
        for name, act, permission in acts
    ]
    change = path("limits/change/", site.admin_view(partial(change_view, site=site)), name="pgqueue_limit_change")
    return [*posts, change]


def _view(act: Act, permission: str, request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    if not request.user.has_perms(["pgqueue.view_job", permission]):
        raise PermissionDenied
    alias, limit_key = databases.chosen(request), text_of(request, KEY_FIELD)
    if problem := _problem(limit_key):
        messages.error(request, str(problem))
    else:
        with transaction.atomic(using=alias):
            act(request, alias, limit_key)
    return HttpResponseRedirect(back_of(request) or limit_url(request, limit_key[:MAX_KEY_LENGTH]))


def _problem(limit_key: str) -> Promise | str:
    """Return why no job can have a limit key, or "" if one can."""
    is_invalid = any(control_targets.limit_key_problems(limit_key))
    return _("Nothing was changed: “%(key)s” is no limit key.") % {"key": shortened(limit_key)} if is_invalid else ""


def _pause(request: HttpRequest, alias: str, limit_key: str) -> None:
    length, words = request.POST.get("length", ""), {"key": shortened(limit_key)}
    if length not in dict(LENGTHS):
        messages.error(request, _("Nothing was changed: choose one of the lengths of a pause."))
        return
    if not _is_as_shown(request, _pause_of(alias, limit_key), limit_key):
        return
    until = datetime.now(UTC) + timedelta(seconds=int(length)) if length else None
    reason, by = text_of(request, "reason")[:REASON_LENGTH], request.user.get_username()
    control.pause_named(Pausable.LIMIT, limit_key, alias, until=until, reason=reason, by=by)
    pause = Pause.objects.using(alias).get(kind=Pausable.LIMIT, name=limit_key)
    _log(request, pause, f"Paused: {reason}" if reason else "Paused.")
    messages.success(request, _("Limit %(key)s is paused. Running jobs continue.") % words)


def _resume(request: HttpRequest, alias: str, limit_key: str) -> None:
    pause = _pause_of(alias, limit_key)
    is_as_shown = _is_as_shown(request, pause, limit_key)
    if is_as_shown and pause is not None and control.resume_named(Pausable.LIMIT, limit_key, alias):
        _log(request, pause, "Resumed.")
        messages.success(request, _("Limit %(key)s is resumed.") % {"key": shortened(limit_key)})


def _pause_of(alias: str, limit_key: str) -> Pause | None:
    """Return the pause of a limit or a key, and lock it until the end of the transaction."""
    return pauses_in_force(alias).select_for_update().filter(name=limit_key).first()


def _is_as_shown(request: HttpRequest, pause: Pause | None, limit_key: str) -> bool:
    """Return whether the pause of a limit or a key is the one that the page showed. Otherwise show a message."""
    if request.POST.get(PAUSE_FIELD) == str(shown.number(pause.paused_at if pause else None)):
        return True
    words = {"key": shortened(limit_key), "who": shortened(pause.paused_by) if pause else ""}
    if pause is None:
        text = _("Nothing was changed: limit %(key)s is not paused any more.")
    elif pause.paused_by:
        text = _("Nothing was changed: %(who)s has paused limit %(key)s since the page was shown.")
    else:
        text = _("Nothing was changed: limit %(key)s was paused since the page was shown.")
    messages.warning(request, text % words)
    return False


def _restore(request: HttpRequest, alias: str, limit_key: str) -> None:
    override: LimitOverride | None = overrides_in_force(alias).select_for_update().filter(limit_key=limit_key).first()
    words = {"key": shortened(limit_key)}
    if override is None or request.POST.get(CHANGE_FIELD) != str(shown.number(override.changed_at)):
        messages.warning(request, _("Nothing was changed: limit %(key)s was changed since the page was shown.") % words)
    elif limit_control.restore_limit(limit_key, by=request.user.get_username(), database=alias):
        messages.success(request, _("The change of limit %(key)s is undone.") % words)


def _end_hold(request: HttpRequest, alias: str, limit_key: str) -> None:
    holds = LimitState.objects.using(alias).filter(limit_key=limit_key, held_until__isnull=False)
    longest = holds.order_by("-held_until").values_list("held_until", flat=True).first()
    words = {"key": shortened(limit_key)}
    if longest is None or request.POST.get(HOLD_FIELD) != str(shown.number(longest)):
        text = _("Nothing was changed: the hold of %(key)s has ended, or has been extended since the page was shown.")
        messages.warning(request, text % words)
    elif limit_control.end_hold(limit_key, by=request.user.get_username(), database=alias):
        messages.success(request, _("The hold of %(key)s has ended.") % words)


def _log(request: HttpRequest, pause: Pause, message: str) -> None:
    user_id = cast(int, request.user.pk)  # not None: anonymous users have no permission to get here
    LogEntry.objects.log_actions(user_id, [pause], CHANGE, message)
