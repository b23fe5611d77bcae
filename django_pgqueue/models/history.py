"""The Django model of archived jobs."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, InstantField, PlainJSONField, are_instants


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
        constraints = [
            models.CheckConstraint(
                condition=are_instants("enqueued_at", "finished_at", "archived_at"),
                name="pgqueue_archived_job_instants",
            ),
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_archived_job_numbers"),
        ]

    def __str__(self) -> str:
        return f"{self.task_name} #{self.job_id}"
