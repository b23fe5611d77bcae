"""How far a job has come: what a task notes, checked, and what is read back."""

from __future__ import annotations

import math
from datetime import datetime
from numbers import Real
from typing import Any, Final, NamedTuple

MESSAGE_LENGTH: Final = 200
"""Characters of a message that are kept."""


class Progress(NamedTuple):
    """So many of so many, in whatever unit the task counts, and when that was noted (None: not yet written)."""

    done: float
    total: float | None = None
    message: str = ""
    at: datetime | None = None

    @property
    def fraction(self) -> float | None:
        """From 0 to 1; None without a total, or where the row holds no number of which there is one."""
        if self.total is None or not self.total > 0 or not math.isfinite(self.total) or math.isnan(self.done):
            return None
        return min(1.0, max(0.0, self.done / self.total))


def checked(done: Any, total: Any = None, message: Any = "") -> Progress:
    """Return what a task notes as it is stored; the message is cut, and what PostgreSQL cannot store replaced.

    Raises `TypeError` for what is no number, `ValueError` for one that is negative or not finite.
    """
    text = str(message)[:MESSAGE_LENGTH].replace("\x00", "\ufffd")
    if not text.isascii():
        text = text.encode("utf-8", "replace").decode()
    return Progress(_number(done, "done"), None if total is None else _number(total, "total"), text)


def _number(value: Any, name: str) -> float:
    if type(value) not in (int, float) and (isinstance(value, bool) or not isinstance(value, Real)):
        raise TypeError(f"progress: {name} must be a number, not {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not 0 <= number < math.inf:
        raise ValueError(f"progress: {name} must be a finite number of at least 0")
    return number
