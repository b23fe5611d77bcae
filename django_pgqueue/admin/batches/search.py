"""Find batches by a text: by their number, or by a part of the description of one of the newest.

The list of batches and the search page of the console call it. Descriptions have no index, so the number of those that
are read is bounded.
"""

from __future__ import annotations

from django.db.models import QuerySet

from django_pgqueue.admin.list_filters import row_id_of
from django_pgqueue.models import JobBatch


def number_of(typed: str) -> int | None:
    """Return the number of a batch that a text is, with or without `#`; None for another text."""
    return row_id_of(typed.removeprefix("#"))


def newest_batch(alias: str) -> int:
    """Return the highest number of a batch; 0 without any."""
    return JobBatch.objects.using(alias).order_by("-pk").values_list("pk", flat=True).first() or 0


def with_text(batches: QuerySet[JobBatch], typed: str, newest: int, searched: int) -> QuerySet[JobBatch]:
    """Return those of the `searched` batches up to the number `newest` whose descriptions contain a text."""
    return batches.filter(pk__gt=newest - searched, description__icontains=typed)
