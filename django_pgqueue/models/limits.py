"""The Django models of limits: the state of limit keys, and the overrides of operators."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, InstantField, are_instants
from django_pgqueue.declared.limits import MAX_NUMBER, without_value


class LimitState(models.Model):
    """How much the starts of jobs have used of the rate of a limit key, or how long the key is held.

    Of the rows without `held_until`, the one with the highest id counts. A claim inserts a row and deletes the one
    before. An update would leave dead versions of one row, and while a transaction holds an old snapshot each claim
    would walk over all of them.

    Each row with `held_until` is a hold, and the longest one counts. Holds are rows of their own, because completions
    insert them without the lock of the key. Claims, which hold this lock, never replace holds.
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
            models.Index("limit_key", "id", name="pgqueue_limit_state_key", condition=Q(held_until__isnull=True)),
            models.Index(
                "limit_key", "held_until", name="pgqueue_limit_state_held", condition=Q(held_until__isnull=False)
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_limit_state_numbers"),
            # Claims subtract the time of the database from both.
            models.CheckConstraint(
                name="pgqueue_limit_state_instants", condition=are_instants("full_at", "held_until")
            ),
        ]

    def __str__(self) -> str:
        return without_value(self.limit_key)


class LimitOverride(models.Model):
    """Values that an operator has set for a limit or for one of its keys, until a time or until they are removed.

    `django_pgqueue.control.limits` writes overrides, and the claims of workers read them.
    """

    limit_key = models.CharField(_("limit key"), max_length=200, db_collation="C")
    """A limit's name, for all its keys, or one limit key, as in `Job.limit_key`."""
    concurrency = models.IntegerField(_("concurrency"), null=True)
    """None, here and in the next three: as without this override."""
    rate = models.CharField(_("rate"), max_length=20, null=True)  # noqa: DJ001 -- NULL is "as in the code"
    burst = models.IntegerField(_("burst"), null=True)
    share = models.IntegerField(_("share"), null=True)
    valid_until = InstantField(_("until"), null=True)
    """None: until an operator removes it."""
    changed_at = InstantField(_("changed at"), db_default=Now())
    changed_by = models.CharField(_("by"), max_length=150, db_default="", blank=True)
    reason = models.TextField(_("reason"), db_default="", blank=True)

    class Meta:
        db_table = "pgqueue_limit_override"
        verbose_name = _("override of a limit")
        verbose_name_plural = _("overrides of limits")
        default_permissions = ("view",)
        permissions = [("change_limits", _("Can override limits and end their holds"))]
        constraints = [
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_limit_override_ids"),
            models.UniqueConstraint(fields=["limit_key"], name="pgqueue_limit_override_key"),
            # Claims compute with these values. An invalid one would make each claim of the key fail.
            models.CheckConstraint(
                name="pgqueue_limit_override_numbers",
                condition=Q(concurrency__range=(1, MAX_NUMBER))
                & Q(burst__range=(1, MAX_NUMBER))
                & Q(share__range=(1, MAX_NUMBER)),
            ),
            models.CheckConstraint(
                name="pgqueue_limit_override_rate",
                condition=Q(rate__regex=r"^0*[1-9][0-9]{0,8}/(0*[1-9][0-9]{0,5})?[smhd]$"),
            ),
            models.CheckConstraint(
                name="pgqueue_limit_override_values",
                condition=Q(concurrency__isnull=False)
                | Q(rate__isnull=False)
                | Q(burst__isnull=False)
                | Q(share__isnull=False),
            ),
            models.CheckConstraint(
                name="pgqueue_limit_override_instants", condition=are_instants("valid_until", "changed_at")
            ),
        ]

    def __str__(self) -> str:
        return without_value(self.limit_key)
