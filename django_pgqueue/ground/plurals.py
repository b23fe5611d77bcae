"""Write a count with its noun, for the English texts of commands and logs. Pages use `ngettext` instead."""

from __future__ import annotations


def counted(count: int, noun: str = "job", plural: str = "") -> str:
    """Return a count with its noun, such as "1 job" or "3,743 jobs". `plural` is not needed if it only adds an s."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"


def are(count: int) -> str:
    """Return the verb for a count: "is" or "are"."""
    return "is" if count == 1 else "are"
