"""The Django model of the tokens of remote workers. The admin and `manage.py pgqueue` read them by it.

`lifecycle.remote_tokens` writes tokens, and checks those of requests.
"""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, InstantField, IsJson, are_instants
from django_pgqueue.ground.visible_text import in_line


class RemoteToken(models.Model):
    """A bearer token of remote workers. The secret itself is not stored."""

    name = models.CharField(_("name"), max_length=100)
    digest = models.BinaryField(_("digest"), max_length=32, unique=True)
    """SHA-256 of the secret. The secret has 256 random bits, so nobody can guess it from the digest. A slow hash for
    passwords would only make each request slow."""
    queue_names = models.JSONField(_("queues"))
    """The queues that it gives access to. An empty list: all."""
    task_names = models.JSONField(_("tasks"))
    """The tasks that it gives access to. An empty list: all."""
    requests_per_minute = models.IntegerField(_("requests per minute"))
    created_at = InstantField(_("created at"))
    created_by = models.CharField(_("created by"), max_length=150)
    expires_at = InstantField(_("expires at"), null=True)
    used_at = InstantField(_("last used at"), null=True)
    """Updated once a minute at most."""
    revoked_at = InstantField(_("revoked at"), null=True)
    revoked_by = models.CharField(_("revoked by"), max_length=150)

    objects: ClassVar[models.Manager[RemoteToken]] = models.Manager()

    class Meta:
        db_table = "pgqueue_remote_token"
        verbose_name = _("remote token")
        verbose_name_plural = _("remote tokens")
        default_permissions = ("view",)
        permissions = [("revoke_remotetoken", "Can revoke a remote token")]
        constraints = [
            models.UniqueConstraint(fields=["name"], name="pgqueue_remote_token_name", condition=Q(revoked_at=None)),
            models.CheckConstraint(
                name="pgqueue_remote_token_instants",
                condition=are_instants("created_at", "expires_at", "used_at", "revoked_at"),
            ),
            models.CheckConstraint(
                name="pgqueue_remote_token_names",
                condition=Q(
                    IsJson("queue_names", "array", "jsonb_typeof"),
                    IsJson("task_names", "array", "jsonb_typeof"),
                    id__lt=MOST_ID,
                ),
            ),
        ]

    def __str__(self) -> str:
        return in_line(self.name)
