"""Holds as a Django model: unique keys that are taken for a period, whatever has become of their jobs."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgqueue.fields import InstantField


class Hold(models.Model):
    """A unique key that no other job can take before `held_until`; `job_id` is the one that has taken it last.

    A row of its own, for it outlives the job's: with a retention of 0 that is gone with its success.
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
