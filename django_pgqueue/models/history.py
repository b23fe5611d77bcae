"""The Django models of archived jobs, and of the audit of acts on many jobs at once."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField, PlainJSONField


class ArchivedJob(models.Model):
    """A finished job that `pgqueue archive` has moved here, with its executions. No worker reads or deletes it.

    A job can be here twice if ids were assigned again after a flush, so the row has an id of its own.
    """

    job_id = models.BigIntegerField(_("job"))
    task_name = models.CharField(_("task"), max_length=100, db_collation="C")
    queue_name = models.CharField(_("queue"), max_length=100, db_collation="C")
    state = models.CharField(_("state"), max_length=12)
    enqueued_at = InstantField(_("enqueued at"))
    finished_at = InstantField(_("finished at"))
    archived_at = InstantField(_("archived at"), db_default=Now())
    document = PlainJSONField(_("document"))
    """All columns of the job, and its executions as a list, each with its kept log lines.

    It is the same JSON as a line of an archive file.
    """

    class Meta:
        db_table = "pgqueue_archived_job"
        verbose_name = _("archived job")
        verbose_name_plural = _("archived jobs")
        default_permissions = ()
        indexes = [
            models.Index("job_id", name="pgqueue_archived_job_job"),
            models.Index("task_name", "finished_at", name="pgqueue_archived_job_task"),
            models.Index("finished_at", name="pgqueue_archived_job_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.task_name} #{self.job_id}"


class AuditEntry(models.Model):
    """An act of an operator or a program on many jobs at once: who, when, which jobs, and how many."""

    action = models.CharField(_("action"), max_length=50)
    done_by = models.CharField(_("by"), max_length=150, db_default="", blank=True)
    reason = models.TextField(_("reason"), db_default="", blank=True)
    began_at = InstantField(_("began at"), db_default=Now())
    ended_at = InstantField(_("ended at"), null=True)
    """None: it is under way, or was interrupted."""
    filter = PlainJSONField(_("filter"))
    """Which jobs were chosen, and what was done to them. It never contains arguments or results."""
    job_count = models.BigIntegerField(_("jobs"), db_default=0)
    """Number of jobs changed so far. Each batch adds its jobs in its own transaction."""

    class Meta:
        db_table = "pgqueue_audit"
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit entries")
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.action} #{self.pk}"
