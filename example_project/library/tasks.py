"""The library's jobs: one task for each thing a queue has to be good at."""

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
"""Characters of a text that are searched: PostgreSQL keeps at most 1 MB of words and positions a row."""


@task(atomic=True, max_attempts=3, backoff=1, no_retry_for=(FileNotFoundError, PermissionError))
def index_document(document_id: int) -> int:
    """Read, count, extract, store the full-text vector; return the number of words.

    Atomic: the document's row and the job's end are one transaction, so no document is ever half indexed, nor
    indexed by a job that says it failed. A file that is no text is a dead letter at once: no retry will change it.
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
    """Add up the documents of one kind once all are indexed: an async task, which comes back later if it is early.

    `Snooze` is not a failure: the job is given back, and no attempt is counted.
    """
    if await Job.objects.filter(task_name=index_document.name).exclude(state__in=FINISHED).aexists():
        raise Snooze(1, "documents are still being indexed")
    return await Document.objects.filter(kind=kind, indexed_at__isnull=False).aaggregate(
        documents=Count("pk"), lines=Sum("lines", default=0), words=Sum("words", default=0)
    )


class CatalogueUnavailable(Exception):
    """The outside service did not answer this time."""


@task(takes_context=True, max_attempts=5, backoff=0.4, retry_for=CatalogueUnavailable)
def announce_document(context: TaskContext, document_id: int, failing_attempts: int) -> str:
    """Tell a public catalogue of a document: it stands for any service that fails now and then.

    Here it fails exactly as often as the job says, so that the demo can check each attempt.
    """
    if context.attempt <= failing_attempts:
        raise CatalogueUnavailable(f"attempt {context.attempt}: no answer from the catalogue")
    return f"announced at attempt {context.attempt}"


@task(takes_context=True)
def export_library(context: TaskContext, seconds: float) -> str:
    """Write an export for `seconds`: a slow job, beside which the others go on. It stops if its lease is lost."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if context.lost.wait(timeout=0.1):
            raise LeaseLost("somebody else runs this export now")
    return f"exported in {seconds} s"


@task
def most_used_words(limit: int) -> list[str]:
    """Return the words that most documents indexed until now have; the demo enqueues it to run some seconds later."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT word FROM ts_stat('SELECT vector FROM library_document WHERE vector IS NOT NULL') "
            "ORDER BY ndoc DESC, word LIMIT %s",
            [limit],
        )
        return [word for (word,) in cursor.fetchall()]
