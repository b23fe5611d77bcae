"""The Django model of the state of limit keys."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import InstantField, are_instants


class LimitState(models.Model):
    """How much the starts of jobs have used of the rate of a limit key, or how long the key is held.

    Of the rows without `held_until`, the one with the highest id counts. A claim inserts a row and deletes the one
    before. An update would leave dead versions of one row, and while a transaction holds an old snapshot each claim
    would walk over all of them.

    Each row with `held_until` is a hold, and the longest one counts. Holds are rows of their own, because completions
    insert them without the lock of the key. Claims, which hold this lock, never replace them.
    """

    id = models.BigAutoField(primary_key=True)
    limit_key = models.CharField(_("limit key"), max_length=200, db_collation="C")
    full_at = InstantField(_("full at"))
    """When all tokens of the key will have come back. In a hold: when it ends."""
    held_until = InstantField(_("held until"), null=True)
    """No job with the key starts before this time, because a task raised `Throttled`."""

    class Meta:
        db_table = "pgqueue_limit_state"
        verbose_name = _("state of a limit")
        verbose_name_plural = _("states of limits")
        default_permissions = ()
        indexes = [
            models.Index(
                "limit_key", "id", name="pgqueue_limit_state_key", condition=models.Q(held_until__isnull=True)
            ),
            models.Index(
                "limit_key", "held_until", name="pgqueue_limit_state_held", condition=models.Q(held_until__isnull=False)
            ),
        ]
        constraints = [
            # Claims subtract the time of the database from both.
            models.CheckConstraint(
                name="pgqueue_limit_state_instants", condition=are_instants("full_at", "held_until")
            ),
        ]

    def __str__(self) -> str:
        return self.limit_key
