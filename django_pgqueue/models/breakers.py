"""The Django models of circuit breakers: the open breakers, and the counts of attempts from which they open."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, InstantField, are_instants, are_numbers
from django_pgqueue.declared.limits import without_value


class OpenBreaker(models.Model):
    """An open circuit breaker of a limit key. Its jobs are paused, or one at a time probes the key.

    The pause is a row of `Pause`, which ends first. This row stays until a probe succeeds.
    """

    limit_key = models.CharField(_("limit key"), max_length=200, db_collation="C")
    opened_at = InstantField(_("opened at"), db_default=Now())
    """When it opened first. A probe that fails does not change this."""
    after_execution_id = models.BigIntegerField(_("after execution"))
    """Only executions with a higher id can close it or open it again. The others were claimed before."""
    probes_failed = models.IntegerField(_("failed probes"), db_default=0)
    probed_at = InstantField(_("probed at"), null=True)
    """When the latest probe failed."""

    class Meta:
        db_table = "pgqueue_open_breaker"
        verbose_name = _("open circuit breaker")
        verbose_name_plural = _("open circuit breakers")
        default_permissions = ()
        constraints = [
            models.CheckConstraint(
                condition=are_numbers("probes_failed") & Q(id__lt=MOST_ID), name="pgqueue_open_breaker_numbers"
            ),
            models.UniqueConstraint(fields=["limit_key"], name="pgqueue_open_breaker_key"),
            models.CheckConstraint(
                name="pgqueue_open_breaker_instants", condition=are_instants("opened_at", "probed_at")
            ),
        ]

    def __str__(self) -> str:
        return without_value(self.limit_key)


class BreakerCount(models.Model):
    """How many attempts of a limit key ended in one process in about a second. Rows never change."""

    id = models.BigAutoField(primary_key=True)
    limit_key = models.CharField(_("limit key"), max_length=200, db_collation="C")
    ended_at = InstantField(_("ended at"))
    succeeded = models.IntegerField(_("succeeded"))
    failed = models.IntegerField(_("failed"))

    class Meta:
        db_table = "pgqueue_breaker_count"
        verbose_name = _("count of a circuit breaker")
        verbose_name_plural = _("counts of circuit breakers")
        default_permissions = ()
        indexes = [models.Index("limit_key", "ended_at", name="pgqueue_breaker_count_key")]
        constraints = [
            models.CheckConstraint(
                condition=are_numbers("succeeded", "failed") & Q(id__lt=MOST_ID), name="pgqueue_breaker_count_numbers"
            ),
            models.CheckConstraint(name="pgqueue_breaker_count_instants", condition=are_instants("ended_at")),
        ]

    def __str__(self) -> str:
        return without_value(self.limit_key)
