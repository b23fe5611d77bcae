"""Find and identify the receivers of a signal, and contain what the application's code raises.

`CallbackRunner` uses it. The functions here run no receiver, but a weak reference or a property of one is the
application's code too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from django_pgqueue.ground import log_events
from django_pgqueue.schedules.job_options import NotReturned
from django_pgqueue.signals import WorkerSignal
from django_pgqueue.worker.execution import error_text
from django_pgqueue.worker.runtime.time_limit import TimedCall

T = TypeVar("T")
Call = tuple[Any, Callable[[], Any]]
"""A receiver, and the function that calls it."""
PATIENCE_SECONDS: Final = 0.05
LONGEST_RETRY_SECONDS: Final = 1.0
FORGOTTEN_SECONDS: Final = 60.0
"""A call that nobody has asked for again within this time is abandoned. Its schedule was removed, for example."""


class Delivery(NamedTuple):
    """A signal to deliver, or a function to call."""

    signal: WorkerSignal | None
    task_name: str | None
    about: dict[str, Any]
    function: Callable[[], Any] | None = None


def calls_of(event: Delivery) -> list[Call]:
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


class PendingCalls:
    """Calls that have not returned, or whose results nobody has taken, at most one for each owner.

    `CallbackRunner.ask()` uses it for the thread that fires schedules. The thread asks, does other work if there is no
    answer yet, and asks again later. So a function that hangs delays neither this thread nor the other schedules.

    One thread uses an instance. It never waits for more than one function at a time, and for that one only
    `PATIENCE_SECONDS`. It starts all other calls without waiting, so that its delay does not grow with their number.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        """The time after which a call counts as hanging."""
        self._calls: dict[str, tuple[Hashable, TimedCall[Any]]] = {}

    def ask(self, function: Callable[[], T], owner: str, occasion: Hashable, describe: Callable[[], str]) -> T:
        """Return the function's result, or raise its exception. Without a call for this occasion, start one.

        Args:
            function: Called in a thread of its own. If a call for this owner and occasion is pending, it is not called.
            owner: Identifies the calls that share a quota (see `time_limit`).
            occasion: A result for another occasion is not used.
            describe: Return the name of the function that is called, for messages.

        Raises:
            NotReturned: The call has not returned yet. Ask again.
            TimeoutError: The time is over, or three earlier calls of this owner still hang.
        """
        self._abandon_forgotten()
        known_occasion, known = self._calls.pop(owner, (None, None))
        if known is not None and known_occasion != occasion:
            known.abandon()
            known = None
        call: TimedCall[T] = known or TimedCall(function, owner, describe)
        if not any(other.is_alive() for _, other in self._calls.values()):
            call.join(PATIENCE_SECONDS)
        if not call.is_alive() or call.seconds >= self._seconds:
            return call.result(self._seconds)
        self._calls[owner] = occasion, call
        raise NotReturned(min(max(call.seconds, PATIENCE_SECONDS), LONGEST_RETRY_SECONDS))

    def _abandon_forgotten(self) -> None:
        for owner, (_, call) in list(self._calls.items()):
            if call.seconds > self._seconds + FORGOTTEN_SECONDS:
                call.abandon()
                del self._calls[owner]
