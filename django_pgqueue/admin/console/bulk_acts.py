"""The pages *Audit*, with the acts of operators, and *Bulk act*, with the progress of one act and a button to stop it.

Both read the audit. While workers execute an act, its page refreshes itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.db import connections
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import stats
from django_pgqueue.acts import CHANGING_NO_JOBS, JOB_ACTS
from django_pgqueue.admin import bulk_acts, databases, private
from django_pgqueue.admin.act_view import act_view, check
from django_pgqueue.admin.formatting import dated, moment, visible
from django_pgqueue.admin.forms.argument_changes import other_job, shown_changes
from django_pgqueue.admin.list_filters import row_id_of
from django_pgqueue.admin.navigation import page_url, redirect_to
from django_pgqueue.display import number
from django_pgqueue.lifecycle import audit
from django_pgqueue.lifecycle.bulk_acts import PREVIEWED
from django_pgqueue.models import AuditedJob, AuditEntry
from django_pgqueue.models.operations_link import database_now

from .act_jobs import act_jobs
from .audit_filters import filter_context, find_entries, page_link
from .page import ConsolePage

SHOWN: Final = 100
"""Acts on one page of the list."""
ACTS_SHOWN: Final = 50
"""Latest acts on a job that its history shows."""
REFRESH_SECONDS: Final = 3
OUTCOME_SECONDS: Final = 10
"""How often the page shows anew what becomes of retried jobs after the act has ended."""
REASON_SHOWN: Final = 500


def _list(request: HttpRequest, alias: str) -> dict[str, Any]:
    """Return the latest acts that meet the filters, or those before the act with the number `before`."""
    found = find_entries(request, alias, SHOWN)
    return {
        "rows": act_rows(request, found.entries),
        "older": "" if found.older is None else page_link(request, found.older),
        "is_first_page": not request.GET.get("before", ""),
        "stopped_at": found.stopped_at,
        **filter_context(request, alias),
    }


def act_rows(request: HttpRequest, entries: Iterable[AuditEntry]) -> list[dict[str, Any]]:
    """Return the rows of some entries, as the page and the histories show them."""
    return [_row(request, entry) for entry in entries]


def _row(request: HttpRequest, entry: AuditEntry) -> dict[str, Any]:
    return {
        "entry": entry,
        "label": bulk_acts.label(entry.action),
        "changed": number(entry.job_count),
        "left": number(entry.left_count),
        "began": moment(entry.began_at),
        "described": bulk_acts.described(request, entry.filter),
        "ending": bulk_acts.ending(entry),
        "who": visible(entry.done_by),
        "reason": _reason(request, entry),
        "url": page_url(request, "bulk_act", id=entry.pk),
    }


def _reason(request: HttpRequest, entry: AuditEntry) -> str:
    """Return the reason of an act, or "" if the user may not see it."""
    chosen = entry.filter if isinstance(entry.filter, dict) else {}
    is_visible = private.may_view_reason(request, chosen.get("limit_key"), chosen.get("message"), chosen.get("search"))
    return visible(entry.reason[:REASON_SHOWN]) if is_visible else ""


def _progress(request: HttpRequest, alias: str) -> dict[str, Any]:
    entry = _entry(request.GET.get("id", ""), alias)
    is_running = entry.ended_at is None and entry.next_batch_at is not None
    changes_jobs = entry.action not in CHANGING_NO_JOBS
    can_stop = entry.ended_at is None and entry.stop_asked_at is None
    return {
        **_row(request, entry),
        "title": _("%(action)s: act %(number)s") % {"action": bulk_acts.label(entry.action), "number": entry.pk},
        "is_running": is_running,
        "changes_jobs": changes_jobs,
        "refresh_seconds": REFRESH_SECONDS,
        "outcome_seconds": OUTCOME_SECONDS,
        "total": bulk_acts.count_text(entry.total, has_more=(entry.total or 0) > PREVIEWED),
        "done": entry.job_count + entry.left_count,
        "rate": f"{entry.rate:g}" if entry.rate else "",
        "is_bounded": changes_jobs and entry.total is not None and 0 < entry.total <= PREVIEWED,
        "began": dated(entry.began_at, entry),
        "ended": dated(entry.ended_at, entry),
        **act_jobs(request, entry, alias),
        "may_stop": can_stop and bulk_acts.is_allowed(request, entry.action),
        "no_grants": bulk_acts.no_grants_text(entry.action, alias) if is_running else "",
        "has_worker": not is_running or any(worker.is_live for worker in stats.workers(alias)),
    }


def _entry(number: str, alias: str) -> AuditEntry:
    entries = AuditEntry.objects.using(alias).annotate(seen_at=database_now())
    entry_id = row_id_of(number)
    found = None if entry_id is None else entries.filter(pk=entry_id).first()
    if found is None:
        raise Http404(_("There is no act with this number. Workers remove old ones."))
    return found


def stop_url(site: AdminSite) -> URLPattern:
    """Return the URL that the button *Stop* posts to."""
    return path("bulk_act/stop/", act_view(site, None, _stop), name="pgqueue_bulk_stop")


def _stop(request: HttpRequest) -> HttpResponse:
    alias = databases.chosen(request)
    entry = _entry(request.POST.get("id", ""), alias)
    check(request, JOB_ACTS.get(entry.action))
    if audit.stop_audit(connections[alias], entry.pk, request.user.get_username()):
        messages.success(request, _("The act is stopped. The jobs that it has changed stay changed."))
    else:
        messages.warning(request, _("Nothing to stop: the act has ended, or somebody has stopped it."))
    return redirect_to(request, "bulk_act", id=entry.pk)


def acts_on_job(request: HttpRequest, object_id: str) -> list[dict[str, Any]]:
    """Return the latest acts on a job, for its history. Details can contain arguments, so not every user sees them."""
    if not object_id.isdecimal() or len(object_id) > 18:
        return []
    found = AuditedJob.objects.using(databases.chosen(request)).filter(job_id=int(object_id)).select_related("entry")
    shows_detail = private.may_view(request)
    return [
        {
            **_row(request, audited.entry),
            "other": other_job(request, audited.detail),
            "changes": shown_changes(audited.detail) if shows_detail else [],
            "is_hidden": bool(audited.detail) and not shows_detail,
        }
        for audited in found.order_by("-entry_id")[:ACTS_SHOWN]
    ]


AUDIT: Final = ConsolePage("bulk_acts", gettext_lazy("Audit"), _list)
BULK_ACT: Final = ConsolePage("bulk_act", gettext_lazy("Bulk act"), _progress, place="bulk_acts")
