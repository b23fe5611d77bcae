"""The view of an act: which methods it takes, who may run it, and on which admin site it is.

Each URL that changes something is made by `act_view()`, so no such URL lacks the check of the permissions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from django.contrib.admin import AdminSite
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponseBase
from django.utils import translation
from django.views.decorators.http import require_http_methods

from django_pgqueue.acts import OperatorAct
from django_pgqueue.admin import databases
from django_pgqueue.stats.causes.current import forget

BUTTON: Final = ("POST",)
READING: Final = ("GET", "HEAD")
FORM: Final = ("GET", "HEAD", "POST")
"""The methods of an act that has a page of its own, with a form or a question."""


def check(request: HttpRequest, act: OperatorAct | None) -> None:
    """Raise `PermissionDenied` if the user may not do an act. None stands for an act that does not exist."""
    if act is None or not act.is_allowed(request.user):
        raise PermissionDenied


def act_view(
    site: AdminSite, act: OperatorAct | None, view: Callable[..., Any], methods: Sequence[str] = BUTTON
) -> Callable[..., HttpResponseBase]:
    """Return the view of an act for a URL. Without an act, `view` checks the permission of the act in the form."""

    @require_http_methods(methods)
    def checked(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if act is not None:
            check(request, act)
        request.current_app = site.name
        answer: HttpResponseBase = view(request, *args, **kwargs)
        forget_counts(request)
        return answer

    return site.admin_view(checked)


def forget_counts(request: HttpRequest) -> None:
    """Let the next page count anew if the request may have changed something, at once and after its commit."""
    if request.method == "POST":
        forget()
        transaction.on_commit(forget, using=databases.chosen(request))


def log_change(request: HttpRequest, rows: Model | Iterable[Model] | None, message: Any, flag: int = CHANGE) -> None:
    """Write an entry into the history of a row or of each of some rows. It never contains a value of an argument.

    A lazy message is written in English, like all others: not all who read it have the language of who acts.
    """
    entries = [rows] if isinstance(rows, Model) else list(rows or ())
    user_id = cast(int, request.user.pk)  # not None: anonymous users have no permission to get here
    with translation.override("en"):
        LogEntry.objects.log_actions(user_id, entries, flag, str(message))
