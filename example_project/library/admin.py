"""The documents in the admin: read-only, with full-text search."""

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
    """The list of documents. It searches with PostgreSQL's full-text search what the jobs have stored."""

    list_display = ["path", "title", "kind", "size", "lines", "words", "indexed_at"]
    list_filter = ["kind", ("indexed_at", admin.EmptyFieldListFilter)]
    search_fields = ["path"]  # makes Django show the search box; get_search_results() does the search
    search_help_text = 'Words in the text, in the syntax of a web search: savepoint "nested transaction" -sqlite'
    exclude = ["vector"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Document], search_term: str
    ) -> tuple[QuerySet[Document], bool]:
        """Search the text instead of the columns."""
        if not search_term.strip():
            return queryset, False
        return queryset & Document.objects.search(search_term), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False. Only `import_documents` adds documents."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False. A document shows what its file contains."""
        return False
