"""The Django model of uniqueness windows: unique keys that are taken for a period, whatever their jobs' state."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField


class Hold(models.Model):
    """A uniqueness window: no other job can take the key before `held_until`. `job_id` took it last.

    It has its own table because it outlives the job's row: with a retention of 0, the job's success removes that row.
    """

    job_id = models.BigIntegerField(_("job"), primary_key=True)
    task_name = models.CharField(_("task"), max_length=100, db_collation="C")
    unique_key = models.CharField(_("unique key"), max_length=200, db_collation="C")
    held_until = InstantField(_("held until"))

    class Meta:
        verbose_name = _("hold")
        verbose_name_plural = _("holds")
        default_permissions = ()
        indexes = [models.Index("held_until", name="pgqueue_hold_over")]
        constraints = [models.UniqueConstraint(fields=["task_name", "unique_key"], name="pgqueue_hold_of")]

    def __str__(self) -> str:
        return f"{self.task_name} {self.unique_key}"
