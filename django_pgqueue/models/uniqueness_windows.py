"""The Django model of uniqueness windows: unique keys that are taken for a period, whatever their jobs' state."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField, are_instants


class UniquenessWindow(models.Model):
    """A uniqueness window: no other job can take the key before `ends_at`. The job `job_id` took it last.

    It has its own table because it outlives the job's row: with a retention of 0, the job's success removes that row.
    """

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    task_name = models.CharField(_("task"), max_length=100, db_collation="C")
    unique_key = models.CharField(_("unique key"), max_length=200, db_collation="C")
    ends_at = InstantField(_("ends at"))

    class Meta:
        db_table = "pgqueue_uniqueness_window"
        verbose_name = _("uniqueness window")
        verbose_name_plural = _("uniqueness windows")
        default_permissions = ()
        indexes = [models.Index("ends_at", name="pgqueue_uniqueness_window_ends")]
        constraints = [
            models.CheckConstraint(condition=are_instants("ends_at"), name="pgqueue_uniqueness_window_instants"),
            models.UniqueConstraint(fields=["task_name", "unique_key"], name="pgqueue_uniqueness_window_key"),
        ]

    def __str__(self) -> str:
        return f"{self.task_name} {self.unique_key}"
