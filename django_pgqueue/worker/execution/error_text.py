"""Turn exceptions into text that PostgreSQL can store.

Every part of the worker that records or logs an application's exception calls this module. It raises nothing, even if
the exception's own code (`__str__`, its metaclass) raises something or returns unusual objects.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, TypeGuard, TypeVar

from django_pgqueue.settings.conf import get_settings

logger = logging.getLogger("django_pgqueue.worker")

E = TypeVar("E", bound=BaseException)
MAX_ERROR_CHARACTERS: Final = 2000
MAX_CLASS_CHARACTERS: Final = 200
MAX_FRAMES: Final = 100
MIN_CUT_BYTES: Final = 40
"""Space for the note that replaces the middle of a long text. With a smaller limit, the text is cut without a note."""


def storable(text: str, limit: int) -> str:
    """Return `text` in a form that PostgreSQL stores: without NUL and lone surrogates, and of `limit` bytes at most.

    The middle of a longer text is replaced by a note.
    """
    data = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace")
    if len(data) > limit and limit < MIN_CUT_BYTES:
        data = data[:limit]
    elif len(data) > limit:
        half = (limit - MIN_CUT_BYTES) // 2
        cut = f"\n[… {len(data) - 2 * half:,} bytes cut …]\n".encode()
        data = data[:half] + cut + data[len(data) - half :]
    return data.decode("utf-8", "ignore")


def class_name(kind: type) -> str:
    """Return the name of a class. The metaclass is bypassed because it may be the application's code."""
    return str.__str__(type.__dict__["__name__"].__get__(kind))


def is_a(exception: BaseException, *kinds: type[E]) -> TypeGuard[E]:
    """Return whether an exception is of one of these classes. `isinstance()` would also read its `__class__`."""
    return issubclass(type(exception), kinds)


def class_path(exception: BaseException) -> str:
    """Return the dotted path of the exception's class."""
    kind = type(exception)
    try:
        path = f"{kind.__module__}.{kind.__qualname__}"
        return storable(path, MAX_CLASS_CHARACTERS)
    except BaseException:  # noqa: BLE001 -- a metaclass may raise anything, and a name may be any object
        return storable(class_name(kind), MAX_CLASS_CHARACTERS)


def name_of(function: Any) -> str:
    """Return the name of an application's function for a log line."""
    try:
        return str.__str__(f"{function.__module__}.{function.__qualname__}")
    except BaseException:  # noqa: BLE001 -- the function may be any callable object
        return f"of the class {class_name(type(function))}"


def message(exception: BaseException) -> str:
    """Return the text of the exception, or the names of the classes involved if its `__str__` fails."""
    try:
        text = str.__str__(str(exception))  # a plain `str`, in case `__str__` returns a subclass
    except BaseException as error:  # noqa: BLE001 -- __str__ is the application's code, and may raise anything
        text = f"<{class_name(type(exception))} whose __str__ raised {class_name(type(error))}>"
    return storable(text, MAX_ERROR_CHARACTERS)


def traceback_text(exception: BaseException) -> str:
    """Return the traceback with its causes and without the values of local variables. Cut the middle if it is long."""
    try:
        text = "".join(traceback.format_exception(exception, limit=-MAX_FRAMES))
    except BaseException as error:  # noqa: BLE001 -- formatting runs the application's __str__ and __repr__
        text = f"<the traceback could not be formatted: {class_name(type(error))}>"
    return storable(text, get_settings().MAX_TRACEBACK_BYTES)


def log_exception(text: str, error: BaseException, extra: Mapping[str, Any]) -> None:
    """Log an exception of the application's code with its traceback. Raise nothing, even if formatting it fails."""
    try:
        logger.error("%s", text, exc_info=error, extra=extra)
    except BaseException as other:  # noqa: BLE001 -- a handler formats the exception with the application's code
        with suppress(BaseException):
            raised = class_path(error), class_name(type(other))
            logger.error("%s %s, and logging it raised %s", text, *raised, extra=extra)
