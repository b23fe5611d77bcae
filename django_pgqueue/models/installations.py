"""The Django model of installations: which server, database and environment these tables belong to.

`lifecycle` writes it. Workers check it when they connect and at each heartbeat (`clone_guard`). A database normally has
one row. A restored dump brings the row of the database it was made from.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_pgqueue.db.fields import MOST_ID, InstantField, are_instants


class Installation(models.Model):
    """A server, a database and an environment whose workers have worked on these tables."""

    system_identifier = models.CharField(_("system identifier"), max_length=20, db_collation="C")
    """The server's identifier from `pg_control_system()`. Empty if the role may not read it."""
    database_oid = models.BigIntegerField(_("OID of the database"))
    environment = models.CharField(_("environment"), max_length=100, db_collation="C")
    """`PGQUEUE["ENVIRONMENT"]` of the workers."""
    adopted_at = InstantField(_("adopted at"), db_default=Now())
    adopted_by = models.CharField(_("adopted by"), max_length=150, db_default="")

    class Meta:
        verbose_name = _("installation")
        verbose_name_plural = _("installations")
        default_permissions = ()
        constraints = [
            models.CheckConstraint(condition=Q(id__lt=MOST_ID), name="pgqueue_installation_numbers"),
            models.UniqueConstraint(
                fields=["system_identifier", "database_oid", "environment"], name="pgqueue_installation_identity"
            ),
            models.CheckConstraint(name="pgqueue_installation_instants", condition=are_instants("adopted_at")),
        ]

    def __str__(self) -> str:
        return f"{self.environment or '(no environment)'} {self.system_identifier}/{self.database_oid}"
