"""The page that asks before a workflow is retried from a node, and the act.

`batch_admin` gives it its URL. The page lists the jobs and carries what it showed of each, so a click retries these
jobs only, and only while they are as the page showed them.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue.acts import RETRY_FROM
from django_pgqueue.acts.workflow_retries import CannotRetryFromError, WorkflowRetryPlan, plan_retry, retry_from
from django_pgqueue.admin import databases, shown
from django_pgqueue.admin.act_view import FORM, act_view, log_change
from django_pgqueue.admin.formatting import breakable, visible, word_badge
from django_pgqueue.admin.navigation import allowed_url, page_url, redirect_to, rendered
from django_pgqueue.display import number
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.models import Job
from django_pgqueue.states import State
from django_pgqueue.stats.graphs.downstream import RetryEffect

ROWS_SHOWN: Final = 100
MOST_REASON: Final = 1000
RETRIED: Final = (RetryEffect.RUNS, RetryEffect.BLOCKED)
"""The effects on the jobs that the act retries. Others that it also resets are cancelled again."""
EFFECTS: Final[dict[RetryEffect, Promise | str]] = {
    RetryEffect.RUNS: gettext_lazy("will run"),
    RetryEffect.CANCELLED: gettext_lazy("is cancelled again, because it depends on another failed job"),
    RetryEffect.BLOCKED: gettext_lazy("waits until another failed job is retried"),
    RetryEffect.WAITS: gettext_lazy("waits for these jobs"),
    RetryEffect.LEFT: gettext_lazy("is running, and is left alone"),
    RetryEffect.KEPT: gettext_lazy("has succeeded, and is left alone, because it depends on another failed job"),
}


def act_url(site: AdminSite) -> URLPattern:
    """Return the URL of the page."""
    view = act_view(site, RETRY_FROM, partial(retry_view, site=site), FORM)
    return path("<int:batch_id>/retry_from/<int:job_id>/", view, name="pgqueue_batch_retry_from")


def retry_url(request: HttpRequest, batch_id: int, job_id: int, state: str) -> str:
    """Return the URL of the page for a node; "" if the user may not retry it, or if it has not failed."""
    if state not in (State.DEAD, State.CANCELLED) or not RETRY_FROM.is_allowed(request.user):
        return ""
    return page_url(request, "batch_retry_from", batch_id, job_id)


def retry_view(request: HttpRequest, batch_id: int, job_id: int, site: AdminSite) -> HttpResponse:
    """Show which jobs a retry from a node concerns; after POST, retry them."""
    alias = databases.chosen(request)
    try:
        plan = plan_retry(batch_id, job_id, alias)
        if request.method == "POST" and not _retry(request, plan, alias):
            return redirect_to(request, "batch_retry_from", batch_id, job_id)
    except CannotRetryFromError as error:
        messages.warning(request, _("Nothing was changed: %(why)s") % {"why": visible(str(error))})
        return redirect_to(request, "jobbatch_change", batch_id)
    if request.method == "POST":
        return redirect_to(request, "jobbatch_change", batch_id, part="pgqueue-graph")
    return _page(request, plan, site)


def _retry(request: HttpRequest, plan: WorkflowRetryPlan, alias: str) -> bool:
    """Retry the jobs that the page showed, and say so. Return False if they have changed since."""
    if shown.read(request) != plan.seen:
        messages.warning(
            request, _("Nothing was changed: the workflow has changed since the page was shown. Check the jobs again.")
        )
        return False
    reason = request.POST.get("reason", "").strip()[:MOST_REASON].replace("\0", "")
    try:
        done = retry_from(plan, alias, by=request.user.get_username(), reason=reason)
    except JobLocked as error:
        messages.warning(request, _("Nothing was changed: %(why)s") % {"why": visible(str(error))})
        return False
    node = Job(pk=plan.root_id)
    log_change(request, node, f"Retried the workflow from this job, {done.retried} jobs.")
    text = ngettext("%(count)s job is retried.", "%(count)s jobs are retried.", done.retried)
    messages.success(request, text % {"count": number(done.retried)})
    if done.left:
        text = _("Left as they were: %(count)s. They have changed, were edited, or depend on another failed job.")
        messages.warning(request, text % {"count": number(done.left)})
    return True


def _page(request: HttpRequest, plan: WorkflowRetryPlan, site: AdminSite) -> HttpResponse:
    rows = [
        {
            "number": f"#{node.job_id}",
            "url": allowed_url(request, "job_change", node.job_id),
            "task": breakable(node.task_name),
            "state": word_badge(node.state),
            "effect": EFFECTS[plan.effects[node.job_id]],
        }
        for node in plan.nodes[:ROWS_SHOWN]
    ]
    context: dict[str, Any] = {
        "rows": rows,
        "more": max(len(plan.nodes) - ROWS_SHOWN, 0),
        "count": sum(plan.effects[job_id] in RETRIED for job_id in plan.seen),
        "succeeded": len(plan.succeeded),
        "failed_before": _failed_before(request, plan),
        "hidden": shown.hidden(plan.seen),
        "back": page_url(request, "jobbatch_change", plan.batch_id),
    }
    title = _("Retry workflow #%(batch)s from job #%(job)s?") % {"batch": plan.batch_id, "job": plan.root_id}
    return rendered(request, site, "workflow_retry.html", title, context, place="jobbatch_changelist")


def _failed_before(request: HttpRequest, plan: WorkflowRetryPlan) -> list[dict[str, str]]:
    """Return the failed jobs that the act does not retry: the number, the URL of a retry from it, its dependents."""
    return [
        {
            "number": f"#{needs_id}",
            "url": page_url(request, "batch_retry_from", plan.batch_id, needs_id),
            "dependents": ", ".join(f"#{each}" for each in sorted(dependents)[:5])
            + (", …" if len(dependents) > 5 else ""),
        }
        for needs_id, dependents in sorted(plan.failed_before.items())[:10]
    ]
