"""Documents in the admin: to look at, and to search as readers do."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from .models import Document

if TYPE_CHECKING:
    DocumentModelAdmin = admin.ModelAdmin[Document]
else:
    DocumentModelAdmin = admin.ModelAdmin


@admin.register(Document)
class DocumentAdmin(DocumentModelAdmin):
    """The library's list; its search is PostgreSQL's full-text search over what the jobs stored."""

    list_display = ["path", "title", "kind", "size", "lines", "words", "indexed_at"]
    list_filter = ["kind", ("indexed_at", admin.EmptyFieldListFilter)]
    search_fields = ["path"]  # so that there is a box; see get_search_results
    search_help_text = 'Words in the text, as in a web search: savepoint "nested transaction" -sqlite'
    exclude = ["vector"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Document], search_term: str
    ) -> tuple[QuerySet[Document], bool]:
        """Search the text instead of columns."""
        if not search_term.strip():
            return queryset, False
        return queryset & Document.objects.search(search_term), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Documents come from `import_documents` only."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """What is stored is what the file says."""
        return False
