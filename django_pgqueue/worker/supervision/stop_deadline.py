"""End a stopping worker in time, even if its supervisor waits for a server that does not answer.

`Supervisor` creates a `StopDeadline`, and starts it when it begins to stop. A statement on a frozen connection waits
for seconds, and so does each attempt to connect, so the supervisor's loop cannot keep a limit by itself. A timer of the
operating system interrupts these waits: its handler runs in the main thread, between two steps of the interpreter.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Final

KILL_AFTER_GRACE_SECONDS: Final = 10.5
"""When the worker processes that still exist are killed. The rest of the time is for closing their executions."""
EXIT_AFTER_GRACE_SECONDS: Final = 12.0
"""When the supervisor exits, whatever it waits for. Service managers must wait longer."""
REPEAT_SECONDS: Final = 0.25


class StopDeadline:
    """The limits of one supervisor.

    Args:
        grace_seconds: The grace period.
        kill: Kills the worker processes. It is called repeatedly, because a process may just be starting.
        exit_at_once: Ends this process.
    """

    def __init__(self, grace_seconds: float, kill: Callable[[], None], exit_at_once: Callable[[], None]) -> None:
        self._grace_seconds = grace_seconds
        self._kill = kill
        self._exit_at_once = exit_at_once
        self._exit_at = float("inf")

    @property
    def left_seconds(self) -> float:
        """How long the supervisor has until its exit; infinity while it is not stopping."""
        return self._exit_at - time.monotonic()

    def start(self) -> None:
        """Start the timer, once. A signal handler may call this."""
        if self._exit_at < float("inf"):
            return
        self._exit_at = time.monotonic() + self._grace_seconds + EXIT_AFTER_GRACE_SECONDS
        signal.signal(signal.SIGALRM, lambda *_: self._enforce())
        signal.setitimer(signal.ITIMER_REAL, self._grace_seconds + KILL_AFTER_GRACE_SECONDS, REPEAT_SECONDS)

    def close(self) -> None:
        """Stop the timer, because the supervisor is about to exit by itself."""
        if self._exit_at < float("inf"):
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _enforce(self) -> None:
        self._kill()
        if self.left_seconds <= 0:
            self._exit_at_once()
