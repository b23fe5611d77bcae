"""Enqueue the jobs of the demo, and delete those of the previous run. Called by the command `demo`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.contrib.auth.models import User
from django.db import connection, transaction

from django_pgqueue import chord
from django_pgqueue.models import Job, JobQuerySet
from example_project.library import tasks
from example_project.library.importing import import_folder
from example_project.library.models import Document

USER_NAME: Final = "admin"
PASSWORD: Final = "admin"  # noqa: S105 -- the demo prints it
ANNOUNCED_EACH: Final = 25
"""One document in this many is announced."""
FAILING_ATTEMPTS: Final = (0, 1, 2, 3)
EXPORT_SECONDS: Final = 2.5
DELAY_SECONDS: Final = 4.0
LOCK_ID: Final = 0x646F6373


def own_jobs() -> JobQuerySet:
    """Return the jobs of the library's tasks."""
    return Job.objects.filter(task_name__startswith=f"{tasks.__name__}.")


def lock() -> bool:
    """Lock the database against other demos until the connection closes. Return False if another one has the lock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK_ID])
        row = cursor.fetchone()
    return bool(row and row[0])


@transaction.atomic
def clear() -> None:
    """Delete the documents and the jobs of the previous run."""
    own_jobs().cancel()
    own_jobs().filter(finished_at__isnull=False).delete()  # a job that a lost worker still seems to run stays
    Document.objects.all().delete()


def log_in() -> str:
    """Create the administrator if it does not exist. Return the name and the password as text to print."""
    user = User.objects.filter(username=USER_NAME).first() or User.objects.create_superuser(USER_NAME, "", PASSWORD)
    return f"{USER_NAME} / {PASSWORD}" if user.check_password(PASSWORD) else f"{USER_NAME}, with its existing password"


def feed(top: Path) -> Iterator[int]:
    """Enqueue all jobs. Yield the number of documents of each batch."""
    with transaction.atomic():
        tasks.export_library.enqueue(EXPORT_SECONDS)
        tasks.export_library.enqueue(EXPORT_SECONDS)
        tasks.most_used_words.using(run_after=DELAY_SECONDS).enqueue(8)
    for batch in import_folder(top):
        announce(batch[::ANNOUNCED_EACH])
        yield len(batch)
    kinds = list(Document.objects.order_by("kind").values_list("kind", flat=True).distinct())
    tasks.summarise_kind.enqueue_many((kind,) for kind in kinds)
    if kinds:
        sizes = [tasks.size_of_kind.s(kind) for kind in kinds]
        chord(sizes, tasks.size_of_library).enqueue(description="Size of the library")


def announce(documents: list[Document]) -> None:
    """Enqueue an announcement for each document. In turn, they fail never, once, twice and three times."""
    tasks.announce_document.enqueue_many(
        (document.pk, FAILING_ATTEMPTS[place % len(FAILING_ATTEMPTS)]) for place, document in enumerate(documents)
    )
