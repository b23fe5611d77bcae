"""Ctrl-C and its like as a flag, so that what was started is always stopped in an orderly way."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Final

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(Exception):
    """Somebody wants the demo to end."""


class Interruption:
    """While entered, a signal is noted instead of raised: an exception could come between a fork and its record."""

    def __init__(self) -> None:
        self.number = 0
        self._noted = threading.Event()
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in SIGNALS:
            self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        self._noted.set()

    def wait(self, seconds: float) -> bool:
        """Wait, or less if a signal came; say whether one has."""
        return self._noted.wait(seconds)

    def check(self) -> None:
        """Raise `Interrupted` if a signal came."""
        if self._noted.is_set():
            raise Interrupted
