"""The preview of a bulk act: how many jobs it would change, some of them, and the form that requests it.

A link leads here, or "Select all" in a list of jobs. The form repeats the filter and the
time of the preview, so workers change only jobs that were in the filter at that time and have not changed since. Each
form requests one act, however often it is sent (see `new_jobs.token_field()`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode
from uuid import uuid4

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.db import connections
from django.http import HttpRequest, HttpResponse, QueryDict
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import queues, stats
from django_pgqueue.acts import JOB_ACTS
from django_pgqueue.admin import bulk_acts, databases
from django_pgqueue.admin.act_view import act_view, check
from django_pgqueue.admin.formatting import breakable, word_badge
from django_pgqueue.admin.forms.erase_form import CALLBACKS_NOTE, kinds_asked
from django_pgqueue.admin.forms.erase_form import NOTES as ERASE_NOTES
from django_pgqueue.admin.forms.new_jobs import FORM_FIELD, read_token
from django_pgqueue.admin.forms.reason_form import ACKNOWLEDGE_NOTES
from django_pgqueue.admin.job.list_pages import listing
from django_pgqueue.admin.navigation import redirect_to, rendered
from django_pgqueue.admin.search_keys import chosen_by
from django_pgqueue.lifecycle import bulk_acts as lifecycle_bulk_acts
from django_pgqueue.lifecycle.bulk_acts import FormSentBefore, Selection
from django_pgqueue.models import AuditEntry
from django_pgqueue.options.task_options import OPTIONS
from django_pgqueue.options.validation import unknown_queue
from django_pgqueue.states import State, TransitionName

from .page import ConsolePage

CAREFUL_RATE: Final = 10.0
"""Jobs per second if the act stops at the first repeat and the user gives no rate."""
MOST_REASON: Final = 1000
TYPED: Final = ("to_queue", "to_priority", "reason", "rate", "stops_on_repeat")
"""The fields whose values an invalid form keeps, besides the kinds of values to erase."""
TYPED_PREFIX: Final = "typed_"
LISTED_FIELD: Final = "listed"
"""The field with the parameters of the list whose search chose the jobs. An invalid form leads back to them."""
NOTES_OF: Final[Mapping[str, Sequence[Promise | str]]] = {
    TransitionName.ACKNOWLEDGE: ACKNOWLEDGE_NOTES,
    TransitionName.ERASE: (*ERASE_NOTES, CALLBACKS_NOTE),
}
"""Sentences about the effects of an act."""
NEED_REASON: Final[Mapping[str, Promise | str]] = {
    TransitionName.ACKNOWLEDGE: gettext_lazy("Give a reason: the page of each job shows it."),
    TransitionName.ERASE: gettext_lazy("Give a reason: the audit shows it."),
}
"""The acts that need a reason, each with the message about a form without one."""
REASON_HELP: Final[Mapping[str, Promise | str]] = {
    TransitionName.ACKNOWLEDGE: gettext_lazy("The page of each job shows it with your name."),
    TransitionName.ERASE: gettext_lazy("The audit shows it. Do not write the erased value here."),
}


def _context(request: HttpRequest, alias: str) -> dict[str, Any]:
    action = request.GET.get("action", "")
    if action in JOB_ACTS:
        check(request, JOB_ACTS[action])
    try:
        return preview_context(request, action, _selection(request))
    except ValueError as error:
        return {"problem": str(error), "title": _("Bulk act")}


def _selection(request: HttpRequest) -> Selection:
    """Return the filter in the URL. If it has the text of a search, choose the jobs that the list finds with it now.

    Raise `ValueError` for an invalid filter, and for a search that finds no job.
    """
    term = request.GET.get(bulk_acts.SEARCH, "").strip()
    if not term:
        return bulk_acts.selection_of(request.GET)
    _search, searched, found = listing(request, term, only_dead=False)
    if searched.note:
        messages.warning(request, f"{capfirst(searched.note)}.")
    if not found.ids:
        raise ValueError(_("No job meets this search now."))
    if found.has_more:
        bulk_acts.say_most(request)
    search = chosen_by(request, databases.chosen(request), term, searched)
    return Selection(job_ids=tuple(found.ids), search=search and search[: bulk_acts.SEARCH_LENGTH])


def preview_context(request: HttpRequest, action: str, selection: Selection) -> dict[str, Any]:
    """Return what the template shows.

    Raise `ValueError` if the action can change no job of the filter, and `PermissionDenied` if the filter has a limit
    key or an error message that the user may not see.
    """
    bulk_acts.check_filter(request, selection)
    alias = databases.chosen(request)
    preview, typed = lifecycle_bulk_acts.preview(connections[alias], action, selection), _typed(request)
    return {
        "title": _title(action),
        "action": action,
        "label": bulk_acts.label(action),
        "described": bulk_acts.described(request, selection.as_json()),
        "preview": preview,
        "sample": [(job, breakable(job.task_name), word_badge(job.state)) for job in preview.sample],
        "count": bulk_acts.count_text(preview.chosen, has_more=preview.has_more),
        "edited_text": bulk_acts.count_text(preview.edited, has_more=preview.has_more),
        "may_count_less": preview.has_more and (selection.exception_class, selection.message) != (None, None),
        "fields": [
            *_search_field(request),
            *bulk_acts.parameters(selection).items(),
            ("previewed_at", preview.at.isoformat()),
            (FORM_FIELD, str(uuid4())),
        ],
        "succeeded": preview.states.get(State.SUCCEEDED, 0) if action == TransitionName.RETRY else 0,
        "succeeded_text": bulk_acts.count_text(preview.states.get(State.SUCCEEDED, 0), has_more=preview.has_more),
        "retries": action == TransitionName.RETRY,
        "moves": action == TransitionName.MOVE,
        "queue_names": stats.names(connections[alias]).queues if action == TransitionName.MOVE else (),
        "notes": NOTES_OF.get(action, ()),
        "needs_reason": action in NEED_REASON,
        "reason_help": REASON_HELP.get(action, _("Optional. The history of each job shows it.")),
        "typed": typed,
        "kinds": [(name, kind, name in typed or not typed) for name, kind in kinds_asked()]
        if action == TransitionName.ERASE
        else (),
        "no_grants": bulk_acts.no_grants_text(action, alias),
        "careful_rate": f"{CAREFUL_RATE:g}",
        "has_worker": any(worker.is_live for worker in stats.workers(alias)),
    }


def _search_field(request: HttpRequest) -> Iterator[tuple[str, str]]:
    """Yield the field with the parameters of a search, if the preview has one."""
    if request.GET.get(bulk_acts.SEARCH):
        yield LISTED_FIELD, urlencode([(name, request.GET[name]) for name in bulk_acts.LISTED if name in request.GET])


def _title(action: str) -> str:
    if action == TransitionName.ERASE:
        return _("Erase values of many jobs")
    return _("%(action)s many jobs") % {"action": bulk_acts.label(action)}


def answer_list(request: HttpRequest, site: AdminSite, action: str, selection: Selection) -> HttpResponse:
    """Return the preview as the answer to "Select all" in a list of jobs, whose form was posted."""
    check(request, JOB_ACTS.get(action))
    context = preview_context(request, action, selection)
    return rendered(request, site, "console/bulk_preview.html", context["title"], context)


def request_url(site: AdminSite) -> URLPattern:
    """Return the URL that the form is posted to."""
    return path("bulk_preview/request/", act_view(site, None, _request), name="pgqueue_bulk_request")


def _request(request: HttpRequest) -> HttpResponse:
    """Request an act, and show its progress. Show the preview again, with a message, if the form is invalid."""
    given = request.POST
    action = given.get("action", "")
    check(request, JOB_ACTS.get(action))
    alias = databases.chosen(request)
    try:
        selection = bulk_acts.selection_of(given)
        bulk_acts.check_filter(request, selection)
        _check_target(selection.to_queue, alias, is_sure="anyway" in given)
        audit_id = _request_once(request, alias, action, selection)
    except ValueError as error:
        messages.error(request, _("Nothing was changed: %(error)s") % {"error": error})
        return redirect_to(request, "bulk_preview", action=action, **_again(given), **_typed_parameters(given))
    return redirect_to(request, "bulk_act", id=audit_id)


def _again(given: QueryDict) -> dict[str, str]:
    """Return the filter of an invalid form, as parameters of the preview that shows it again."""
    listed = QueryDict(given.get(LISTED_FIELD, ""))
    if listed.get(bulk_acts.SEARCH):
        return {name: str(listed[name]) for name in bulk_acts.LISTED if name in listed}
    found = {name: str(given[name]) for name in (*bulk_acts.NAMES, "since", "until") if name in given}
    return found | ({"ids": str(given["ids"])} if len(given.get("ids", "")) in range(1, 2000) else {})


def _typed_parameters(given: QueryDict) -> dict[str, str]:
    """Return what the user has typed into an invalid form, as parameters of the preview that shows it again."""
    names = (*TYPED, *(name for name, _ in kinds_asked()))
    return {f"{TYPED_PREFIX}{name}": str(given[name]) for name in names if given.get(name)}


def _typed(request: HttpRequest) -> dict[str, str]:
    """Return the values that the form shows, because an invalid one had them."""
    given = {name: str(value) for name, value in request.GET.items() if name.startswith(TYPED_PREFIX)}
    return {name.removeprefix(TYPED_PREFIX): value for name, value in given.items()}


def _request_once(request: HttpRequest, alias: str, action: str, selection: Selection) -> int:
    """Request the act, and return the id of its entry. If the form was sent before, return the act of that time.

    Raise `ValueError` if the form is invalid.
    """
    token = read_token(request)
    if token is None:
        raise ValueError(_("The form was incomplete. Try again from here."))
    reason = request.POST.get("reason", "").strip()[:MOST_REASON].replace("\0", "")
    if action in NEED_REASON and not reason:
        raise ValueError(NEED_REASON[action])
    if action == TransitionName.ERASE and not selection.erased:
        raise ValueError(_("Choose at least one kind of values."))
    if action == TransitionName.ERASE and selection.search:  # the audit keeps no value that is erased
        selection = replace(selection, search=selection.search.partition(":")[0] or None)
    try:
        return lifecycle_bulk_acts.request_act(
            connections[alias],
            action,
            _with_edited(alias, action, selection),
            done_by=request.user.get_username(),
            reason=reason,
            form_token=token,
            **_options(request.POST),
        )
    except FormSentBefore:
        messages.warning(
            request, _("This form was sent before and has requested this act. Nothing was requested again.")
        )
        return int(AuditEntry.objects.using(alias).get(form_token=token).pk)


def _with_edited(alias: str, action: str, selection: Selection) -> Selection:
    """Return the filter with the number of jobs that a retry leaves out. The audit stores it, so no form supplies it.

    Raise `ValueError` if the action can change no job of the filter.
    """
    if action != TransitionName.RETRY:
        return selection
    return replace(selection, edited=lifecycle_bulk_acts.preview(connections[alias], action, selection).edited or None)


def _check_target(queue_name: str | None, alias: str, *, is_sure: bool) -> None:
    """Raise `ValueError` if jobs cannot be moved to this queue, or if its name may be mistyped and nobody is sure."""
    if queue_name is None:
        return
    check = OPTIONS["queue_name"].check
    for problem in check(_("To queue"), queue_name) if check else ():
        raise ValueError(problem)
    for problem in unknown_queue("queue", queue_name):
        raise ValueError(problem)
    if not is_sure and (message := queues.mistyped(queue_name, alias)):
        raise ValueError(_("%(message)s To use it all the same, tick the box beside it.") % {"message": message})


def _options(given: QueryDict) -> dict[str, Any]:
    """Return the options of the act in the form. Raise `ValueError` for invalid ones."""
    stops = "stops_on_repeat" in given and given.get("action") == TransitionName.RETRY
    rate = CAREFUL_RATE if stops else None
    if text := given.get("rate", "").strip():
        try:
            rate = float(text)
        except ValueError:
            raise ValueError(_("Invalid rate “%(rate)s”: use a number of jobs per second.") % {"rate": text}) from None
    previewed_at = datetime.fromisoformat(given.get("previewed_at", ""))
    if previewed_at.tzinfo is None:
        raise ValueError(_("The form does not say when it was shown. Try again from here."))
    total = None
    with suppress(ValueError):
        total = max(0, min(int(given.get("total", "")), lifecycle_bulk_acts.PREVIEWED + 1))
    return {"previewed_at": previewed_at, "rate": rate, "stops_on_repeat": stops, "total": total}


BULK_PREVIEW: Final = ConsolePage("bulk_preview", gettext_lazy("Bulk act"), _context, place="job_changelist")
