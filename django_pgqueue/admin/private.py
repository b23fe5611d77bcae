"""Show or hide the data of a job: its arguments, headers, result, keys, progress message and errors.

The pages and lists of jobs and schedules call this module. It protects three rules:

* A user without the permission `view_arguments` sees none of these texts, because each of them can contain arguments.
* A sensitive argument, and an encoded value, is shown to no user (see `display`).
* If this process does not know a task, it does not know which arguments are sensitive, so it shows none.
"""

from __future__ import annotations

from typing import Any, Final

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet, Value
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext_lazy

from django_pgqueue import display
from django_pgqueue.declared.limits import has_value, without_value
from django_pgqueue.display import Shown as Shown
from django_pgqueue.display import pretty_json

PERMISSION: Final = "pgqueue.view_arguments"
TEXT_LIMIT: Final = 100_000
"""Characters shown of the arguments, the headers and the result. PostgreSQL cuts them; the rest is never sent."""
PERMISSION_NAME: Final = gettext_lazy("Can view arguments and results of jobs")
NO_PERMISSION: Final = format_lazy(
    gettext_lazy("Hidden: you do not have the permission “{name}”."), name=PERMISSION_NAME
)
LIST_NOTE: Final = format_lazy(
    gettext_lazy(
        "Error messages are hidden, because they can contain arguments, and you do not have the permission “{name}”."
    ),
    name=PERMISSION_NAME,
)
KEYS_NOTE: Final = format_lazy(
    gettext_lazy(
        "The keys of limits are hidden, because they are made of arguments, and you do not have the permission "
        "“{name}”."
    ),
    name=PERMISSION_NAME,
)


def may_view(request: HttpRequest) -> bool:
    """Return whether the user may see arguments, results and other texts from the application's data."""
    return request.user.has_perm(PERMISSION)


def with_permission(queryset: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
    """Annotate rows with whether the user may see their texts, because columns do not get the request."""
    annotated: QuerySet[Any] = queryset.annotate(may_view_arguments=Value(may_view(request)))
    return annotated


def may_view_key(request: HttpRequest, limit_key: str) -> bool:
    """Return whether the user may see a limit key, search for it and act on it. Its value is made of arguments.

    Everybody may see the name of a limit.
    """
    return not has_value(limit_key) or may_view(request)


def may_view_reason(request: HttpRequest, limit_key: Any, message: Any, search: Any = None) -> bool:
    """Return whether the user may see the reason of an act whose filter has these values.

    A person may repeat a limit key, a search key or an error message in the reason.
    """
    has_values = any(has_value(str(key or "")) for key in (limit_key, search))
    return may_view(request) or not (message or has_values)


def check_key(request: HttpRequest, limit_key: str) -> None:
    """Raise `PermissionDenied` if the user may not see a limit key. An answer would say whether it exists."""
    if not may_view_key(request, limit_key):
        raise PermissionDenied(str(NO_PERMISSION))


def shown_key(request: HttpRequest, limit_key: str) -> str:
    """Return a limit key as the user may see it."""
    return limit_key if may_view(request) else without_value(limit_key)


def is_visible(row: Any) -> bool:
    """Return whether the user may see the texts of a row. Without `with_permission()`, nobody may."""
    return vars(row).get("may_view_arguments") is True


def shown_headers(row: Any, text: str | None) -> Shown | None:
    """Return a job's headers, or None if it has none."""
    if text is None:
        return None
    return Shown(text=pretty_json(text)) if is_visible(row) else Shown(note=str(NO_PERMISSION))


def shown_result(row: Any, text: str | None) -> Shown | None:
    """Return a job's result, or None if it has none."""
    if text is None or is_visible(row) or display.is_erased(text):
        return display.shown_result(row.task_name, text)
    return Shown(note=str(NO_PERMISSION))


def shown_arguments(row: Any, text: str) -> Shown:
    """Return the arguments of a job or a schedule, without the sensitive ones."""
    if is_visible(row) or display.is_erased(text):
        return display.shown_arguments(row.task_name, text)
    return Shown(note=str(NO_PERMISSION))


def as_html(shown: Shown) -> SafeString:
    """Return a value for a read-only field."""
    note = format_html('<p class="pgqueue-quiet">{}</p>', shown.note) if shown.note else ""
    text = format_html('<pre class="pgqueue-text">{}</pre>', shown.text) if shown.text else ""
    return format_html("{}{}", note, text)
