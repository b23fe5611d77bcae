"""The lists of jobs and of dead letters, with their searches and actions.

Registered in `__init__`. Both lists use the permissions on `Job`. Rows are read-only; operations go through
`job_actions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_safe

from django_pgqueue.acts import EDIT_AND_RETRY, ENQUEUE
from django_pgqueue.lifecycle.bulk_acts import MOST_IDS, Selection
from django_pgqueue.models import Job
from django_pgqueue.states import State

from . import databases, search_keys, shown
from .act_view import FORM, act_view
from .bulk_acts import SEARCH, SEARCH_LENGTH, links_of_list, of_list, say_most
from .buttons import back_of, button_urls
from .console import PAGES, acts_on_job, answer_list, console_urls, request_url, stop_url
from .formatting import LABELS, shortened
from .forms import confirmation
from .forms.enqueue_form import enqueue_view
from .job.actions import (
    ACKNOWLEDGE,
    CANCEL,
    DELETE,
    ERASE,
    MOVE,
    ON_ONE_JOB,
    RETRY,
    RUN_NOW,
    act_on_many,
    act_on_one,
)
from .job.columns import JobColumns, with_latest_execution
from .job.edit_and_retry import edit_view
from .job.list_pages import FoundPaginator, JobChangeList
from .job.operations import JobOperation
from .job.page import job_page
from .limits.form import form_url
from .list_filters import (
    BatchFilter,
    ErrorFilter,
    LimitFilter,
    MessageFilter,
    QueueFilter,
    SpanFilter,
    TaskFilter,
    WordFilter,
)
from .navigation import redirect_to
from .private import LIST_NOTE, NO_PERMISSION, may_view, with_permission
from .row_operations import Operation, selected_action


def job_form_urls(site: AdminSite) -> list[URLPattern]:
    """Return the URLs, below that of the list of jobs."""
    edit = act_view(site, EDIT_AND_RETRY, partial(edit_view, site=site), FORM)
    enqueue = act_view(site, ENQUEUE, partial(enqueue_view, site=site), FORM)
    return [
        path("<int:object_id>/edit/", edit, name="pgqueue_job_edit"),
        path("enqueue/<str:task_name>/", enqueue, name="pgqueue_enqueue"),
    ]


class JobAdmin(JobColumns):
    """All jobs, newest first. With a state chosen, the order is that of its index; see `job_list`."""

    list_display = ["number", "state_badge", "task", "queue", "priority", "attempts", "enqueued", "wait", "run_time"]
    list_filter = [BatchFilter, WordFilter, SpanFilter, QueueFilter, TaskFilter, LimitFilter]
    zero_columns = ("priority",)
    list_max_show_all = 0  # a page is never longer
    ordering = ["-id"]  # of a queryset without a search: the order of the list is that of the search
    search_fields = ["id"]  # makes Django show the search box; `listing()` does the search
    search_help_text = _(
        "The number of a job, the exact name of a task, a search key, such as customer_id:4711, or the value of one."
    )
    object_history_template = "pgqueue/admin/job_history.html"
    actions = [
        *("retry_selected", "acknowledge_selected", "cancel_selected"),
        *("run_selected", "move_selected", "erase_selected", "remove_selected"),
    ]
    operations: Sequence[Operation] = ON_ONE_JOB
    shown_fields = staticmethod(shown.fields)

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of the console to the list of all jobs, and not to that of dead letters."""
        if self.model is not Job:
            return super().get_urls()
        site = self.admin_site
        forms = [*button_urls(site), *job_form_urls(site), form_url(site), request_url(site), stop_url(site)]
        return [*console_urls(site, PAGES), *forms, *super().get_urls()]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return with_permission(with_latest_execution(super().get_queryset(request)), request)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list. Below its title, say why it shows no error messages to a user without the permission."""
        note = {} if may_view(request) else {"subtitle": LIST_NOTE}
        acts = links_of_list(request, self.admin_site, is_dead_only=self.model is not Job)
        return super().changelist_view(request, {**note, "bulk_acts": acts, **(extra_context or {})})

    def list_title(self, request: HttpRequest) -> str:
        """Return the title with the chosen state."""
        title, label = super().list_title(request), LABELS.get(request.GET.get("state", ""))
        return _("%(title)s: %(state)s") % {"title": title, "state": label} if label else title

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return JobChangeList

    def get_paginator(self, request: HttpRequest, queryset: Any, per_page: int, *args: Any, **kwargs: Any) -> Any:
        """Return a paginator of the jobs that `JobChangeList` has found. A job's history has no search."""
        found = vars(queryset).get("found")
        if found is None:
            return super().get_paginator(request, queryset, per_page, *args, **kwargs)
        return FoundPaginator(found, per_page)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Return the queryset as it is. `JobChangeList` searches."""
        return queryset, False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may view jobs. Dead letters need the same permission."""
        return request.user.has_perm("pgqueue.view_job")

    has_retry_permission = RETRY.is_allowed
    has_acknowledge_permission = ACKNOWLEDGE.is_allowed
    has_cancel_permission = CANCEL.is_allowed
    has_run_permission = RUN_NOW.is_allowed
    has_move_permission = MOVE.is_allowed
    has_erase_permission = ERASE.is_allowed
    has_remove_permission = DELETE.is_allowed

    retry_selected = selected_action(_("Retry selected"), RETRY, "retry")
    acknowledge_selected = selected_action(_("Acknowledge selected…"), ACKNOWLEDGE, "acknowledge")
    cancel_selected = selected_action(_("Cancel selected"), CANCEL, "cancel")
    run_selected = selected_action(_("Run selected now"), RUN_NOW, "run")
    move_selected = selected_action(_("Move selected…"), MOVE, "move")
    erase_selected = selected_action(_("Erase values of selected…"), ERASE, "erase")
    remove_selected = selected_action(_("Delete selected…"), DELETE, "remove")

    def act_on_selected(
        self, request: HttpRequest, operation: JobOperation, queryset: QuerySet[Any]
    ) -> HttpResponse | None:
        """Change the selected jobs of the page now. With "Select all", show the preview of a bulk act.

        A move and a deletion always show the preview: it asks where to move the jobs, or shows what is lost. So does an
        erasure with "Select all", also if the form of selected rows was answered.
        """
        is_all = request.POST.get("select_across") == "1"
        has_answer = confirmation.is_given(request) and operation is not ERASE
        if operation not in (MOVE, DELETE) and (has_answer or not is_all):
            return act_on_many(request, operation, queryset, self.admin_site)
        name, at = operation.act.name, shown.page_at(request)
        selection = of_list(name, request.GET, at, is_dead_only=self.model is not Job) if is_all else None
        selection = selection or self._listed(request, queryset)
        if selection is not None:
            return answer_list(request, self.admin_site, name, selection)
        messages.warning(request, _("Nothing was changed: the list is empty now."))
        return None

    def _listed(self, request: HttpRequest, queryset: QuerySet[Any]) -> Selection | None:
        """Return the ids of the listed jobs. A bulk act needs them if it cannot express the filters of the list."""
        ids = list(queryset.prefetch_related(None).values_list("pk", flat=True)[:MOST_IDS])
        if len(ids) == MOST_IDS:  # the list finds no more than that
            say_most(request)
        return Selection(job_ids=tuple(ids), search=self._search(request)) if ids else None

    def _search(self, request: HttpRequest) -> str | None:
        """Return the search key whose jobs "Select all" takes; None if the list has another text, or some jobs."""
        term, alias = request.GET.get(SEARCH, "").strip(), databases.chosen(request)
        if not term or request.POST.get("select_across") != "1":
            return None
        search = search_keys.chosen_by(request, alias, term, search_keys.search(request, alias, term))
        return search and search[:SEARCH_LENGTH]

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the acts of the audit on a job, beside Django's log."""
        request.current_app = self.admin_site.name
        acts = {"acts": acts_on_job(request, object_id), "hidden_note": NO_PERMISSION}
        return super().history_view(request, object_id, {**acts, **(extra_context or {})})

    def run_operation(self, request: HttpRequest, object_id: int, operation: JobOperation) -> HttpResponseBase:
        jobs = Job.objects.using(databases.chosen(request))
        job = jobs.defer("arguments", "headers", "result").filter(pk=object_id).first()
        if job is None:
            return self.not_found(request, str(object_id))
        if question := act_on_one(request, operation, job, self.admin_site):
            return question
        if back := back_of(request):
            return HttpResponseRedirect(back)
        if operation is DELETE and not jobs.filter(pk=object_id).exists():
            return redirect_to(request, "job_changelist")
        return redirect_to(request, "job_change", object_id)

    def not_found(self, request: HttpRequest, object_id: str) -> HttpResponseRedirect:
        """Show the list, with a message that the job does not exist."""
        messages.warning(
            request,
            _("Job #%(number)s does not exist. It may have been pruned.") % {"number": shortened(object_id, 20)},
        )
        request.current_app = self.admin_site.name
        return redirect_to(request, f"{self.opts.model_name}_changelist")

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of one job. It is read-only, so POST is refused."""
        return job_page(self, request, object_id, extra_context or {}) or self.not_found(request, object_id)


class DeadJobAdmin(JobAdmin):
    """Dead letters, latest death first."""

    list_display = ["number", "task", "queue", "attempts", "enqueued", "died", "run_time"]
    list_filter = [BatchFilter, SpanFilter, QueueFilter, TaskFilter, LimitFilter, ErrorFilter, MessageFilter]
    actions = ["retry_selected", "acknowledge_selected", "erase_selected", "remove_selected"]
    operations = ()  # their URLs belong to `JobAdmin`, because a retried job is not a dead letter

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the dead letters, with the condition of their partial index, so that PostgreSQL can use it.

        The page of a job that was acknowledged stays at its URL.
        """
        return super().get_queryset(request).filter(state=State.DEAD, finished_at__isnull=False)
