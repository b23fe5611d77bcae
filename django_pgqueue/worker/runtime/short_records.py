"""Cut long messages and tracebacks of log records, before the log handlers get them.

An exception's message can contain a whole document, and a handler would write it with each attempt. `BackgroundLog`
calls `shorten()` in its own thread, so it costs the engine's threads nothing.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import Final

MESSAGE_CHARACTERS: Final = 2_000
"""Maximum length of a message."""
TRACEBACK_CHARACTERS: Final = 16_000
"""Maximum length of a traceback whose exceptions have messages of more than `MESSAGE_CHARACTERS` together."""
CHAIN_LIMIT: Final = 100


def shorten(record: logging.LogRecord) -> None:
    """Cut the message and the traceback of a record if they are long. Short ones cost two string formattings."""
    message = record.getMessage()
    if len(message) > MESSAGE_CHARACTERS:
        record.msg, record.args = _cut(message, MESSAGE_CHARACTERS), None
    exception = record.exc_info[1] if record.exc_info else None
    if exception is None or record.exc_text:
        return
    # Formatting the traceback to measure it would take 100 µs for each failed attempt.
    if sum(len(str(each)) for each in _chain(exception)) > MESSAGE_CHARACTERS:
        record.exc_text = _cut("".join(traceback.format_exception(exception)).rstrip("\n"), TRACEBACK_CHARACTERS)


def _chain(exception: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that led to it."""
    for _ in range(CHAIN_LIMIT):
        if exception is None:
            return
        yield exception
        exception = exception.__cause__ or exception.__context__


def _cut(text: str, limit: int) -> str:
    """Return a text of about `limit` characters, with a note in the place of its middle."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} [… {len(text) - 2 * half:,} characters cut …] {text[-half:]}"
