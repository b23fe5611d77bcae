"""The one loop: start, tick, wait interruptibly, survive any error, stop. Every service of a worker is one of these."""

from __future__ import annotations

import logging
import random
import threading
from contextlib import suppress
from typing import Final

from .pulse import pulse
from .trouble import is_expected, trouble

logger = logging.getLogger("django_pgqueue.worker")

ERROR_PAUSE_SECONDS: Final = 1.0
ERROR_PAUSE_LIMIT_SECONDS: Final = 5.0
"""After an error a loop pauses for 1, 2, 4, 5 s and a little more: so soon at the latest it works again."""


class Service(threading.Thread):
    """A loop in a thread of its own. A subclass does one round in `tick()` and says how long it may sleep."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"pgqueue-{name}", daemon=True)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._errors_in_a_row = 0

    def tick(self) -> float:
        """Do one round; return the seconds to sleep before the next, unless woken."""
        raise NotImplementedError

    def run(self) -> None:
        """Tick until stopped; then once more what `at_end()` does."""
        while not self._stopping.is_set():
            self._sleep(self._survive())
        self.at_end()

    def at_end(self) -> None:
        """Leave nothing behind; called in the service's thread after its last tick."""

    def wake(self) -> None:
        """End the current sleep; harmless at any time, from any thread.

        Whoever finds it woken has done enough: the loop clears that before it looks. Each `set()` takes a lock, and
        threads that report thousands of jobs a second would wait for each other.
        """
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Ask the loop to end after the round it is in."""
        self._stopping.set()
        self.wake()

    @property
    def stopping(self) -> bool:
        """Whether `stop()` was called."""
        return self._stopping.is_set()

    def _sleep(self, timeout_seconds: float) -> None:
        self._wake.wait(timeout_seconds)
        self._wake.clear()

    def _survive(self) -> float:
        try:
            pause_seconds = self.tick()
        except Exception as error:  # noqa: BLE001 -- a loop that dies takes the worker with it, silently
            return self._pause_after(error)
        self._errors_in_a_row = 0
        return pause_seconds

    def _pause_after(self, error: Exception) -> float:
        pause_seconds = min(ERROR_PAUSE_SECONDS * 2 ** min(self._errors_in_a_row, 10), ERROR_PAUSE_LIMIT_SECONDS)
        self._errors_in_a_row += 1
        pulse.erred()
        with suppress(Exception):  # a handler of the application's that raises must not end the loop
            self._tell(error, pause_seconds)
        self._stopping.wait(pause_seconds * random.uniform(1, 1.3))  # noqa: S311 -- spreads load, hides nothing
        return 0.0

    def _tell(self, error: Exception, pause_seconds: float) -> None:
        if is_expected(error):
            trouble.report(self.name, error)
        elif trouble.may_speak():
            logger.error("%s failed; again in %.0f s", self.name, pause_seconds, exc_info=error)
