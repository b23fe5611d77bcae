"""The library's one table."""

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchQuery, SearchRank, SearchVectorField
from django.db import models
from django.db.models import F


class DocumentQuerySet(models.QuerySet["Document"]):
    """Documents, and the way to find them."""

    def search(self, words: str) -> "DocumentQuerySet":
        """Return documents with all these words, best first; quotes, `or` and `-` mean what they do in web searches."""
        query = SearchQuery(words, config="english", search_type="websearch")
        return self.filter(vector=query).order_by(SearchRank(F("vector"), query).desc(), "path")


class Document(models.Model):
    """A file, and what its indexing found in it; the latter is empty until then, and for ever in a binary file."""

    class Kind(models.TextChoices):
        """What a file is, by its name."""

        PYTHON = "python"
        C = "c"
        SQL = "sql", "SQL"
        WEB = "web"
        PROSE = "prose"
        BINARY = "binary"

    path = models.CharField(max_length=1000, unique=True)
    kind = models.CharField(max_length=10, choices=Kind.choices)
    size = models.BigIntegerField("bytes")
    added_at = models.DateTimeField(auto_now_add=True)
    indexed_at = models.DateTimeField(null=True)
    title = models.CharField(max_length=200, blank=True)
    sha256 = models.CharField(max_length=64, blank=True)
    lines = models.IntegerField(null=True)
    words = models.IntegerField(null=True)
    vector = SearchVectorField(null=True)

    objects = DocumentQuerySet.as_manager()

    class Meta:
        ordering = ["path"]
        indexes = [GinIndex("vector", name="library_document_vector")]

    def __str__(self) -> str:
        return self.path
