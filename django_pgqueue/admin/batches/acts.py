"""The acts on one batch: close it, retry its dead jobs, and cancel its unfinished ones.

Closing asks first. The other two show the preview of a bulk act on the jobs of the batch
and of the batches nested in it, and workers execute the act after its form was sent.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django import forms
from django.contrib import messages
from django.contrib.admin import AdminSite
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.translation import gettext as _

from django_pgqueue.acts import CLOSE_BATCH
from django_pgqueue.acts.batch_closing import close_batch
from django_pgqueue.admin import bulk_acts, databases
from django_pgqueue.admin.act_view import FORM, READING, act_view, log_change
from django_pgqueue.admin.console import answer_list
from django_pgqueue.admin.formatting import shortened
from django_pgqueue.admin.forms.form_page import form_page
from django_pgqueue.admin.navigation import page_url, redirect_to
from django_pgqueue.composed.batches import Batch
from django_pgqueue.display import number
from django_pgqueue.job_search import Filters, find
from django_pgqueue.lifecycle.bulk_acts import MOST_IDS, Selection
from django_pgqueue.models import JobBatch
from django_pgqueue.states import State, TransitionName

VIEW: Final = "pgqueue.view_jobbatch"
RETRY: Final = TransitionName.RETRY.value
CANCEL: Final = TransitionName.CANCEL.value
WORDS: Final[dict[str, tuple[str, ...]]] = {
    RETRY: (State.DEAD.value,),
    CANCEL: (State.READY.value, State.RUNNING.value, State.WAITING.value),
}
"""The states of the jobs that an act changes."""


def may_act(request: HttpRequest, action: str) -> bool:
    """Return whether the user may retry or cancel the jobs of batches. A site without jobs has no bulk acts."""
    has_page = bool(page_url(request, "bulk_preview"))
    return has_page and request.user.has_perm(VIEW) and bulk_acts.is_allowed(request, action)


def not_found(request: HttpRequest, batch_id: Any) -> HttpResponseRedirect:
    """Show the list with a message."""
    number = shortened(str(batch_id), 20)
    messages.warning(request, _("Batch #%(number)s does not exist. It may have been removed.") % {"number": number})
    return redirect_to(request, "jobbatch_changelist")


def act_urls(site: AdminSite) -> list[URLPattern]:
    """Return the URLs of the acts on one batch."""
    close = act_view(site, CLOSE_BATCH, partial(close_view, site=site), FORM)
    views = {"close": close} | {
        name: act_view(site, None, partial(jobs_view, site=site, action=name), READING) for name in WORDS
    }
    return [path(f"<int:batch_id>/{name}/", view, name=f"pgqueue_batch_{name}") for name, view in views.items()]


def close_view(request: HttpRequest, batch_id: int, site: AdminSite) -> HttpResponse:
    """Ask whether to close a batch; after POST, close it and show its page."""
    alias = databases.chosen(request)
    try:
        batch = Batch.get(batch_id, database=alias)
    except JobBatch.DoesNotExist:
        return not_found(request, batch_id)
    if request.method == "POST":
        _close(request, batch)
        return redirect_to(request, "jobbatch_change", batch_id)
    notes = [
        _("The batch completes when its last job has ended. If none is unfinished, it completes now."),
        _("After that, nobody can add jobs to it. It cannot be opened again."),
    ]
    title = _("Close batch #%(number)s?") % {"number": batch_id}
    return form_page(
        request,
        site,
        forms.Form(),
        title=title,
        submit=_("Yes, close it"),
        back=page_url(request, "jobbatch_change", batch_id),
        notes=notes,
        place="jobbatch_changelist",
    )


def _close(request: HttpRequest, batch: Batch) -> None:
    if not close_batch(batch, by=request.user.get_username()):
        messages.warning(request, _("Nothing was changed: the batch is closed already."))
        return
    log_change(request, batch.record, "Closed.")
    messages.success(request, _("The batch is closed. It completes when its last job has ended."))


def jobs_view(request: HttpRequest, batch_id: int, site: AdminSite, action: str) -> HttpResponse:
    """Show the preview of an act on the jobs of a batch."""
    if not may_act(request, action):
        raise PermissionDenied
    found = find(Filters(databases.chosen(request), words=WORDS[action], batch=batch_id), MOST_IDS - 1)
    if not found.ids:
        messages.warning(request, _("Nothing was changed: the batch has no such job now."))
        return redirect_to(request, "jobbatch_change", batch_id)
    if found.has_more:
        text = _("The batch has more such jobs. This act changes the first %(count)s: repeat it for the others.")
        messages.warning(request, text % {"count": number(len(found.ids))})
    return answer_list(request, site, action, Selection(job_ids=tuple(found.ids)))


def buttons(request: HttpRequest, batch: JobBatch, counts: Any, *, has_dead_letters: bool) -> list[tuple[str, str]]:
    """Return the acts that the user may run on a batch in its present state: the label and the URL of each.

    `has_dead_letters`: Whether it has a dead job that nobody has acknowledged.
    """
    offered = [
        (_("Close…"), "close", CLOSE_BATCH.is_allowed(request.user) and batch.closed_at is None),
        (_("Retry dead jobs…"), RETRY, may_act(request, RETRY) and has_dead_letters),
        (_("Cancel unfinished jobs…"), CANCEL, may_act(request, CANCEL) and bool(counts.unfinished.value)),
    ]
    return [(label, page_url(request, f"batch_{name}", batch.pk)) for label, name, is_offered in offered if is_offered]
