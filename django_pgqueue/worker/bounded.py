"""Call a function of the application from an engine thread, which must not wait for it longer than a few seconds.

The call runs in a thread of its own. One that hangs is left behind, and at most three may hang at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from . import hygiene

T = TypeVar("T")
HANGING_LIMIT: Final = 3

_hanging: list[threading.Thread] = []


def call_in_time(function: Callable[[], T], seconds: float) -> T:
    """Return what the function returns, and raise what it raises; raise `TimeoutError` if it takes longer."""
    _hanging[:] = [thread for thread in _hanging if thread.is_alive()]
    if len(_hanging) >= HANGING_LIMIT:
        raise TimeoutError(f"{HANGING_LIMIT} earlier calls hang")
    answers: list[T] = []
    errors: list[BaseException] = []
    thread = threading.Thread(target=_run, args=(function, answers, errors), name="pgqueue-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _hanging.append(thread)
        raise TimeoutError(f"it has not returned within {seconds:g} s")
    if errors:
        raise errors[0]
    return answers[0]


def _run(function: Callable[[], Any], answers: list[Any], errors: list[BaseException]) -> None:
    try:
        answers.append(function())
    except BaseException as error:  # noqa: BLE001 -- raised again by the thread that waits
        errors.append(error)
    with suppress(BaseException):
        hygiene.close_all()
