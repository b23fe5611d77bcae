"""Arrays as PostgreSQL reads them: psycopg's own way, in Python too, takes five times as long."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime


def numbers(values: Iterable[float]) -> str:
    """Return an array of numbers, for a parameter that is cast to its type."""
    return "{" + ",".join(map(repr, values)) + "}"


def texts(values: Iterable[str]) -> str:
    """Return an array of any texts, for a parameter that is cast to its type."""
    return "{" + ",".join(map(_quoted, values)) + "}"


def exact(instant: datetime | None) -> str:
    """Return an instant as text with its microseconds, for an exact comparison; "" for none."""
    return "" if instant is None else instant.isoformat()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
