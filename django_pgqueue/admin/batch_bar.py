"""The progress of a batch as a bar of three parts and as text. The list and the pages of batches use it.

The parts differ without colour: failed jobs are hatched, and unfinished ones are empty. The text beside the bar has the
same figures, so screen readers skip the bar.
"""

from __future__ import annotations

from typing import Final

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue.stats.batch_counts import BatchCounts

WIDTH: Final = 100.0
SMALLEST: Final = 1.5
"""Width of a part with at least one job, so that one failure among thousands is visible."""


def bar(batch_id: int, counts: BatchCounts) -> SafeString | str:
    """Return the bar; "" without jobs. The id makes that of the pattern unique on the page."""
    total = counts.total.value
    if not total:
        return ""
    failed = _width(counts.failed.value, total)
    succeeded = min(_width(counts.succeeded.value, total), WIDTH - failed)
    x, width = f"{succeeded:.2f}", f"{failed:.2f}"
    return format_html(
        '<svg class="pgqueue-batch-bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        '<defs><pattern id="pgqueue-batch-hatch-{}" width="3" height="10" patternUnits="userSpaceOnUse">'
        '<path class="pgqueue-hatch" d="M0 10L3 0"/></pattern></defs>'
        '<rect class="pgqueue-bar pgqueue-series-succeeded" width="{}" height="10"/>'
        '<rect class="pgqueue-bar pgqueue-series-failed" x="{}" width="{}" height="10"/>'
        '<rect fill="url(#pgqueue-batch-hatch-{})" x="{}" width="{}" height="10"/></svg>',
        batch_id,
        x,
        x,
        width,
        batch_id,
        x,
        width,
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
