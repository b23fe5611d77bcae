"""Give operations on jobs and on schedules their common parts: a permission, and a URL for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import URLPattern, path
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_pgqueue.acts import OperatorAct

from .act_view import act_view, check
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

    @admin.action(description=description, permissions=[permission])
    def act(self: OperationsAdmin, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        check(request, operation.act)
        return self.act_on_selected(request, operation, queryset)

    return act


class OperationsAdmin(ReadOnlyAdmin):
    """A list whose rows have operations. A subclass implements the two methods that raise an error here."""

    operations: Sequence[Operation] = ()
    shown_fields: Callable[[Any], SafeString]
    """Returns hidden fields with what a row shows; see `shown`."""

    def act_on_selected(self, request: HttpRequest, operation: Any, queryset: QuerySet[Any]) -> HttpResponse | None:
        """Run an operation on the selected rows, and return a page that asks for confirmation if it needs one."""
        raise NotImplementedError

    def run_operation(self, request: HttpRequest, object_id: int, operation: Any) -> HttpResponseBase:
        """Run an operation on one row, then show its page."""
        raise NotImplementedError

    def get_urls(self) -> list[URLPattern]:
        """Add one URL for each operation on one row."""
        own = []
        for each in self.operations:
            view = act_view(self.admin_site, each.act, partial(self.run_operation, operation=each))
            name = f"pgqueue_{self.opts.model_name}_{each.name}"
            own.append(path(f"<int:object_id>/{each.name}/", view, name=name))
        return own + super().get_urls()

    def action_checkbox(self, obj: Any) -> SafeString:
        """Return Django's checkbox and hidden fields with what this row shows."""
        return format_html("{}{}", super().action_checkbox(obj), self.shown_fields(obj))
