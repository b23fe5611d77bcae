"""Call functions of the application with a time limit, because an engine thread must not wait for them longer.

Backoff functions, the receivers of a process's start, and the code that determines the options of a schedule's job are
called this way. Each call runs in a thread of its own. A call that hangs is abandoned in its thread.

Each call has an owner, such as one task or one schedule. At most three calls of an owner may hang at a time; until one
of them returns, the owner is not called. Other owners are called as before, so a function that hangs affects only
itself. The abandoned threads are the only record of the hanging calls. An owner that is removed leaves nothing else.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, Generic, TypeVar

from . import django_connections
from .process_info import call_here
from .shared_memory import NO_EXECUTION

T = TypeVar("T")
HANGING_LIMIT: Final = 3
"""The number of calls of one owner that may hang at a time."""


def call_in_time(function: Callable[[], T], seconds: float, owner: str, execution_id: int = NO_EXECUTION) -> T:
    """Call a function; return its result or raise its exception. `owner` names the function, also in messages.

    `execution_id` is the execution for which it is called, if there is one.

    Raises:
        TimeoutError: if the call takes longer than `seconds`, or if three earlier calls of this owner still hang.
    """
    call = TimedCall(function, owner, execution_id=execution_id)
    call.join(seconds)
    return call.result(seconds)


class TimedCall(threading.Thread, Generic[T]):
    """One call of a function, which starts at once.

    Args:
        function: It is called in this thread, which closes the thread's database connections afterwards.
        owner: Identifies the calls that share a quota.
        describe: Return the name of the function that is called, for messages. By default the owner.
        execution_id: The execution that is charged if the function ends the process by `os._exit()`. By default none.

    Raises:
        TimeoutError: if three earlier calls of this owner still hang.
    """

    def __init__(
        self,
        function: Callable[[], T],
        owner: str,
        describe: Callable[[], str] | None = None,
        *,
        execution_id: int = NO_EXECUTION,
    ) -> None:
        super().__init__(name="pgqueue-call", daemon=True)
        self.owner = owner
        self.execution_id = execution_id
        self.is_abandoned = False
        self.began_at = time.monotonic()
        self.describe = describe or (lambda: owner)
        self._function = function
        self._answer: Future[T] = Future()
        _check_quota(owner)
        self.start()

    @property
    def seconds(self) -> float:
        """The seconds since the call began."""
        return time.monotonic() - self.began_at

    def result(self, seconds: float) -> T:
        """Return the function's result or raise its exception. If the thread has not ended, abandon it.

        Raises:
            TimeoutError: if the function has not returned. `seconds` is the time that it had.
        """
        if self.is_alive():
            self.abandon()
        if not self._answer.done():
            raise TimeoutError(f"{self.describe()} did not return within {seconds:g} s")
        return self._answer.result()

    def abandon(self) -> None:
        """Count this thread as hanging until it ends."""
        self.is_abandoned = True

    def run(self) -> None:
        """Call the function. Called by `start()`."""
        try:
            self._answer.set_result(call_here(self._function))
        except BaseException as error:  # noqa: BLE001 -- raised again by the thread that waits
            self._answer.set_exception(error)
        with suppress(BaseException):
            django_connections.close_all()


def hanging_calls(owner: str) -> list[TimedCall[object]]:
    """Return the abandoned calls of an owner that have not returned."""
    return [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, TimedCall) and thread.is_abandoned and thread.owner == owner
    ]


def _check_quota(owner: str) -> None:
    hanging = hanging_calls(owner)
    if len(hanging) >= HANGING_LIMIT:
        raise TimeoutError(
            f"{hanging[-1].describe()} was not called, because {len(hanging)} earlier calls have not returned"
        )
