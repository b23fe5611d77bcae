"""The list of remote tokens in Django's admin, and the action that revokes them.

Tokens are created by `manage.py pgqueue remote-token create`, because a page could be stored by a browser or a proxy.
The list does not read the digests.
"""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_pgqueue.admin import databases
from django_pgqueue.admin.act_view import log_change
from django_pgqueue.admin.formatting import badge, full_date, moment, moment_ago, seen_at, visible
from django_pgqueue.admin.readonly import ListOnlyAdmin, column
from django_pgqueue.lifecycle import remote_tokens

from .machine_tokens import state_of
from .models import RemoteToken

REVOKE: Final = "pgqueue_remote.revoke_remotetoken"
BADGES: Final[dict[str, tuple[str, Any]]] = {
    "valid": ("running", _("valid")),
    "expired": ("cancelled", _("expired")),
    "revoked": ("dead", _("revoked")),
}
"""The colour and the word for each state."""


@admin.register(RemoteToken)
class RemoteTokenAdmin(ListOnlyAdmin):
    """Tokens, latest first."""

    list_display = ["state", "name_shown", "queues", "tasks", "created", "by", "expires", "used", "revoked"]
    ordering = ["-pk"]
    actions = ["revoke_selected"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).defer("digest")
        return rows

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may revoke tokens."""
        return request.user.has_perm(REVOKE)

    @admin.action(description=_("Revoke selected"), permissions=["revoke"])
    def revoke_selected(self, request: HttpRequest, queryset: QuerySet[RemoteToken]) -> None:
        """Revoke the selected tokens. The next request with one of them is refused."""
        alias = databases.chosen(request)
        for token in queryset:
            by = request.user.get_username()
            if remote_tokens.revoke_remote_token(connections[alias], token.pk, revoked_by=by) is None:
                messages.warning(request, _("%(name)s was revoked before.") % {"name": visible(token.name)})
                continue
            log_change(request, token, "Revoked.")
            messages.success(request, _("%(name)s is revoked.") % {"name": visible(token.name)})

    # ---------------------------------------------------------------- columns

    @admin.display(description=_("state"))
    def state(self, token: RemoteToken) -> SafeString:
        """Return whether the token is valid."""
        return badge(*BADGES[state_of(token, seen_at(token))])

    name_shown = column(_("name"), lambda token: visible(token.name))
    queues = column(_("queues"), lambda token: visible(", ".join(map(str, token.queue_names))) or _("all"))
    tasks = column(_("tasks"), lambda token: visible(", ".join(map(str, token.task_names))) or _("all"))
    created = column(_("created"), lambda token: moment_ago(token.created_at, token))
    by = column(_("by"), lambda token: visible(token.created_by))
    expires = column(_("expires"), lambda token: moment(token.expires_at) or _("never"))
    used = column(_("last used"), lambda token: moment_ago(token.used_at, token) if token.used_at else _("never"))
    revoked = column(
        _("revoked"),
        lambda token: f"{full_date(token.revoked_at)} {visible(token.revoked_by)}" if token.revoked_at else "–",
    )
