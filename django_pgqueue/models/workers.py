"""The Django model of workers, which the admin shows. The id of a worker identifies the owner of a lease."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField


class Worker(models.Model):
    """A record of one start of a worker process, for the admin and for monitoring. Leases belong to its id."""

    hostname = models.CharField(_("host"), max_length=255)
    pid = models.IntegerField(_("process id"))
    version = models.CharField(_("version"), max_length=50)
    queue_names = models.TextField(_("queues"), db_default="")
    concurrency = models.IntegerField(_("concurrency"))
    started_at = InstantField(_("started at"), db_default=Now())
    last_heartbeat_at = InstantField(_("last heartbeat at"), db_default=Now())
    stopped_at = InstantField(_("stopped at"), null=True)

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.hostname}:{self.pid}"
