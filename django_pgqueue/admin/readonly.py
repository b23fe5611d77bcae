"""The base class of all lists in this admin: read-only, and bounded however many rows a table has.

It turns off everything in Django's change list that would scan the table: the full count, facets, sorting by columns,
and conditions in the URL that no index supports. `BoundedPaginator` counts 10,000 rows at most.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Final, cast

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import BadRequest, PermissionDenied
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.text import capfirst

from django_pgqueue.admin import databases
from django_pgqueue.db.fields import statement_time
from django_pgqueue.display import number

from .act_view import forget_counts
from .list_filters import row_id_of
from .navigation import navigation

COUNT_LIMIT = 10_000
"""Rows that are counted and can be paged through at most. Beyond that, a filter helps more than page 101.

`count(*)` over a million jobs took 23 ms with everything in cache, and ten times that on a busy table. The count of a
subquery limited to 10,001 rows took 0.65 ms.
"""
LOOKUPS: Final = frozenset({"id", "id__exact", "id__in", "pk", "pk__exact", "pk__in"})
"""Conditions allowed in the URL. Others are refused, because `?arguments__icontains=` would read every row."""


class BoundedPaginator(Paginator):  # type: ignore[type-arg]  # not generic at run time
    """A paginator that counts at most `COUNT_LIMIT` rows. `is_bounded` is true if there are more."""

    count_limit = COUNT_LIMIT

    @cached_property
    def count(self) -> int:
        """Return the number of rows, or `COUNT_LIMIT` if there are more."""
        return min(self._counted, COUNT_LIMIT)

    @property
    def is_bounded(self) -> bool:
        """Whether there are more than `COUNT_LIMIT` rows."""
        return self._counted > COUNT_LIMIT

    @cached_property
    def _counted(self) -> int:
        rows = cast("QuerySet[Any]", self.object_list)
        return rows.order_by().values("pk")[: COUNT_LIMIT + 1].count()


class ShownCount(int):
    """The number of rows of a list. Django's templates show it as text, such as "10,000+" if there are more rows.

    With `USE_THOUSAND_SEPARATOR`, Django separates the digits of the text itself, so it gets digits only.
    """

    is_bounded = False

    @classmethod
    def of(cls, paginator: Any, count: int) -> ShownCount:
        """Return the count of a paginator."""
        found = cls(count)
        found.is_bounded = bool(getattr(paginator, "is_bounded", False))
        return found

    def __str__(self) -> str:
        if settings.USE_THOUSAND_SEPARATOR:
            return int.__repr__(self)
        return f"{number(int(self))}{'+' if self.is_bounded else ''}"


def column(description: Any, value: Callable[[Any], Any], **options: Any) -> Any:
    """Return a column for `list_display` that shows `value(row)`."""
    return admin.display(description=description, **options)(lambda admin, row: value(row))


def _parameters(list_filter: Any) -> tuple[str, ...]:
    """Return the names of the parameters of a filter: of one of this package's, or of one of Django's with one name."""
    return tuple(getattr(list_filter, "parameter_names", None) or (getattr(list_filter, "parameter_name", ""),))


class DatabaseChangeList(ChangeList):
    """A list whose links keep the chosen database. The parameter is no condition on rows."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Return no rows for a condition with NUL: no row can have it, and psycopg raises an error for it."""
        found: QuerySet[Any] = super().get_queryset(request, exclude_parameters)
        conditions = self.get_filters_params().values()
        return found.none() if any("\0" in text for texts in conditions for text in texts) else found

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.database_query = databases.query(request)
        super().__init__(request, *args, **kwargs)

    def get_filters_params(self, params: Any = None) -> Any:
        found = super().get_filters_params(params)
        return {name: value for name, value in found.items() if name != databases.PARAMETER}

    def url_for_result(self, result: Any) -> str:
        return f"{super().url_for_result(result)}{self.database_query}"

    def get_results(self, request: HttpRequest) -> None:
        """Read the rows of the page. The templates show their count as text."""
        super().get_results(request)
        self.result_count = ShownCount.of(self.paginator, self.result_count)

    @property
    def count_limit(self) -> str:
        """How many rows are counted at most."""
        return number(cast(Any, self.paginator).count_limit)

    def drop_columns_of_zeros(self) -> None:
        """Leave out the columns of the model's integers that are 0 in each row of this page."""
        rows = list(cast(Any, self.result_list))
        dropped = {
            name for name in cast(Any, self.model_admin).zero_columns if all(getattr(row, name) == 0 for row in rows)
        }
        self.list_display = [name for name in self.list_display if name not in dropped]


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    """A read-only list whose queries stay fast however many rows the table has."""

    change_list_template = "pgqueue/admin/change_list.html"
    object_history_template = "pgqueue/admin/history.html"
    paginator = BoundedPaginator
    show_full_result_count = False  # otherwise Django also counts the whole table
    show_facets = admin.ShowFacets.NEVER  # facets would run one count per choice of a filter
    zero_columns: tuple[str, ...] = ()
    """The columns that a page of the list leaves out if each of its rows has 0 there."""
    sortable_by = ()  # most columns have no index to sort by

    class Media:
        css = {"all": ["pgqueue/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return rows of the chosen database. It is never a replica, which may show an outdated state."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.using(databases.chosen(request))

    def changeform_view(self, request: HttpRequest, *args: Any, **named: Any) -> HttpResponse:
        """Answer as Django does. A saved row can change what the overview counts."""
        answer: HttpResponse = super().changeform_view(request, *args, **named)
        forget_counts(request)
        return answer

    def get_preserved_filters(self, request: HttpRequest) -> str:
        """Return the parameters of Django's own links and redirects. They keep the chosen database."""
        return databases.list_parameters(request, super().get_preserved_filters(request))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return DatabaseChangeList

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        """Allow only conditions that use an index, and the parameters of the list's own filters."""
        own = {name for each in self.list_filter for name in _parameters(each)}
        return lookup in LOOKUPS or lookup in own

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list. Its name is the title, in place of Django's "Select … to view"."""
        title = {"title": self.list_title(request)}
        answer = super().changelist_view(request, {**title, **self.navigation(request), **(extra_context or {})})
        forget_counts(request)
        return answer

    def list_title(self, request: HttpRequest) -> str:
        """Return the title of the list."""
        return capfirst(str(self.opts.verbose_name_plural))

    def response_action(
        self, request: HttpRequest, queryset: QuerySet[Any], *args: Any, **options: Any
    ) -> HttpResponse | None:
        """Run an action on the selected rows. Refuse ids that are no numbers, for which Django raises an error."""
        if any(row_id_of(text) is None for text in request.POST.getlist(ACTION_CHECKBOX_NAME)):
            raise BadRequest("the form selects rows by ids that are no numbers")
        answer: HttpResponse | None = super().response_action(request, queryset, *args, **options)
        return answer

    def add_view(
        self, request: HttpRequest, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the form of a list that has one below the navigation."""
        return super().add_view(request, form_url, {**self.navigation(request), **(extra_context or {})})

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show Django's log of a row below the navigation."""
        return super().history_view(request, object_id, {**self.navigation(request), **(extra_context or {})})

    def navigation(self, request: HttpRequest) -> dict[str, Any]:
        """Return what the navigation above the list and the pages of its rows needs."""
        return navigation(request, self.admin_site, f"{self.opts.model_name}_changelist")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False. Only `enqueue()` adds jobs."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False. Only `lifecycle` changes rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False. Only pruning removes rows."""
        return False


class ListOnlyAdmin(ReadOnlyAdmin):
    """A list that shows everything about its rows, so that they have no pages."""

    list_display_links = None

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows: QuerySet[Any] = super().get_queryset(request).annotate(seen_at=statement_time())
        return rows

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Redirect to the list."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_changelist"
        return HttpResponseRedirect(databases.link(request, reverse(name, current_app=self.admin_site.name)))
