"""The library's only model."""

from django.contrib.postgres.indexes import GinIndex
from django.contrib.postgres.search import SearchQuery, SearchRank, SearchVectorField
from django.db import models
from django.db.models import F


class DocumentQuerySet(models.QuerySet["Document"]):
    """Documents, with full-text search."""

    def search(self, words: str) -> "DocumentQuerySet":
        """Return the documents that match, best first. Quotes, `or` and `-` have the meaning of a web search."""
        query = SearchQuery(words, config="english", search_type="websearch")
        return self.filter(vector=query).order_by(SearchRank(F("vector"), query).desc(), "path")


class Document(models.Model):
    """A file, and what its job found in it. These fields stay empty until the job has succeeded."""

    class Kind(models.TextChoices):
        """The kind of a file, by its name."""

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
