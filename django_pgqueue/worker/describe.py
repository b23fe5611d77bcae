"""Exceptions as text that PostgreSQL can store, whatever they are: hostile ones too."""

from __future__ import annotations

import traceback
from typing import Final

from django_pgqueue.conf import get_settings

MAX_ERROR_CHARACTERS: Final = 2000
MAX_CLASS_CHARACTERS: Final = 200
MAX_FRAMES: Final = 100
MIN_CUT_BYTES: Final = 40
"""What the note in place of the cut-out middle may take; where less is allowed, there is none."""


def storable(text: str, limit: int) -> str:
    """Return `text` without what PostgreSQL refuses (NUL, lone surrogates), its middle cut out beyond `limit` bytes."""
    data = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
    if len(data) > limit and limit < MIN_CUT_BYTES:
        data = data[:limit]
    elif len(data) > limit:
        half = (limit - MIN_CUT_BYTES) // 2
        cut = f"\n[… {len(data) - 2 * half:,} bytes cut …]\n".encode()
        data = data[:half] + cut + data[len(data) - half :]
    return data.decode("utf-8", "ignore")


def class_path(exception: BaseException) -> str:
    """Return the dotted path of the exception's class."""
    kind = type(exception)
    return storable(f"{kind.__module__}.{kind.__qualname__}", MAX_CLASS_CHARACTERS)


def message(exception: BaseException) -> str:
    """Return what the exception says; one that cannot say it is named."""
    try:
        text = str(exception)
    except BaseException as error:  # noqa: BLE001 -- __str__ is the application's code, and may raise anything
        text = f"<{type(exception).__name__} whose __str__ raised {type(error).__name__}>"
    return storable(text, MAX_ERROR_CHARACTERS)


def traceback_text(exception: BaseException) -> str:
    """Return the traceback with its causes, head and tail of it if long, without the values of local variables."""
    try:
        text = "".join(traceback.format_exception(exception, limit=-MAX_FRAMES))
    except BaseException as error:  # noqa: BLE001 -- formatting runs the application's __str__ and __repr__
        text = f"<the traceback could not be formatted: {type(error).__name__}>"
    return storable(text, get_settings().MAX_TRACEBACK_BYTES)
