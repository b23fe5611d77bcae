"""What all lists here have in common: nothing is edited, and nothing is counted that need not be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.contrib import admin
from django.db import router
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.text import capfirst

from .paginator import BoundedPaginator

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin  # not generic at run time


LOOKUPS: Final = frozenset({"id", "id__exact", "id__in", "pk", "pk__exact", "pk__in"})
"""Conditions that a URL may name: `?arguments__icontains=` would read every row."""


class ReadOnlyAdmin(ModelAdmin):
    """A list to look at, which works however many rows there are."""

    paginator = BoundedPaginator
    show_full_result_count = False  # else a second count, of the whole table
    show_facets = admin.ShowFacets.NEVER  # a count per choice
    sortable_by = ()  # by columns without an index

    class Media:
        css = {"all": ["pgqueue/admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows of the database that acts write to: what a replica shows may be over."""
        rows: QuerySet[Any] = super().get_queryset(request)
        return rows.using(router.db_for_write(self.model))

    def lookup_allowed(self, lookup: str, value: str, request: Any = None) -> bool:
        """Refuse conditions in the URL that no index leads to; the filters of the lists have their own parameters."""
        return lookup in LOOKUPS or lookup in {getattr(each, "parameter_name", None) for each in self.list_filter}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, under a title that asks for no selection where no row leads to a page."""
        title = {} if self.list_display_links is not None else {"title": capfirst(self.opts.verbose_name_plural)}
        return super().changelist_view(request, {**title, **(extra_context or {})})

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: jobs come from `enqueue()`."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: only `lifecycle` writes."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Refuse: prune removes."""
        return False
