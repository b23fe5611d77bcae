"""Describe when a schedule runs, in the language of the reader. The lists of schedules and of tasks call it."""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import get_language, ngettext_lazy

from django_pgqueue.schedules import next_ticks

INTERVALS: Final[dict[str, Any]] = {
    "week": ngettext_lazy("Every %(number)d week", "Every %(number)d weeks", "number"),
    "day": ngettext_lazy("Every %(number)d day", "Every %(number)d days", "number"),
    "hour": ngettext_lazy("Every %(number)d hour", "Every %(number)d hours", "number"),
    "minute": ngettext_lazy("Every %(number)d minute", "Every %(number)d minutes", "number"),
    "second": ngettext_lazy("Every %(number)d second", "Every %(number)d seconds", "number"),
}


def expression_text(expression: str) -> str:
    """Return an expression in words. A cron expression has words in English only; otherwise it is returned as it is."""
    if match := next_ticks.EVERY.fullmatch(expression):
        return str(INTERVALS[match[2]] % {"number": int(match[1])})
    return next_ticks.in_words(expression) if (get_language() or "en").startswith("en") else expression
