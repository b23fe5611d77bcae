"""The configuration of the app of remote workers. A project without it has no table of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_pgqueue.management.subcommands.subcommand import Subcommand


class RemoteConfig(AppConfig):
    """Add the table of tokens, its page in the admin, and the subcommands of `manage.py pgqueue`."""

    name = "django_pgqueue.contrib.remote"
    label = "pgqueue_remote"
    verbose_name = _("Remote workers")
    default_auto_field = "django.db.models.BigAutoField"

    def pgqueue_subcommands(self) -> tuple[Subcommand, ...]:
        """Return the subcommands that this app adds to `manage.py pgqueue`."""
        from .commands import REMOTE_TOKEN, REMOTE_WORKER  # here, because it imports models

        return (REMOTE_WORKER, REMOTE_TOKEN)
