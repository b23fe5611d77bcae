"""The words for the states of batches, and their badges."""

from __future__ import annotations

from typing import Final

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy

from django_pgqueue.models import JobBatch

from .formatting import badge

OPEN: Final = "open"
RUNNING: Final = "running"
COMPLETE: Final = "complete"
FAILED: Final = "failed"
SUCCEEDED: Final = "succeeded"
LABELS: Final[dict[str, Promise | str]] = {
    OPEN: gettext_lazy("open"),
    RUNNING: gettext_lazy("running"),
    COMPLETE: gettext_lazy("complete"),
    FAILED: gettext_lazy("failed"),
    SUCCEEDED: gettext_lazy("succeeded"),
}
COLOURS: Final = {
    OPEN: "scheduled",
    RUNNING: "running",
    COMPLETE: "cancelled",
    FAILED: "dead",
    SUCCEEDED: "succeeded",
}
"""The state of a job whose colour and sign each word has."""


def stage_of(batch: JobBatch) -> str:
    """Return whether a batch is open, closed with unfinished jobs, or complete."""
    if batch.completed_at is not None:
        return COMPLETE
    return OPEN if batch.closed_at is None else RUNNING


def word_of(batch: JobBatch) -> str:
    """Return the word for the state of a batch. `failed_at` stays after a repair, so success comes first."""
    if batch.succeeded_at is not None:
        return SUCCEEDED
    return stage_of(batch) if batch.failed_at is None else FAILED


def badges(batch: JobBatch) -> SafeString:
    """Return the state of a batch in its colour. Beside a failure, say whether other jobs can still run."""
    word = word_of(batch)
    shown = badge(COLOURS[word], LABELS[word])
    if word != FAILED:
        return shown
    return format_html('{} <span class="pgqueue-quiet">{}</span>', shown, LABELS[stage_of(batch)])
