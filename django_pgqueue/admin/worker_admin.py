"""The list of workers and the page of each: what runs where, and requests to stop or to write the stacks of jobs.

The requests go through `worker_control`. Every act is a POST; the page that asks before a stop is read-only.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from django_pgqueue import acts, stats
from django_pgqueue.control import workers as worker_control
from django_pgqueue.models import Job, Worker
from django_pgqueue.states import RequestKind

from . import databases
from .act_view import FORM, act_view, log_change
from .formatting import visible
from .links import redirect_to
from .list_filters import row_id_of
from .navigation import rendered
from .readonly import ListOnlyAdmin
from .workers import live_stack
from .workers.pages import list_context, running_row, siblings, worker_row


class WorkerAdmin(ListOnlyAdmin):
    """Live workers by host, then those without a heartbeat and those that have stopped."""

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of the requests to one worker."""
        stop = act_view(self.admin_site, acts.STOP_WORKER, self.stop_view, FORM)
        stack = act_view(self.admin_site, acts.LIVE_STACK, partial(self._request, kind=RequestKind.STACK))
        return [
            path("<int:worker_id>/stop/", stop, name="pgqueue_worker_stop"),
            path("<int:worker_id>/stack/", stack, name="pgqueue_worker_stack"),
            *super().get_urls(),
        ]

    # ---------------------------------------------------------------- pages

    @method_decorator(require_safe)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show all workers. It is a page of the console and not a list of rows, so it has no actions."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = list_context(databases.chosen(request))
        return self._page(request, "workers", _("Workers"), {**context, **(extra_context or {})})

    @method_decorator(require_safe)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show one worker that has not stopped: its jobs, and the requests to it. Otherwise show the list."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        alias = databases.chosen(request)
        worker = _found(object_id, stats.workers(alias))
        if worker is None:
            request.current_app = self.admin_site.name
            return redirect_to(request, "worker_changelist")
        jobs = stats.running_jobs([worker.id], alias)
        answers = live_stack.of_worker(request, worker.id, alias)
        context = {
            "row": worker_row(worker, jobs, ""),
            "jobs": [running_row(job) for job in jobs],
            "more_jobs": max(0, worker.slots_busy + worker.prefetched - len(jobs)),
            "answers": answers,
            "is_waiting": any(answer["is_waiting"] for answer in answers),
            "answers_requests": worker.supervisor_pid is not None,
            **(extra_context or {}),
        }
        title = _("Worker process %(pid)s on %(host)s") % {"pid": worker.pid, "host": visible(worker.host)}
        return self._page(request, "worker", title, context)

    def _page(self, request: HttpRequest, name: str, title: str, context: dict[str, Any]) -> HttpResponse:
        base = {
            "may_stop": acts.STOP_WORKER.is_allowed(request.user),
            "may_view_stack": live_stack.may_view(request),
            "may_view_jobs": request.user.has_perm("pgqueue.view_job"),
        }
        return rendered(request, self.admin_site, f"console/{name}.html", title, {**base, **context}, opts=self.opts)

    # ---------------------------------------------------------------- requests

    def stop_view(self, request: HttpRequest, worker_id: int) -> HttpResponseBase:
        """Ask whether a worker is to stop, with what it runs; after POST, request it."""
        if request.method == "POST":
            return self._request(request, worker_id, RequestKind.STOP)
        alias = databases.chosen(request)
        workers = stats.workers(alias)
        worker = _found(worker_id, workers)
        if worker is None or worker.supervisor_pid is None:
            return self._refused(request)
        together = siblings(worker, workers)
        jobs = stats.running_jobs([each.id for each in together], alias)
        context = {
            "row": worker_row(worker, jobs, ""),
            "pids": sorted(each.pid for each in together),
            "jobs": [running_row(job) for job in jobs],
            "busy": sum(each.slots_busy for each in together),
        }
        return self._page(request, "worker_stop", _("Stop this worker?"), context)

    def _request(self, request: HttpRequest, worker_id: int, kind: RequestKind) -> HttpResponseBase:
        """Request a stop or stacks of a worker, log a new request, and show the page where the answer will be."""
        alias, by = databases.chosen(request), request.user.get_username()
        named = request.POST.get(live_stack.EXECUTION, "") if kind is RequestKind.STACK else ""
        execution_id = row_id_of(named) or 0
        jobs = Job.objects.using(alias).filter(executions__pk=execution_id).only("pk", "task_name")
        job = jobs.first() if execution_id else None
        requested = worker_control.request(worker_id, kind, alias, execution_id=execution_id, by=by)
        if requested is None:
            return self._refused(request, job)
        if requested.is_new:
            text = "Stop requested." if kind is RequestKind.STOP else "Stack requested."
            worker = Worker.objects.using(alias).get(pk=worker_id)
            log_change(request, worker, text)
            log_change(request, job, text)
        else:
            messages.info(request, _("The same request is waiting for its answer. Nothing was requested again."))
        if job is not None:
            return redirect_to(request, "job_change", job.pk, part="pgqueue-stack")
        return redirect_to(request, "worker_change", worker_id, part="pgqueue-requests")

    def _refused(self, request: HttpRequest, job: Job | None = None) -> HttpResponseRedirect:
        text = _("Nothing was requested: this worker has stopped, or it runs one job without a supervisor.")
        messages.warning(request, text)
        if job is not None:
            return redirect_to(request, "job_change", job.pk)
        return redirect_to(request, "worker_changelist" if self.has_view_permission(request) else "job_changelist")


def _found(worker_id: int | str, workers: list[stats.WorkerStats]) -> stats.WorkerStats | None:
    return next((worker for worker in workers if str(worker.id) == str(worker_id)), None)
