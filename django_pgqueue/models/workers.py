"""The Django models of worker processes, and of operators' requests to them.

`lifecycle.workers` and `lifecycle.leases` write the rows of workers, and the admin shows them. The id of a worker
identifies the owner of a lease.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, InstantField, are_instants
from django_pgqueue.ground.visible_text import in_line
from django_pgqueue.states import RequestKind


class Worker(models.Model):
    """A record of one start of a worker process, with the lease of its open executions."""

    hostname = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process id"))
    version = models.CharField(_("version"), max_length=50)
    """The version of this package."""
    release = models.CharField(_("release"), max_length=100, db_default="", blank=True)
    """The project's release that it runs, as `runworker --release` names it. "": no name was given."""
    queue_names = models.TextField(_("queues"), db_default="")
    concurrency = models.IntegerField(_("concurrency"))
    started_at = InstantField(_("started at"), db_default=Now())
    last_heartbeat_at = InstantField(_("last heartbeat at"), db_default=Now())
    lease_expires_at = InstantField(_("lease expires at"), null=True)
    """Until when its open executions belong to it. A heartbeat extends it. None: each execution has a lease of its own,
    as those of remote workers."""
    stopped_at = InstantField(_("stopped at"), null=True)
    supervisor_pid = models.IntegerField(_("process id of the supervisor"), null=True)
    """None: it has no supervisor (`manage.py pgqueue run`), and answers no requests."""
    resident_mib = models.IntegerField(_("resident memory in MiB"), null=True)
    """As of the last heartbeat. None if the operating system does not say it."""

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)
        # A heartbeat changes none of these columns, so it still updates the row in place.
        indexes = [
            models.Index(
                "release",
                "version",
                "started_at",
                name="pgqueue_worker_release",
                condition=Q(supervisor_pid__isnull=False),
            )
        ]
        permissions = [("stop_worker", "Can stop a worker"), ("view_stack", "Can view the stacks of running jobs")]
        constraints = [
            models.CheckConstraint(
                condition=are_instants("started_at", "last_heartbeat_at", "lease_expires_at", "stopped_at"),
                name="pgqueue_worker_instants",
            ),
            models.CheckConstraint(
                condition=Q(id__lt=MOST_ID) & Q(concurrency__gte=0),
                name="pgqueue_worker_numbers",
            ),
        ]

    def __str__(self) -> str:
        return f"{in_line(self.hostname)}:{self.pid}"


class WorkerRequest(models.Model):
    """A request of an operator to one worker process, and its answer. Removed after a day."""

    worker_id = models.BigIntegerField(_("worker"))
    kind = models.CharField(_("kind"), max_length=5, choices=[(kind.value, kind.value) for kind in RequestKind])
    execution_id = models.BigIntegerField(_("execution"), db_default=0)
    """The running execution whose stack is requested. 0: all of the worker."""
    requested_at = InstantField(_("requested at"), db_default=Now())
    requested_by = models.CharField(_("requested by"), max_length=150, db_default="", blank=True)
    answered_at = InstantField(_("answered at"), null=True)
    answer = models.TextField(_("answer"), db_default="", blank=True)

    class Meta:
        db_table = "pgqueue_worker_request"
        verbose_name = _("request to a worker")
        verbose_name_plural = _("requests to workers")
        default_permissions = ()
        indexes = [models.Index("worker_id", "id", name="pgqueue_worker_request_worker")]
        constraints = [
            models.CheckConstraint(
                condition=are_instants("requested_at", "answered_at"), name="pgqueue_worker_request_instants"
            ),
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_worker_request_numbers"),
            models.UniqueConstraint(
                fields=["worker_id", "kind", "execution_id"],
                condition=models.Q(answered_at__isnull=True),
                name="pgqueue_worker_request_open",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} #{self.worker_id}"
