"""How far a job is, as a bar and in words."""

from __future__ import annotations

from datetime import datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue.progress import Progress

from .words import ago, visible


def bar(progress: Progress | None) -> SafeString | str:
    """Return the bar alone; nothing without a total, for nobody knows how long it should be."""
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


def told(progress: Progress | None, seen_at: datetime) -> SafeString | None:
    """Return bar, numbers, message and age of what a job has told; None if it has told nothing."""
    if progress is None:
        return None
    of = "" if progress.total is None else " " + _("of %(total)s") % {"total": number(progress.total)}
    age = "" if progress.at is None else ago(progress.at, seen_at)
    words = " · ".join(filter(None, [f"{number(progress.done)}{of}", visible(progress.message), age]))
    return format_html("{} {}", bar(progress), words)


def number(value: float) -> str:
    """Return a number without a fraction that is none."""
    return f"{value:,.0f}" if value.is_integer() else f"{value:g}"
