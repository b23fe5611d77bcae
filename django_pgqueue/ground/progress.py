"""Progress of a job: the value type, and the check of what a task reports.

`TaskContext.progress()` checks a task's values here before the worker stores them. `Job.progress` and
`TaskContext.last_progress()` return the stored values. PostgreSQL can store everything that `checked()` returns.
"""

from __future__ import annotations

import math
from datetime import datetime
from numbers import Real
from typing import Any, Final, NamedTuple

MESSAGE_LENGTH: Final = 200
"""Maximum length of a stored message, in characters. Longer messages are cut."""


class Progress(NamedTuple):
    """Progress of a job as its task reported it.

    Attributes:
        done: Amount of work done, in the task's own unit.
        total: Total amount of work in the same unit, or None if unknown.
        message: Short text, at most 200 characters.
        at: Time of the report, or None if it is not written to the database yet.
    """

    done: float
    total: float | None = None
    message: str = ""
    at: datetime | None = None

    @property
    def fraction(self) -> float | None:
        """Completed fraction, from 0 to 1.

        None without a total, or if the stored numbers have no fraction: `total` is not positive and finite, or `done`
        is NaN.
        """
        if self.total is None or not self.total > 0 or not math.isfinite(self.total) or math.isnan(self.done):
            return None
        return min(1.0, max(0.0, self.done / self.total))


def checked(done: Any, total: Any = None, message: Any = "") -> Progress:
    """Return a task's report in the form in which it is stored.

    The message is cut to `MESSAGE_LENGTH`. Characters that PostgreSQL cannot store are replaced.

    Raises:
        TypeError: `done` or `total` is not a number.
        ValueError: `done` or `total` is negative or not finite.
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
        raise ValueError(f"progress: {name} must be a finite number of at least 0, not {number}")
    return number
