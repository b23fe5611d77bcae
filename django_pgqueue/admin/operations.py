"""Give operations on jobs and on schedules their common parts: a permission, and a URL for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseNotAllowed
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_pgqueue.acts import OperatorAct

from .readonly import ReadOnlyAdmin


@dataclass(frozen=True)
class Operation:
    """An act as the admin offers it. `name` is part of the URL; `done` is the message, by number of rows."""

    name: str
    act: OperatorAct
    done: Any

    @property
    def label(self) -> Promise | str:
        return self.act.label

    def is_allowed(self, request: HttpRequest) -> bool:
        """Return whether the user has the permission for it and may view the rows."""
        return self.act.is_allowed(request.user)


def selected_action(description: Any, operation: Operation, permission: str) -> Any:
    """Return an admin action that runs an operation on the selected rows."""
    decorate = admin.action(description=description, permissions=[permission])
    return decorate(lambda self, request, queryset: self.act_on_selected(request, operation, queryset))


class OperationsAdmin(ReadOnlyAdmin):
    """A list whose rows have operations. A subclass implements the three methods that raise an error here."""

    operations: Sequence[Operation] = ()

    def act_on_selected(self, request: HttpRequest, operation: Any, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Run an operation on the selected rows, and return a page that asks for confirmation if it needs one."""
        raise NotImplementedError

    def run_operation(self, request: HttpRequest, object_id: int, operation: Any) -> HttpResponseBase:
        """Run an operation on one row, then show its page."""
        raise NotImplementedError

    def shown_fields(self, obj: Any) -> SafeString:
        """Return hidden fields with what a row shows; see `shown`."""
        raise NotImplementedError

    def act_view(self, request: HttpRequest, object_id: int, operation: Operation) -> HttpResponseBase:
        """Run an operation on one row. Only POST is allowed."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        return self.run_operation(request, object_id, operation)

    def get_urls(self) -> list[URLPattern]:
        """Add one URL for each operation on one row."""
        view, model_name = self.admin_site.admin_view(self.act_view), self.opts.model_name
        own = [
            path(f"<int:object_id>/{each.name}/", view, {"operation": each}, name=f"pgqueue_{model_name}_{each.name}")
            for each in self.operations
        ]
        return own + super().get_urls()

    def action_checkbox(self, obj: Any) -> SafeString:
        """Return Django's checkbox and hidden fields with what this row shows."""
        return format_html("{}{}", super().action_checkbox(obj), self.shown_fields(obj))
