"""Call functions of the application for a thread that must not wait for them.

`CallbackRunner.ask()` uses it for the thread that fires schedules. The thread asks, does other work if there is no
answer yet, and asks again later. So a function that hangs delays neither this thread nor the other schedules.

One thread uses an instance. It never waits for more than one function at a time, and for that one only
`PATIENCE_SECONDS`. It starts all other calls without waiting, so that its delay does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from django_pgqueue.schedules.job_options import NotReturned
from django_pgqueue.worker.runtime.time_limit import TimedCall

T = TypeVar("T")
PATIENCE_SECONDS: Final = 0.05
LONGEST_RETRY_SECONDS: Final = 1.0
FORGOTTEN_SECONDS: Final = 60.0
"""A call that nobody has asked for again within this time is abandoned. Its schedule was removed, for example."""


class PendingCalls:
    """Calls that have not returned, or whose results nobody has taken, at most one for each owner."""

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
