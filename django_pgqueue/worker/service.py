"""The one loop: start, tick, wait interruptibly, survive any error, stop. Every service of a worker is one of these."""

from __future__ import annotations

import logging
import random
import threading
import time
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
        self._busy_since: float | None = None

    def tick(self) -> float:
        """Do one round; return the seconds to sleep before the next, unless woken."""
        raise NotImplementedError

    def run(self) -> None:
        """Tick until stopped; then once more what `at_end()` does."""
        while not self._stopping.is_set():
            pause_seconds = self._survive()
            try:
                self._sleep(pause_seconds)
            except BaseException as error:  # noqa: BLE001 -- as in `_survive`
                self._pause_after(error)
        try:
            self.at_end()
        except BaseException as error:  # noqa: BLE001 -- the process goes on with its end
            self._report(error, 0.0)

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

    def progressed(self) -> None:
        """Show that a long round gets on: each step of it may take as long as a round."""
        if self._busy_since is not None:
            self._busy_since = time.monotonic()

    @property
    def busy_seconds(self) -> float:
        """How long the present round has taken, or its present step; 0 while the service sleeps."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def stopping(self) -> bool:
        """Whether `stop()` was called."""
        return self._stopping.is_set()

    def _sleep(self, timeout_seconds: float) -> None:
        self._wake.wait(timeout_seconds)
        self._wake.clear()

    def _survive(self) -> float:
        self._busy_since = time.monotonic()
        try:
            pause_seconds = self.tick()
        except BaseException as error:  # noqa: BLE001 -- code of the application may raise SystemExit here too
            self._busy_since = None
            return self._pause_after(error)
        self._busy_since = None
        self._errors_in_a_row = 0
        return pause_seconds

    def _pause_after(self, error: BaseException) -> float:
        pause_seconds = min(ERROR_PAUSE_SECONDS * 2 ** min(self._errors_in_a_row, 10), ERROR_PAUSE_LIMIT_SECONDS)
        self._errors_in_a_row += 1
        pulse.erred()
        self._report(error, pause_seconds)
        self._stopping.wait(pause_seconds * random.uniform(1, 1.3))  # noqa: S311 -- spreads load, hides nothing
        return 0.0

    def _report(self, error: BaseException, pause_seconds: float) -> None:
        with suppress(BaseException):  # a log handler of the application that raises must not end the loop
            if isinstance(error, Exception) and is_expected(error):
                trouble.report(self.name, error)
            elif trouble.may_speak():
                logger.error("%s failed; again in %.0f s", self.name, pause_seconds, exc_info=error)
