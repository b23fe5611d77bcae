"""The list of workers: which run, which have stopped, and which have sent no heartbeat lately."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue.conf import get_settings
from django_pgqueue.models import Worker

from .formatting import ago, badge, moment, seen_at, visible
from .readonly import ReadOnlyAdmin


class WorkerAdmin(ReadOnlyAdmin):
    """Workers, latest start first. Two leases without a heartbeat show as "no heartbeat"."""

    list_display = ["state", "host", "pid", "program", "queues", "concurrency", "started", "last_beat", "stopped"]
    list_display_links = None
    ordering = ["-id"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """Return the workers, with the database's clock."""
        workers: QuerySet[Worker] = super().get_queryset(request)
        return workers.annotate(seen_at=Now())

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the list, which shows everything about a worker."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse("admin:pgqueue_worker_changelist", current_app=self.admin_site.name))

    @admin.display(description=_("state"))
    def state(self, worker: Worker) -> SafeString:
        """Return a badge: working, stopped, or no heartbeat."""
        state, text = "succeeded", _("working")
        if worker.stopped_at is not None:
            state, text = "cancelled", _("stopped")
        elif seen_at(worker) - worker.last_heartbeat_at > timedelta(seconds=2 * get_settings().LEASE):
            state, text = "dead", _("no heartbeat")
        return badge(state, text)

    @admin.display(description=_("host"))
    def host(self, worker: Worker) -> str:
        """Return the name of the host."""
        return visible(worker.hostname)

    @admin.display(description=_("version"))
    def program(self, worker: Worker) -> str:
        """Return the version of django-pgqueue that the worker runs."""
        return visible(worker.version)

    @admin.display(description=_("queues"))
    def queues(self, worker: Worker) -> str:
        """Return the queues that the worker claims jobs from."""
        return visible(worker.queue_names) or str(_("all"))

    @admin.display(description=_("started"))
    def started(self, worker: Worker) -> Any:
        """Return when the worker started."""
        return moment(worker.started_at, ago(worker.started_at, seen_at(worker)))

    @admin.display(description=_("last heartbeat"))
    def last_beat(self, worker: Worker) -> Any:
        """Return when the worker last sent a heartbeat."""
        return moment(worker.last_heartbeat_at, ago(worker.last_heartbeat_at, seen_at(worker)))

    @admin.display(description=_("stopped"), empty_value="")
    def stopped(self, worker: Worker) -> Any:
        """Return when the worker stopped, if it has."""
        return worker.stopped_at and moment(worker.stopped_at, ago(worker.stopped_at, seen_at(worker)))
