"""Call a function of the application with a time limit, because an engine thread must not wait for it longer.

Backoff functions and the unique-key functions of schedules are called this way. The call runs in a thread of its own.
A call that hangs is abandoned in its thread; at most three calls may hang at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

from . import django_connections
from .process_info import call_here

T = TypeVar("T")
HANGING_LIMIT: Final = 3

_hanging: list[threading.Thread] = []


def call_in_time(function: Callable[[], T], seconds: float) -> T:
    """Call a function; return its result or raise its exception.

    Raises:
        TimeoutError: if the call takes longer than `seconds`, or if three earlier calls still hang.
    """
    _hanging[:] = [thread for thread in _hanging if thread.is_alive()]
    if len(_hanging) >= HANGING_LIMIT:
        raise TimeoutError(f"it was not called, because {HANGING_LIMIT} earlier calls have not returned")
    future: Future[T] = Future()
    thread = threading.Thread(target=_run, args=(function, future), name="pgqueue-call", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        _hanging.append(thread)
        raise TimeoutError(f"it did not return within {seconds:g} s")
    return future.result()


def _run(function: Callable[[], T], future: Future[T]) -> None:
    try:
        future.set_result(call_here(function))
    except BaseException as error:  # noqa: BLE001 -- raised again by the thread that waits
        future.set_exception(error)
    with suppress(BaseException):
        django_connections.close_all()
