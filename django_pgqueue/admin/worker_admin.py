"""The list of workers and the page of each: what runs where, and requests to stop or to write the stacks of jobs.

The page of a process that has stopped shows what its row says, as long as the row is kept.

The requests go through `worker_control`. Every act is a POST; the page that asks before a stop is read-only.

Live workers come first, by host, each with the jobs that it runs. Workers without a heartbeat and stopped workers
follow in bounded lists.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from django_pgqueue import acts, stats
from django_pgqueue.control import workers as worker_control
from django_pgqueue.db.fields import statement_time
from django_pgqueue.ground.served_queues import OTHERS, ServedQueues
from django_pgqueue.models import Job, Worker
from django_pgqueue.states import RequestKind

from . import databases, live_stack
from .act_view import FORM, act_view, log_change
from .formatting import breakable, dated, duration, moment, moment_ago, visible
from .list_filters import row_id_of
from .navigation import redirect_to, rendered
from .readonly import ListOnlyAdmin

RUNNING_SHOWN: Final = 8
"""Jobs of a worker that the list shows. The page of the worker shows more."""
STOPPED_SHOWN: Final = 20
SILENT_SHOWN: Final = 50


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
        """Show one worker that has not stopped: its jobs, and the requests to it. Otherwise show what its row says."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        alias = databases.chosen(request)
        worker = _found(object_id, stats.workers(alias))
        if worker is None:
            return self._record(request, object_id, alias)
        jobs = stats.running_jobs([worker.id], alias)
        answers = live_stack.of_worker(request, worker.id, alias)
        context = {
            "row": worker_row(worker, jobs),
            "jobs": [running_row(job) for job in jobs],
            "more_jobs": max(0, worker.claimed - len(jobs)),
            "answers": answers,
            "is_waiting": any(answer["is_waiting"] for answer in answers),
            "answers_requests": worker.supervisor_pid is not None,
            **(extra_context or {}),
        }
        title = _("Worker process %(pid)s on %(host)s") % {"pid": worker.pid, "host": visible(worker.host)}
        return self._page(request, "worker", title, context)

    def _record(self, request: HttpRequest, object_id: str, alias: str) -> HttpResponse:
        """Show a process that has stopped or was lost, or that its row is removed. Links in attempts lead here."""
        worker_id = row_id_of(object_id)
        if worker_id is None:
            request.current_app = self.admin_site.name
            return redirect_to(request, "worker_changelist")
        worker = Worker.objects.using(alias).annotate(seen_at=statement_time()).filter(pk=worker_id).first()
        if worker is None:
            page = self._page(
                request, "worker_record", _("Worker process %s") % worker_id, {"worker_id": str(worker_id)}
            )
            page.status_code = 404
            return page
        title = _("Worker process %(pid)s on %(host)s") % {"pid": worker.pid, "host": visible(worker.hostname)}
        jobs = [running_row(job) for job in stats.running_jobs([worker_id], alias)]
        answers = live_stack.of_worker(request, worker_id, alias)
        context = {**record_context(worker), "jobs": jobs, "answers": answers}
        return self._page(request, "worker_record", title, context)

    def _page(self, request: HttpRequest, name: str, title: str, context: dict[str, Any]) -> HttpResponse:
        base = {
            "may_stop": acts.STOP_WORKER.is_allowed(request.user),
            "may_view_stack": live_stack.may_view(request),
            "may_view_jobs": request.user.has_perm("pgqueue.view_job"),
        }
        shown, place = {**base, **context}, "worker_changelist"
        return rendered(request, self.admin_site, f"console/{name}.html", title, shown, opts=self.opts, place=place)

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
            "row": worker_row(worker, jobs),
            "pids": sorted(each.pid for each in together),
            "jobs": [running_row(job) for job in jobs],
            "running": sum(each.claimed - each.prefetched for each in together),
            "more_jobs": max(0, sum(each.claimed for each in together) - len(jobs)),
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


# ---------------------------------------------------------------------------- rows


def list_context(alias: str) -> dict[str, Any]:
    """Return what the list of workers shows. Runs four statements."""
    workers = stats.workers(alias)
    live = [worker for worker in workers if worker.is_live]
    silent = [worker for worker in workers if not worker.is_live]
    jobs = _jobs_by_worker([*live, *silent[:SILENT_SHOWN]], alias)
    deployed = [worker for worker in live if worker.supervisor_pid is not None]  # others run one job of a person
    newest = max(deployed, key=lambda worker: worker.started_at, default=None)
    by_host = defaultdict(list)
    for worker in sorted(live, key=lambda worker: (worker.host, worker.pid)):
        by_host[worker.host].append(worker)
    versions = Counter(worker.version for worker in deployed)
    releases = Counter(worker.release for worker in deployed)
    stopped = Worker.objects.using(alias).filter(stopped_at__isnull=False).order_by("-pk")
    stopped = stopped.annotate(seen_at=statement_time())
    return {
        "database": alias,
        "hosts": [
            {
                "name": visible(name),
                "rows": [worker_row(worker, jobs[worker.id], newest) for worker in of_host],
                **_slots(of_host),
            }
            for name, of_host in by_host.items()
        ],
        "processes": len(live),
        **_slots(live),
        "versions": [(visible(name), count) for name, count in versions.most_common()] if len(versions) > 1 else [],
        "releases": _releases(releases),
        "silent": [worker_row(worker, jobs[worker.id]) for worker in silent[:SILENT_SHOWN]],
        "more_silent": len(silent) - SILENT_SHOWN,
        "stopped": [_stopped_row(worker) for worker in stopped[:STOPPED_SHOWN]],
        "stopped_shown": STOPPED_SHOWN,
    }


def _releases(releases: Counter[str]) -> list[tuple[str, int]]:
    """Return the releases of the live workers with the number of workers; none if all have the same."""
    if len(releases) < 2:
        return []
    return [(visible(name) or _("without a name"), count) for name, count in releases.most_common()]


def worker_row(
    worker: stats.WorkerStats, jobs: Sequence[stats.RunningJob], newest: stats.WorkerStats | None = None
) -> dict[str, Any]:
    """Return a worker as the pages show it. With `newest`, the worker that started last, mark what differs from it."""
    return {
        "worker": worker,
        "host": visible(worker.host),
        "version": visible(worker.version),
        "release": visible(worker.release),
        "is_other_version": newest is not None and worker.version != newest.version,
        "is_other_release": newest is not None and worker.release != newest.release,
        "queues": _queues(ServedQueues(worker.queues, worker.queue_concurrency)),
        "jobs": [running_row(job) for job in jobs[:RUNNING_SHOWN]],
        "more_jobs": max(0, worker.claimed - RUNNING_SHOWN),
        "started": _ago(worker, worker.started_at),
        "heartbeat": _ago(worker, worker.last_heartbeat_at),
    }


def record_context(worker: Worker) -> dict[str, Any]:
    """Return what the page of a process that does not run shows of its row."""
    ended_at = worker.stopped_at or worker.last_heartbeat_at
    queues = ", ".join(_queues(ServedQueues.from_text(worker.queue_names)))
    facts = [
        (_("State"), _("stopped") if worker.stopped_at else _("lost, or without a connection to the database")),
        (_("Stopped"), dated(worker.stopped_at, worker)),
        (_("Last heartbeat"), dated(worker.last_heartbeat_at, worker)),
        (_("Started"), dated(worker.started_at, worker)),
        (_("Ran for"), duration(ended_at - worker.started_at)),
        (_("Host"), visible(worker.hostname)),
        (_("Process"), str(worker.pid)),
        (_("Process of the supervisor"), "" if worker.supervisor_pid is None else str(worker.supervisor_pid)),
        (_("Version"), visible(worker.version)),
        (_("Release"), visible(worker.release)),
        (_("Queues"), queues or _("all")),
        (_("Slots"), str(worker.concurrency)),
    ]
    if worker.stopped_at:
        why = _(
            "The row does not say why the process has stopped, or whether it has crashed. The log of the worker does: "
            "look for the events process_exited, process_died and process_killed."
        )
    else:
        why = _("It did not report a stop. If it was lost, other workers rescue its jobs.")
    return {"worker_id": worker.pk, "facts": [(name, value) for name, value in facts if value], "why": why}


def running_row(job: stats.RunningJob) -> dict[str, Any]:
    """Return a running job as the pages show it."""
    return {
        "job_id": job.job_id,
        "execution_id": job.execution_id,
        "task": breakable(job.task_name),
        "queue": visible(job.queue_name),
        "since": duration(timedelta(seconds=max(0.0, job.seconds))),
        "is_started": job.is_started,
    }


def siblings(worker: stats.WorkerStats, workers: Iterable[stats.WorkerStats]) -> list[stats.WorkerStats]:
    """Return this process and the live processes of the same supervisor. A request to stop ends all of them."""
    supervisor = worker.host, worker.supervisor_pid
    return [
        each
        for each in workers
        if each.id == worker.id or (each.is_live and (each.host, each.supervisor_pid) == supervisor)
    ]


def _jobs_by_worker(workers: Iterable[stats.WorkerStats], alias: str) -> defaultdict[int, list[stats.RunningJob]]:
    busy = [worker.id for worker in workers if worker.claimed]
    found = defaultdict(list)
    for job in stats.running_jobs(busy, alias) if busy else ():
        found[job.worker_id].append(job)
    return found


def _slots(workers: Sequence[stats.WorkerStats]) -> dict[str, int]:
    """Return how many slots of some workers are busy, and how many there are."""
    return {
        "busy": sum(worker.slots_busy for worker in workers),
        "total": sum(worker.slots_total for worker in workers),
    }


def _ago(worker: stats.WorkerStats, at: Any) -> SafeString | str:
    """Return how long ago a moment was, by the database's clock at the time of the reading."""
    seen_at = worker.last_heartbeat_at + timedelta(seconds=worker.heartbeat_age_seconds)
    text = duration(seen_at - at, brief=True)
    return moment(at, text)


def _queues(served: ServedQueues) -> list[str]:
    """Return the queues of a worker, with the number of each that `--queue` limits. Empty: all queues."""
    if not served.concurrency:
        return [visible(name) for name in served.names]
    pairs = [
        (_("all others") if name == OTHERS else visible(name), number) for name, number in served.concurrency.items()
    ]
    return [name if number is None else f"{name} ({number})" for name, number in pairs]


def _stopped_row(worker: Worker) -> dict[str, Any]:
    return {
        "pk": worker.pk,
        "host": visible(worker.hostname),
        "pid": worker.pid,
        "version": visible(worker.version),
        "release": visible(worker.release),
        "queues": _queues(ServedQueues.from_text(worker.queue_names)),
        "started": moment_ago(worker.started_at, worker),
        "stopped": moment_ago(worker.stopped_at, worker),
    }
