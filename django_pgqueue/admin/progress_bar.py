"""The progress that a job has reported, as a bar and as text. Used by the list and the page of jobs."""

from __future__ import annotations

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue.ground.progress import Progress

from .formatting import ago, visible


def bar(progress: Progress | None) -> SafeString | str:
    """Return the bar alone; "" if the job has reported no total, because the fraction is unknown then."""
    if progress is None or (fraction := progress.fraction) is None:
        return ""
    percent = f"{fraction:.0%}"
    return format_html(
        '<progress class="pgqueue-progress" value="{}" max="1" title="{}" aria-label="{}">{}</progress>',
        f"{fraction:.4f}",
        percent,
        _("progress"),
        percent,
    )


def progress_bar(progress: Progress | None, seen_at: datetime, *, with_message: bool) -> SafeString | None:
    """Return the bar, the figures, the message and the age of a job's last report; None if it has reported nothing."""
    if progress is None:
        return None
    of_total = "" if progress.total is None else " " + _("of %(total)s") % {"total": number(progress.total)}
    age = "" if progress.at is None else ago(progress.at, seen_at)
    message = visible(progress.message) if with_message else ""
    text = " · ".join(filter(None, [f"{number(progress.done)}{of_total}", message, age]))
    return format_html("{} {}", bar(progress), text)


def number(value: float) -> str:
    """Return a number, without a fraction if it is whole."""
    return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
