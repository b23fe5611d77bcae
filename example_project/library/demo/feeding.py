"""What the demo gives the queue to do, and how it takes the last run's away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.contrib.auth.models import User
from django.db import connection, transaction

from django_pgqueue.models import Job, JobQuerySet
from example_project.library import tasks
from example_project.library.importing import import_folder
from example_project.library.models import Document

USER_NAME: Final = "admin"
PASSWORD: Final = "admin"  # noqa: S105 -- the demo's, and said aloud
ANNOUNCED_EACH: Final = 25
FAILING_ATTEMPTS: Final = (0, 1, 2, 3)
EXPORT_SECONDS: Final = 2.5
DELAY_SECONDS: Final = 4.0
LOCK_ID: Final = 0x646F6373


def own_jobs() -> JobQuerySet:
    """Return the jobs of the library's tasks, and no others."""
    return Job.objects.filter(task_name__startswith=f"{tasks.__name__}.")


def lock() -> bool:
    """Keep other demos off this database until the connection closes; False if one is there already."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK_ID])
        row = cursor.fetchone()
    return bool(row and row[0])


@transaction.atomic
def clear() -> None:
    """Remove the documents and jobs of the last run."""
    own_jobs().delete()
    Document.objects.all().delete()


def log_in() -> str:
    """Make the administrator if there is none, and return name and password to show."""
    user = User.objects.filter(username=USER_NAME).first() or User.objects.create_superuser(USER_NAME, "", PASSWORD)
    return f"{USER_NAME} / {PASSWORD}" if user.check_password(PASSWORD) else f"{USER_NAME}, with the password it has"


def feed(top: Path) -> Iterator[int]:
    """Enqueue everything; yield the number of documents in each batch."""
    with transaction.atomic():
        tasks.export_library.enqueue(EXPORT_SECONDS)
        tasks.export_library.enqueue(EXPORT_SECONDS)
        tasks.most_used_words.using(run_after=DELAY_SECONDS).enqueue(8)
    for batch in import_folder(top):
        announce(batch[::ANNOUNCED_EACH])
        yield len(batch)
    kinds = Document.objects.order_by("kind").values_list("kind", flat=True).distinct()
    tasks.summarise_kind.enqueue_many(((kind,), {}) for kind in kinds)


def announce(documents: list[Document]) -> None:
    """Enqueue announcements that fail never, once, twice and three times, in turn."""
    tasks.announce_document.enqueue_many(
        ((document.pk, FAILING_ATTEMPTS[place % len(FAILING_ATTEMPTS)]), {}) for place, document in enumerate(documents)
    )
