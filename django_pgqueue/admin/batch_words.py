"""The words for the states of batches, their badges, and a sentence about a batch that does not go on."""

from __future__ import annotations

from typing import Final

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_pgqueue.models import JobBatch
from django_pgqueue.models.batch_states import COMPLETE, FAILED, OPEN, RUNNING, SUCCEEDED, stage_of, word_of
from django_pgqueue.stats.batch_counts import BatchCounts

from .formatting import badge

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


def note_of(batch: JobBatch, counts: BatchCounts, *, has_nested: bool) -> Promise | str:
    """Return what the operator has to do so that the batch goes on, or what it waits for; "" if its jobs run."""
    if batch.completed_at is not None:
        if batch.succeeded_at is None and counts.unfinished.value:
            return _("Jobs were retried after the batch was complete. It succeeds when all its jobs have succeeded.")
        return ""
    if counts.is_blocked:
        return _("No job is ready or running. Waiting jobs depend on failed ones: retry those, or cancel the rest.")
    if counts.unfinished.value:
        return ""
    if batch.closed_at is None:
        return _("No job is unfinished. The batch is open, so it does not complete until somebody closes it.")
    if has_nested:
        return _("No job is unfinished. The batch completes after its nested batches.")
    return _("No job is unfinished. A worker completes the batch within a minute.")


def badges(batch: JobBatch) -> SafeString:
    """Return the state of a batch in its colour. Beside a failure, say whether other jobs can still run."""
    word = word_of(batch)
    shown = badge(COLOURS[word], LABELS[word])
    if word != FAILED:
        return shown
    return format_html('{} <span class="pgqueue-quiet">{}</span>', shown, LABELS[stage_of(batch)])
