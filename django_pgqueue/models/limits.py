"""The Django model of the state of limit keys."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField, are_instants


class LimitState(models.Model):
    """How much the starts of jobs have used of the rate of a limit key. The row with the highest id counts.

    A claim inserts a row and deletes the one before. An update would leave dead versions of one row, and while a
    transaction holds an old snapshot each claim would walk over all of them.
    """

    id = models.BigAutoField(primary_key=True)
    limit_key = models.CharField(_("limit key"), max_length=200, db_collation="C")
    full_at = InstantField(_("full at"))
    """When all tokens of the key will have come back."""
    held_until = InstantField(_("held until"), null=True)
    """No job with the key starts before this time, because a task raised `Throttled`."""

    class Meta:
        db_table = "pgqueue_limit_state"
        verbose_name = _("state of a limit")
        verbose_name_plural = _("states of limits")
        default_permissions = ()
        indexes = [models.Index("limit_key", "id", name="pgqueue_limit_state_key")]
        constraints = [
            # Claims subtract the time of the database from both.
            models.CheckConstraint(
                name="pgqueue_limit_state_instants", condition=are_instants("full_at", "held_until")
            ),
        ]

    def __str__(self) -> str:
        return self.limit_key
