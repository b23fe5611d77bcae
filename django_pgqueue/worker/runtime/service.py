"""The loop of all services of a worker: start, tick, sleep until woken, survive any error, stop.

Every service is a subclass of `Service` and runs in a thread of its own. `WorkerProcess` starts and stops them, and
`Liveness` detects a loop that hangs or has died.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import suppress
from typing import Final

from django_pgqueue.db.reconnects import NotConnected, is_lost_connection, pause_seconds
from django_pgqueue.ground.log_events import event

from .outages import is_expected, outage_log
from .process_info import call_here
from .shared_memory import health_memory

ERROR_PAUSE_SECONDS: Final = 1.0
ERROR_PAUSE_LIMIT_SECONDS: Final = 5.0
"""After errors other than lost connections a loop waits for 1, 2, 4, 5, 5 … s, each up to 30 % longer. This bounds the
delay after an outage."""
logger = logging.getLogger("django_pgqueue.worker")


class RetryPauses:
    """The pauses of one loop.

    A lost connection costs no pause if a new one can be opened at once. Other errors keep a long backoff, because a
    statement that fails would fail again.
    """

    def __init__(self) -> None:
        self.errors_in_a_row = 0
        self._losses = 0

    def succeeded(self) -> None:
        """Record that a round has succeeded."""
        self.errors_in_a_row = self._losses = 0

    def after(self, error: BaseException) -> float:
        """Return how many seconds to wait after an error."""
        self.errors_in_a_row += 1
        if isinstance(error, NotConnected):
            return max(0.0, error.retry_at - time.monotonic())
        if is_lost_connection(error):
            self._losses += 1
            return pause_seconds(self._losses - 1)
        grown = ERROR_PAUSE_SECONDS * 2.0 ** min(self.errors_in_a_row - 1, 10)
        return min(grown, ERROR_PAUSE_LIMIT_SECONDS) * random.uniform(1, 1.3)  # noqa: S311 -- spreads load


class Service(threading.Thread):
    """A loop in a thread of its own. A subclass implements one round in `tick()`."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"pgqueue-{name}", daemon=True)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._pauses = RetryPauses()
        self._is_failing = False
        """Whether an outage has hit it that is not over for it."""
        self._busy_since: float | None = None

    def tick(self) -> float:
        """Do one round; return the seconds to sleep before the next one. `wake()` ends the sleep early."""
        raise NotImplementedError

    def run(self) -> None:
        """Call `tick()` until the service is stopped, then `at_end()` once."""
        while not self._stopping.is_set():
            sleep_seconds = self._survive()
            try:
                self._sleep(sleep_seconds)
            except BaseException as error:  # noqa: BLE001 -- as in `_survive`
                self._pause_after(error)
        try:
            self.at_end()
        except BaseException as error:  # noqa: BLE001 -- an error here must not stop the shutdown of the process
            self._report(error, 0.0)

    def has_recovered(self) -> bool:
        """Return whether all that has failed works again. Called after a round that has succeeded."""
        return True

    def at_end(self) -> None:
        """Clean up. Called in the service's thread after its last tick."""

    def wake(self) -> None:
        """End the current sleep. Safe at any time and from any thread.

        If the event is already set, the next round has not begun: the loop clears the event before each round.
        Each `set()` takes a lock, and threads that report thousands of jobs per second would wait for each other.
        """
        if not self._wake.is_set():
            self._wake.set()

    def stop(self) -> None:
        """Ask the loop to end after the current round."""
        self._stopping.set()
        self.wake()

    def progressed(self) -> None:
        """Restart the time limit of the current round. Each step of a long round may take as long as a round."""
        if self._busy_since is not None:
            self._busy_since = time.monotonic()

    @property
    def busy_seconds(self) -> float:
        """How long the current round has taken, or its current step; 0 while the service sleeps."""
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
            sleep_seconds = call_here(self.tick)
        except BaseException as error:  # noqa: BLE001 -- code of the application may raise SystemExit here too
            self._busy_since = None
            return self._pause_after(error)
        self._busy_since = None
        self._pauses.succeeded()
        if self._is_failing and self.has_recovered():
            self._is_failing = False
            outage_log.recovered(self.name)
        return sleep_seconds

    def _pause_after(self, error: BaseException) -> float:
        """Report an error and wait. Return 0, because the next round follows at once."""
        pause_seconds = self._pauses.after(error)
        health_memory.errors += 1
        self._report(error, pause_seconds)
        self._stopping.wait(pause_seconds)
        return 0.0

    def _report(self, error: BaseException, pause_seconds: float) -> None:
        with suppress(BaseException):  # a log handler of the application that raises must not end the loop
            if isinstance(error, Exception) and is_expected(error):
                outage_log.report(self.name, error)
                outage_log.failing(self.name)
                self._is_failing = True
            elif outage_log.may_log():
                extra = event("service_failed", service=self.name)
                logger.error("%s failed; retrying in %.0f s", self.name, pause_seconds, exc_info=error, extra=extra)


def restart_time_limit() -> None:
    """Restart the time limit of the service whose thread calls this, if it is one. See `Service.progressed()`."""
    thread = threading.current_thread()
    if isinstance(thread, Service):
        thread.progressed()
