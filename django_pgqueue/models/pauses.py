"""The Django model of pauses. The admin shows them, `lifecycle` writes them, and workers read them."""

from __future__ import annotations

from typing import Final

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, InstantField, are_instants
from django_pgqueue.declared.limits import without_value
from django_pgqueue.ground.visible_text import in_line
from django_pgqueue.states import Pausable

KINDS: Final = [
    (Pausable.QUEUE.value, _("queue")),
    (Pausable.TASK.value, _("task")),
    (Pausable.LIMIT.value, _("limit")),
]


class Pause(models.Model):
    """A paused queue, task, limit or limit key: no worker claims its jobs.

    `django_pgqueue.control.queues` creates and removes pauses.
    """

    Kind = Pausable

    kind = models.CharField(_("kind"), max_length=5, choices=KINDS)
    name = models.CharField(_("name"), max_length=200, db_collation="C")
    paused_at = InstantField(_("paused at"), db_default=Now())
    paused_until = InstantField(_("until"), null=True, blank=True)
    paused_by = models.CharField(_("by"), max_length=150, db_default="", blank=True)
    reason = models.TextField(_("reason"), db_default="", blank=True)

    class Meta:
        verbose_name = _("pause")
        verbose_name_plural = _("pauses")
        default_permissions = ("view",)
        permissions = [("pause_queue", _("Can pause and resume queues, tasks and limits"))]
        constraints = [
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_pause_numbers"),
            models.UniqueConstraint(fields=["kind", "name"], name="pgqueue_pause_name"),
            models.CheckConstraint(name="pgqueue_pause_kind", condition=Q(kind__in=[kind.value for kind in Pausable])),
            # NULL in `paused_until` means "until it is resumed".
            models.CheckConstraint(name="pgqueue_pause_instants", condition=are_instants("paused_at", "paused_until")),
        ]

    def __str__(self) -> str:
        """Return the target. The history of the admin has this text, so it leaves out the value of a limit key."""
        name = without_value(self.name) if self.kind == Pausable.LIMIT else self.name
        return in_line(f"{self.get_kind_display()} {name}")
