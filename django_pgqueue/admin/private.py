"""Show or hide the data of a job: its arguments, headers, result, unique key, progress message and errors.

The pages and lists of jobs and schedules call this module. It protects three rules:

* A user without the permission `view_arguments` sees none of these texts, because each of them can contain arguments.
* A sensitive argument, and an encoded value, is shown to no user.
* If this process does not know a task, it does not know which arguments are sensitive, so it shows none.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from django.db.models import QuerySet, Value
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue import registry
from django_pgqueue.envelope import ERASED, codec_of
from django_pgqueue.redaction import hides_result, redacted_call

from .formatting import pretty_json, shortened

PERMISSION: Final = "pgqueue.view_arguments"
TEXT_LIMIT: Final = 100_000
"""Characters shown of the arguments, the headers and the result. PostgreSQL cuts them; the rest is never sent."""
NO_PERMISSION: Final = gettext_lazy("Hidden: you do not have the permission “Can view arguments and results of jobs”.")
LIST_NOTE: Final = gettext_lazy(
    "Error messages are hidden, because they can contain arguments, and you do not have the permission “Can view "
    "arguments and results of jobs”."
)


class Shown(NamedTuple):
    """A value as a page shows it: text, a sentence that says why it or a part of it is hidden, or both."""

    text: str = ""
    note: str = ""


def may_view(request: HttpRequest) -> bool:
    """Return whether the user may see arguments, results and other texts from the application's data."""
    return request.user.has_perm(PERMISSION)


def with_permission(queryset: QuerySet[Any], request: HttpRequest) -> QuerySet[Any]:
    """Annotate rows with whether the user may see their texts, because columns do not get the request."""
    annotated: QuerySet[Any] = queryset.annotate(may_view_arguments=Value(may_view(request)))
    return annotated


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
    if text is None:
        return None
    if reason := _hidden_because(row, text):
        return Shown(note=reason)
    task = registry.get(row.task_name)
    if task is None or hides_result(task):
        return Shown(note=_("Hidden: the task marks its result as sensitive."))
    return Shown(text=pretty_json(text))


def shown_arguments(row: Any, text: str) -> Shown:
    """Return the arguments of a job or a schedule, without the sensitive ones."""
    if reason := _hidden_because(row, text):
        return Shown(note=reason)
    task = registry.get(row.task_name)
    if task is None or not task.sensitive:
        return Shown(text=pretty_json(text))
    try:
        args, kwargs = redacted_call(task, *_args_and_kwargs(json.loads(text)))
        shown = pretty_json(json.dumps({"args": args, "kwargs": kwargs}, ensure_ascii=False))
    except (ValueError, RecursionError):  # the text was cut, or the row was written by hand
        return Shown(note=_("Hidden: the task has sensitive arguments, and this page cannot separate them."))
    return Shown(text=shown, note=_("The task marks some arguments as sensitive. They are hidden."))


def _args_and_kwargs(call: Any) -> tuple[list[Any], dict[str, Any]]:
    if isinstance(call, dict) and call.keys() == {"args", "kwargs"}:
        args, kwargs = call["args"], call["kwargs"]
        if isinstance(args, list) and isinstance(kwargs, dict):
            return args, kwargs
    raise ValueError("these are not the arguments of a call")


def _hidden_because(row: Any, text: str) -> str:
    """Return why a value of a row is hidden as a whole, "" if it is not."""
    if not is_visible(row):
        return str(NO_PERMISSION)
    if codec := codec_of(text):
        if codec == ERASED:
            return _("Erased.")
        return _("Encoded by “%(codec)s”.") % {"codec": shortened(codec)}
    if registry.get(row.task_name) is None:
        return _("Hidden: this process does not know the task, so it does not know which values are sensitive.")
    return ""


def as_html(shown: Shown) -> SafeString:
    """Return a value for a read-only field."""
    note = format_html('<p class="pgqueue-quiet">{}</p>', shown.note) if shown.note else ""
    text = format_html('<pre class="pgqueue-text">{}</pre>', shown.text) if shown.text else ""
    return format_html("{}{}", note, text)
