"""Show the state of a batch: its word and badge, why it does not go on, and a bar of its progress."""

from __future__ import annotations

from typing import Final

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from django_pgqueue.admin.formatting import badge
from django_pgqueue.models import JobBatch
from django_pgqueue.models.batch_states import COMPLETE, FAILED, OPEN, RUNNING, SUCCEEDED, stage_of, word_of
from django_pgqueue.stats.batch_counts import BatchCounts

STATES: Final[dict[str, tuple[Promise | str, str]]] = {
    OPEN: (gettext_lazy("open"), "scheduled"),
    RUNNING: (gettext_lazy("running"), "running"),
    COMPLETE: (gettext_lazy("complete"), "cancelled"),
    FAILED: (pgettext_lazy("batch", "failed"), "dead"),
    SUCCEEDED: (gettext_lazy("succeeded"), "succeeded"),
}
"""The label of each word, and the state of a job whose colour and sign it has."""
WIDTH: Final = 100.0
SMALLEST: Final = 1.5
"""Width of a part with at least one job, so that one failure among thousands is visible."""


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
    label, colour = STATES[word]
    shown = badge(colour, label)
    if word != FAILED:
        return shown
    return format_html('{} <span class="pgqueue-quiet">{}</span>', shown, STATES[stage_of(batch)][0])


def bar(batch_id: int, counts: BatchCounts) -> SafeString | str:
    """Return the bar; "" without jobs. The id makes that of the pattern unique on the page.

    The parts differ without colour: failed jobs are hatched, and unfinished ones are empty. The text beside the bar has
    the same figures, so screen readers skip the bar.
    """
    total = counts.total.value
    if not total:
        return ""
    failed = _width(counts.failed.value, total)
    succeeded = min(_width(counts.succeeded.value, total), WIDTH - failed)
    return format_html(
        '<svg class="pgqueue-batch-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<defs><pattern id="pgqueue-batch-hatch-{number}" width="3" height="10" patternUnits="userSpaceOnUse">'
        '<path class="pgqueue-hatch" d="M0 10L3 0"/></pattern></defs>'
        '<rect class="pgqueue-bar pgqueue-series-succeeded" width="{x}" height="10"/>'
        '<rect class="pgqueue-bar pgqueue-series-failed" x="{x}" width="{width}" height="10"/>'
        '<rect fill="url(#pgqueue-batch-hatch-{number})" x="{x}" width="{width}" height="10"/></svg>',
        number=batch_id,
        x=f"{succeeded:.2f}",
        width=f"{failed:.2f}",
    )


def words(counts: BatchCounts) -> str:
    """Return the figures as text, without the parts that are 0."""
    parts = [
        (counts.succeeded, _("%(count)s succeeded")),
        (counts.dead, _("%(count)s dead")),
        (counts.cancelled, _("%(count)s cancelled")),
        (counts.running, _("%(count)s running")),
        (counts.ready, _("%(count)s ready")),
        (counts.waiting, _("%(count)s waiting")),
    ]
    return ", ".join(text % {"count": count} for count, text in parts if count.value) or _("no jobs")


def with_words(batch_id: int, counts: BatchCounts) -> SafeString:
    """Return the bar with its text below it."""
    return format_html('{}<div class="pgqueue-batch-words">{}</div>', bar(batch_id, counts), words(counts))


def _width(count: int, total: int) -> float:
    return max(WIDTH * count / total, SMALLEST) if count else 0.0
