"""Which options a call of `using()` changes: what None means, and which names it knows.

`task` and the `django.tasks` backend call `changed_options()`. `options` declares the options themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Final

from .task_options import UsingOptions
from .validation import ON_CONFLICT, UNIQUE_WHILE


class Unchanged(Enum):
    """The type of `UNCHANGED`."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return self.name


UNCHANGED: Final = Unchanged.UNCHANGED
"""Default of a parameter of `using()` or of `override_limit()` for which None is a value."""
RESET_BY_NONE: Final = frozenset({"max_attempts", "unique_key", "limit", "expires", "headers", "batch", "database"})
"""Options that None in `using()` resets. For all others None changes nothing, as in Django's framework."""


def changed_options(given: Mapping[str, Any], **others: Any) -> dict[str, Any]:
    """Return the options that a call of `using()` sets: those that are not None, or that None resets.

    Raises `TypeError` if a name is not an option of `using()`.
    """
    for unknown in given.keys() - UsingOptions.__optional_keys__:
        raise TypeError(f"using() got an unexpected keyword argument {unknown!r}")
    changes = {
        name: value
        for name, value in {**others, **given}.items()
        if value is not UNCHANGED and (value is not None or name in RESET_BY_NONE)
    }
    if "unique_key" in changes and changes["unique_key"] is None:  # these two need a key
        changes = {"unique_while": UNIQUE_WHILE[0], "on_conflict": ON_CONFLICT[0], **changes}
    return changes
