"""The list of workers."""

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

from .readonly import ReadOnlyAdmin
from .words import ago, badge, moment, seen_at, visible


class WorkerAdmin(ReadOnlyAdmin):
    """Workers, the latest start first; one whose beat is older than two leases is silent."""

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
        """Show the list: it has all there is to see."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(reverse("admin:pgqueue_worker_changelist", current_app=self.admin_site.name))

    @admin.display(description=_("state"))
    def state(self, worker: Worker) -> SafeString:
        """Return a badge: working, silent or stopped."""
        state, word = "succeeded", _("working")
        if worker.stopped_at is not None:
            state, word = "cancelled", _("stopped")
        elif seen_at(worker) - worker.last_beat_at > timedelta(seconds=2 * get_settings().LEASE):
            state, word = "dead", _("silent")
        return badge(state, word)

    @admin.display(description=_("host"))
    def host(self, worker: Worker) -> str:
        """Return the host's name."""
        return visible(worker.hostname)

    @admin.display(description=_("version"))
    def program(self, worker: Worker) -> str:
        """Return the version of this package that the worker runs."""
        return visible(worker.version)

    @admin.display(description=_("queues"))
    def queues(self, worker: Worker) -> str:
        """Return the queues it takes jobs from."""
        return visible(worker.queue_names) or str(_("all"))

    @admin.display(description=_("started"))
    def started(self, worker: Worker) -> Any:
        """Return when it started."""
        return moment(worker.started_at, ago(worker.started_at, seen_at(worker)))

    @admin.display(description=_("last beat"))
    def last_beat(self, worker: Worker) -> Any:
        """Return when it last said that it lives."""
        return moment(worker.last_beat_at, ago(worker.last_beat_at, seen_at(worker)))

    @admin.display(description=_("stopped"), empty_value="")
    def stopped(self, worker: Worker) -> Any:
        """Return when it stopped, if it did."""
        return worker.stopped_at and moment(worker.stopped_at, ago(worker.stopped_at, seen_at(worker)))
