"""Turn SIGINT, SIGTERM and SIGHUP into a flag, so that the demo always stops its processes in order."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """The demo received a signal to stop."""


class Interruption:
    """A context manager that records signals instead of raising.

    An exception raised between a fork and the assignment of the process would leave that process running.
    """

    def __init__(self) -> None:
        self.number = 0
        self._received = threading.Event()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, self._record)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        self._received.set()

    def wait(self, seconds: float) -> bool:
        """Wait for the time or until a signal arrives. Return whether one has arrived."""
        return self._received.wait(seconds)

    def check(self) -> None:
        """Raise `Interrupted` if a signal has arrived."""
        if self._received.is_set():
            raise Interrupted
