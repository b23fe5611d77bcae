"""Find and identify the receivers of a signal, and contain what the application's code raises.

`CallbackRunner` uses it. The functions here run no receiver, but a weak reference or a property of one is the
application's code too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from django_pgqueue import log_events
from django_pgqueue.worker.execution import error_text

if TYPE_CHECKING:
    from django_pgqueue.signals import WorkerSignal

T = TypeVar("T")
Call = tuple[Any, Callable[[], Any]]
"""A receiver, and the function that calls it."""


class Event(NamedTuple):
    """A signal to deliver, or a function to call."""

    signal: WorkerSignal | None
    task_name: str | None
    about: dict[str, Any]
    function: Callable[[], Any] | None = None


def calls_of(event: Event) -> list[Call]:
    """Return the calls that deliver an event."""
    if event.function is not None:
        return [(event.function, event.function)]
    if event.signal is None:
        return []
    try:
        return event.signal.calls_for(event.task_name, **event.about)
    except BaseException as error:  # noqa: BLE001 -- weak references run the application's callbacks
        error_text.log_exception(
            "looking up the receivers of a signal failed", error, extra=log_events.event("receiver_failed")
        )
        return []


def identity(receiver: Any) -> tuple[int, int]:
    """Return what identifies a receiver that is alive. Two accesses to one bound method return different objects."""
    function = receiver.func if isinstance(receiver, partial) else receiver
    try:
        return id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function))
    except BaseException:  # noqa: BLE001 -- the receiver may be any callable object
        return id(None), id(function)


def contained(function: Callable[[], T], describe: Callable[[], str]) -> T:
    """Call a function. Turn an exception that would end an engine's thread into `RuntimeError`.

    `describe` returns the name of the called function. The log message contains it.
    """
    try:
        return function()
    except (Exception, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        text = error_text.message(error)
        raise RuntimeError(f"{describe()} raised {type(error).__name__}{text and f': {text}'}") from error
