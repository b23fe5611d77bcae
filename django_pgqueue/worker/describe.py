"""Exceptions as text that PostgreSQL can store, whatever they are: hostile ones too."""

from __future__ import annotations

import logging
import traceback
from contextlib import suppress
from typing import Any, Final, TypeGuard, TypeVar

from django_pgqueue.conf import get_settings

logger = logging.getLogger("django_pgqueue.worker")

E = TypeVar("E", bound=BaseException)
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


def class_name(kind: type) -> str:
    """Return the name of a class; read past its metaclass, which may be the application's."""
    return str.__str__(type.__dict__["__name__"].__get__(kind))


def is_a(exception: BaseException, *kinds: type[E]) -> TypeGuard[E]:
    """Return whether an exception is of one of these classes; `isinstance()` would ask its own `__class__` too."""
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
    """Return what to call a function of the application in a log line."""
    try:
        return str.__str__(f"{function.__module__}.{function.__qualname__}")
    except BaseException:  # noqa: BLE001 -- any callable object may stand here
        return f"of the class {class_name(type(function))}"


def message(exception: BaseException) -> str:
    """Return what the exception says; one that cannot say it is named."""
    try:
        text = str.__str__(str(exception))  # without the methods of a subclass of `str`
    except BaseException as error:  # noqa: BLE001 -- __str__ is the application's code, and may raise anything
        text = f"<{class_name(type(exception))} whose __str__ raised {class_name(type(error))}>"
    return storable(text, MAX_ERROR_CHARACTERS)


def traceback_text(exception: BaseException) -> str:
    """Return the traceback with its causes, head and tail of it if long, without the values of local variables."""
    try:
        text = "".join(traceback.format_exception(exception, limit=-MAX_FRAMES))
    except BaseException as error:  # noqa: BLE001 -- formatting runs the application's __str__ and __repr__
        text = f"<the traceback could not be formatted: {class_name(type(error))}>"
    return storable(text, get_settings().MAX_TRACEBACK_BYTES)


def log_exception(words: str, error: BaseException) -> None:
    """Log an error of the application's code with its traceback; raise nothing, whatever the exception is."""
    try:
        logger.error("%s", words, exc_info=error)
    except BaseException as other:  # noqa: BLE001 -- a handler formats the exception, by the application's own code
        with suppress(BaseException):
            logger.error("%s %s, which raised %s", words, class_path(error), class_name(type(other)))
