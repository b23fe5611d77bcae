"""Refuse lazy strings, such as those of `gettext_lazy()`, where a string is needed.

The checks of options and arguments call it. A lazy string is no `str`, but Python and Django show it like one, so a
message that only shows the value would not help.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.utils.functional import Promise

ADVICE: Final = "it is a lazy string, such as one of gettext_lazy(): pass str(value)"


def lazy_problems(option: str, value: object) -> Iterator[str]:
    """Yield the problem of an option whose value is a lazy string."""
    if isinstance(value, Promise):
        yield f"{option} is a lazy string, such as one of gettext_lazy(): pass a str"


def advice_for(value: object, advice: str) -> str:
    """Return what to pass instead of a value: for a lazy string, a plain one, and otherwise `advice`."""
    return ADVICE if isinstance(value, Promise) else advice
