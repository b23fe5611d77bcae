"""The list of workers: which run, which have stopped, and which have sent no heartbeat lately."""

from __future__ import annotations

from datetime import timedelta

from django.contrib import admin
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue.conf import get_settings
from django_pgqueue.models import Worker

from .formatting import badge, moment_ago, seen_at, visible
from .readonly import ListOnlyAdmin, column


class WorkerAdmin(ListOnlyAdmin):
    """Workers, latest start first. Two leases without a heartbeat show as "no heartbeat"."""

    list_display = ["state", "host", "pid", "program", "queues", "concurrency", "started", "last_beat", "stopped"]
    ordering = ["-id"]

    @admin.display(description=_("state"))
    def state(self, worker: Worker) -> SafeString:
        state, text = "succeeded", _("working")
        if worker.stopped_at is not None:
            state, text = "cancelled", _("stopped")
        elif seen_at(worker) - worker.last_heartbeat_at > timedelta(seconds=2 * get_settings().LEASE):
            state, text = "dead", _("no heartbeat")
        return badge(state, text)

    host = column(_("host"), lambda worker: visible(worker.hostname))
    program = column(_("version"), lambda worker: visible(worker.version))
    queues = column(_("queues"), lambda worker: visible(worker.queue_names) or _("all"))
    started = column(_("started"), lambda worker: moment_ago(worker.started_at, worker, brief=False))
    last_beat = column(_("last heartbeat"), lambda worker: moment_ago(worker.last_heartbeat_at, worker, brief=False))
    stopped = column(_("stopped"), lambda worker: moment_ago(worker.stopped_at, worker, brief=False), empty_value="")
