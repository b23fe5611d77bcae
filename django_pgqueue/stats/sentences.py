"""Times, durations and numbers in the sentences of `stats.why()`."""

from __future__ import annotations

from datetime import UTC, datetime

from .answers import Count


def utc_text(moment: datetime) -> str:
    """Return a moment to the second, in UTC."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def span_text(seconds: float) -> str:
    """Return a duration with its largest unit: 0 s, 59 s, 10 min, 3 h, 2 days."""
    for unit, name in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{max(seconds, 0):.0f} s"


def number_text(count: int, noun: str) -> str:
    """Return a number with its noun, which ends with "s"."""
    return f"{count} {noun}" + ("" if count == 1 else "es")


def jobs_ahead(ahead: Count, *, of_key: bool) -> str:
    """Return how many due jobs come before a job, without a full stop."""
    where = " of its limit key" if of_key else ""
    if ahead == Count(1):
        return f"1 due job{where} is claimed before it"
    if not ahead.value:
        return f"an unknown number of due jobs{where} is claimed before it"
    return f"{ahead} due jobs{where} are claimed before it"


def sentence_of(text: str) -> str:
    """Return a text from a row on one line, with a full stop."""
    line = " ".join(text.split())
    return line if line.endswith((".", "!", "?")) else f"{line}."
