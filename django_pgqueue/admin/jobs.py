"""The lists of jobs and of dead letters, their searches and their actions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue.models import Job
from django_pgqueue.states import FINISHED, State

from . import shown
from .acts import CANCEL, OPERATIONS, RETRY, RUN_NOW, Operation, act_on_many, act_on_one
from .columns import JobColumns, with_latest_execution
from .filters import DUE, SCHEDULED, DiedFilter, EnqueuedFilter, QueueFilter, StateFilter, TaskFilter, among_newest
from .page import job_page
from .words import shortened


class JobAdmin(JobColumns):
    """All jobs, newest first; those in a finished state by when they finished, as their index has them."""

    list_display = [
        "number",
        "state_badge",
        "task",
        "queue",
        "priority",
        "attempts",
        "enqueued",
        "wait",
        "run_time",
    ]
    list_filter = [StateFilter, EnqueuedFilter, QueueFilter, TaskFilter]
    search_fields = ["id"]  # shows the box; get_search_results decides
    search_help_text = _("The number of a job, or the exact name of a task, among the newest 2,000,000 jobs.")
    actions = ["retry_selected", "cancel_selected", "run_selected"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the jobs as the list shows them."""
        return with_latest_execution(super().get_queryset(request))

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the newest first: by id, or by the index over finished jobs where one state is chosen.

        Jobs in line come as they are claimed.
        """
        if request.GET.get("state") in (DUE, SCHEDULED):
            return ("-priority", "run_after", "id")
        return ("-finished_at",) if request.GET.get("state") in FINISHED else ("-id",)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find one job by its number, or jobs by the exact name of their task."""
        term = search_term.strip()
        number = term.removeprefix("#")
        if not term:
            return queryset, False
        if number.isascii() and number.isdigit():
            return (queryset.filter(pk=number) if len(number) <= 19 else queryset.none()), False
        return ((queryset.none() if "\0" in term else self.with_task(queryset, term)), False)

    def with_task(self, queryset: QuerySet[Any], task_name: str) -> QuerySet[Any]:
        """Return the jobs of a task: no index leads to those of unfinished ones."""
        return among_newest(queryset, task_name=task_name).queryset

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Say whether the user may see jobs; the same permission for dead letters."""
        return request.user.has_perm("pgqueue.view_job")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may make finished jobs ready."""
        return RETRY.is_allowed(request)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may cancel jobs."""
        return CANCEL.is_allowed(request)

    def has_run_permission(self, request: HttpRequest) -> bool:
        """Say whether the user may make jobs due."""
        return RUN_NOW.is_allowed(request)

    @admin.action(description=_("Retry selected"), permissions=["retry"])
    def retry_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Make the finished jobs among the selected ready again."""
        return act_on_many(request, RETRY, queryset, self.admin_site)

    @admin.action(description=_("Cancel selected"), permissions=["cancel"])
    def cancel_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Cancel the selected jobs, or ask the running ones to stop."""
        return act_on_many(request, CANCEL, queryset, self.admin_site)

    @admin.action(description=_("Run selected now"), permissions=["run"])
    def run_selected(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Make the selected jobs that are due later due at once."""
        return act_on_many(request, RUN_NOW, queryset, self.admin_site)

    def action_checkbox(self, obj: Any) -> SafeString:
        """Return Django's checkbox, and beside it what this row shows: an act applies to that alone."""
        return format_html("{}{}", super().action_checkbox(obj), shown.fields(obj))

    def get_urls(self) -> list[URLPattern]:
        """Add one URL for each operation on one job."""
        own = [
            path(
                f"<int:job_id>/{operation.name}/",
                self.admin_site.admin_view(self.act_view),
                {"operation": operation},
                name=f"pgqueue_job_{operation.name}",
            )
            for operation in OPERATIONS
        ]
        return own + super().get_urls()

    def act_view(self, request: HttpRequest, job_id: int, operation: Operation) -> HttpResponseBase:
        """Do it to one job, then show its page; POST only."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        jobs = Job.objects.using(router.db_for_write(Job))
        job = jobs.defer("arguments", "headers", "result").filter(pk=job_id).first()
        if job is None:
            return self.not_found(request, str(job_id))
        if question := act_on_one(request, operation, job, self.admin_site):
            return question
        return HttpResponseRedirect(
            reverse("admin:pgqueue_job_change", args=[job_id], current_app=self.admin_site.name)
        )

    def not_found(self, request: HttpRequest, object_id: str) -> HttpResponseRedirect:
        """Say that there is no such job, or no longer, and show the list."""
        messages.warning(request, _("There is no job #%(number)s here.") % {"number": shortened(object_id, 20)})
        url = f"admin:pgqueue_{self.opts.model_name}_changelist"
        return HttpResponseRedirect(reverse(url, current_app=self.admin_site.name))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the page of one job; there is no form to post."""
        if request.method not in {"GET", "HEAD"}:
            return HttpResponseNotAllowed(["GET", "HEAD"])
        return job_page(self, request, object_id, extra_context or {})


class DeadJobAdmin(JobAdmin):
    """Dead letters only, the latest first."""

    list_display = ["number", "task", "queue", "attempts", "enqueued", "died", "run_time"]
    list_filter = [DiedFilter, QueueFilter, TaskFilter]
    search_help_text = _("The number of a job, or the exact name of a task.")
    actions = ["retry_selected"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the dead ones, with what their index asks for."""
        return super().get_queryset(request).filter(state=State.DEAD, finished_at__isnull=False)

    def with_task(self, queryset: QuerySet[Any], task_name: str) -> QuerySet[Any]:
        """Return the dead jobs of a task: an index leads to them."""
        return queryset.filter(task_name=task_name)

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order of the index."""
        return ("-finished_at",)

    def get_urls(self) -> list[URLPattern]:
        """Leave the operations to the URLs of jobs: a dead letter that is retried is none any more."""
        return [url for url in super().get_urls() if "operation" not in url.default_args]
