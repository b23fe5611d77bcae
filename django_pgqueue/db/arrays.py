"""Write Python sequences as PostgreSQL array literals. The statements of `lifecycle` take them as parameters.

psycopg's own conversion also runs in Python and takes five times as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TypeVar

T = TypeVar("T")


def numbers(values: Iterable[float]) -> str:
    """Return an array literal of numbers. The statement casts it to the type of its parameter."""
    return "{" + ",".join(map(repr, values)) + "}"


def texts(values: Iterable[str]) -> str:
    """Return an array literal of any texts. The statement casts it to the type of its parameter."""
    return "{" + ",".join(map(_quoted, values)) + "}"


def exact(instant: datetime | None) -> str:
    """Return a timestamp as text with its microseconds, for an exact comparison; an empty string for None."""
    return "" if instant is None else instant.isoformat()


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def sparse(values: Sequence[T | None]) -> list[T | None]:
    """Return the values as a list, or an empty list if all of them are None.

    `unnest()` pads the shorter of several arrays with NULL, so an empty array reads as NULL for every row. A session
    with `array_nulls=off` would read a NULL inside an array as the text "NULL". Django connections use their role's
    settings, and this function keeps NULL out of every array that they send with a single value.
    """
    return [] if values.count(None) == len(values) else list(values)
