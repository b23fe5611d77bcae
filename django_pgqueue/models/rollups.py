"""The Django model of the rollup: how many attempts ended in each minute.

Worker processes write it through `lifecycle`, and `stats` reads it.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_COUNT, MOST_ID, InstantField, NumbersField, are_instants, are_numbers

SPANS = ["part", "minute", "hour", "minute_total", "hour_total"]


class Rollup(models.Model):
    """The attempts of one queue, task and exception class that ended in one minute or hour.

    A worker process appends a row of the span `part` every 10 s. It never changes a row, so that no two processes wait
    for one another. Maintenance merges the parts of a minute into one row, and later the minutes of an hour.

    A row of the span `minute_total` or `hour_total` has the sums of all queues, tasks and exception classes; its names
    are empty. The parts and totals together count the same attempts as the parts, minutes and hours together.

    The waits and run times are histograms: for each bucket with a count, its number and the count (see `histogram`).
    Those of failed attempts are in the row without an exception class.
    """

    span = models.CharField(_("span"), max_length=12, choices=[(span, span) for span in SPANS])
    starts_at = InstantField(_("starts at"))
    queue_name = models.CharField(_("queue"), max_length=100)
    task_name = models.CharField(_("task"), max_length=100)
    exception_class = models.CharField(_("exception"), max_length=200, db_default="")
    succeeded = models.BigIntegerField(_("succeeded"), db_default=0)
    retried = models.BigIntegerField(_("retried"), db_default=0)
    dead = models.BigIntegerField(_("dead"), db_default=0)
    cancelled = models.BigIntegerField(_("cancelled"), db_default=0)
    released = models.BigIntegerField(_("released"), db_default=0)
    snoozed = models.BigIntegerField(_("snoozed"), db_default=0)
    crashed = models.BigIntegerField(_("crashed"), db_default=0)
    wait_seconds = models.FloatField(_("seconds waited"), db_default=0.0)
    run_seconds = models.FloatField(_("seconds run"), db_default=0.0)
    wait_buckets = NumbersField(_("buckets of waits"))
    wait_counts = NumbersField(_("counts of waits"))
    run_buckets = NumbersField(_("buckets of run times"))
    run_counts = NumbersField(_("counts of run times"))

    class Meta:
        verbose_name = _("rollup")
        verbose_name_plural = _("rollups")
        default_permissions = ()
        indexes = [models.Index("span", "starts_at", name="pgqueue_rollup_starts")]
        constraints = [
            models.CheckConstraint(name="pgqueue_rollup_span", condition=Q(span__in=SPANS)),
            models.CheckConstraint(condition=are_instants("starts_at"), name="pgqueue_rollup_instants"),
            models.CheckConstraint(
                condition=Q(id__lt=MOST_ID)
                & are_numbers(
                    "succeeded", "retried", "dead", "cancelled", "released", "snoozed", "crashed", most=MOST_COUNT
                )
                & are_numbers("wait_seconds", "run_seconds", least=-MOST_COUNT, most=MOST_COUNT),
                name="pgqueue_rollup_numbers",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.span} {self.starts_at} {self.task_name}"
