"""The tasks of the library. Each one shows a different feature of the queue."""

import time
from pathlib import Path
from typing import Final

from django.contrib.postgres.search import SearchVector
from django.db import connection
from django.db.models import Count, Sum, Value
from django.db.models.functions import Now

from django_pgqueue import Dead, LeaseLost, Snooze, TaskContext, task
from django_pgqueue.models import Job
from django_pgqueue.states import FINISHED

from .models import Document
from .reading import NotText, read

MOST_CHARACTERS: Final = 200_000
"""Characters of a text that are indexed: PostgreSQL stores at most 1 MB of words and positions per row."""


@task(atomic=True, max_attempts=3, backoff=1, no_retry_for=(FileNotFoundError, PermissionError))
def index_document(document_id: int) -> int:
    """Index a document: store its title, counts and full-text vector. Return the number of words.

    The task is atomic: the document's row and the job's completion are one transaction, so no document is indexed by a
    job that failed. The job of a file that is not text becomes a dead letter at once, because no retry can succeed.
    """
    document = Document.objects.get(pk=document_id)
    try:
        reading = read(Path(document.path), document.kind)
    except NotText as reason:
        raise Dead(f"{reason} ({document.path})") from None
    Document.objects.filter(pk=document_id).update(
        title=reading.title,
        sha256=reading.sha256,
        lines=reading.lines,
        words=reading.words,
        vector=SearchVector(Value(reading.title), weight="A", config="english")
        + SearchVector(Value(reading.text[:MOST_CHARACTERS]), config="english"),
        indexed_at=Now(),
    )
    return reading.words


@task
async def summarise_kind(kind: str) -> dict[str, int]:
    """Add up the documents of one kind after all are indexed. An async task that snoozes if it runs too early.

    `Snooze` is not a failure: the job becomes ready again for later, and the attempt is not counted.
    """
    if await Job.objects.filter(task_name=index_document.name).exclude(state__in=FINISHED).aexists():
        raise Snooze(1, "documents are still being indexed")
    return await Document.objects.filter(kind=kind, indexed_at__isnull=False).aaggregate(
        documents=Count("pk"), lines=Sum("lines", default=0), words=Sum("words", default=0)
    )


@task
def size_of_kind(kind: str) -> int:
    """Add up the sizes of the files of one kind. The demo runs one for each kind, in a workflow."""
    return int(Document.objects.filter(kind=kind).aggregate(size=Sum("size", default=0))["size"])


@task
def size_of_library(sizes: list[int]) -> int:
    """Add up the sizes of all kinds. It gets the results of the jobs that it depends on."""
    return sum(sizes)


class CatalogueUnavailable(Exception):
    """The external service did not answer."""


@task(takes_context=True, max_attempts=5, backoff=0.4, retry_for=CatalogueUnavailable)
def announce_document(context: TaskContext, document_id: int, failing_attempts: int) -> str:
    """Announce a document to a public catalogue, which stands for any service that fails now and then.

    It fails exactly `failing_attempts` times, so that the demo can check each attempt.
    """
    if context.attempt <= failing_attempts:
        raise CatalogueUnavailable(f"attempt {context.attempt}: no answer from the catalogue")
    return f"announced at attempt {context.attempt}"


@task(takes_context=True)
def export_library(context: TaskContext, seconds: float) -> str:
    """Write an export for `seconds`. A slow job, while others continue; it stops if its lease is lost."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if context.lost.wait(timeout=0.1):
            raise LeaseLost("the lease is lost: another worker may run this export now")
    return f"exported in {seconds} s"


@task
def most_used_words(limit: int) -> list[str]:
    """Return the words that occur in most of the documents indexed so far. The demo enqueues it with a delay."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT word FROM ts_stat('SELECT vector FROM library_document WHERE vector IS NOT NULL') "
            "ORDER BY ndoc DESC, word LIMIT %s",
            [limit],
        )
        return [word for (word,) in cursor.fetchall()]
