"""Receive the signals that stop a supervisor: its own, or those that the main process of its worker passes on.

With several databases, a worker has a main process and one supervisor for each database. A terminal or a service
manager can send a signal to all of these processes. A supervisor of such a worker therefore ignores signals, so that
none counts twice: the main process counts them in shared memory, and sends SIGCHLD to make its supervisors look there.

Concurrency: a signal can interrupt `look()` at any point and run it again. Both runs then set the same count, and a
supervisor may act on a count twice.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.posix import signals_named
from django_pgqueue.ground.waker import Waker
from django_pgqueue.worker.runtime.process_info import request_death_signal
from django_pgqueue.worker.runtime.process_signals import outlive_terminal
from django_pgqueue.worker.runtime.shared_memory import SharedField

logger = logging.getLogger("django_pgqueue.worker")

TEXTS: Final = ("stopping; running jobs may finish within the grace period", "releasing all jobs at once")
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)
[LOOK] = signals_named("SIGCHLD") or (signal.SIGTERM,)
"""Wakes a supervisor, as the end of a child does. A process that has no handler ignores it."""


class PassedOnSignals:
    """How many signals to stop the main process has received. Created in that process, before it forks supervisors."""

    received = SharedField(0, "Q", int)

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 8)
        self._main_pid = os.getpid()

    def count(self) -> int:
        """Return how many signals a supervisor must act on. If the main process is gone, this is at least one."""
        is_orphan = os.getppid() != self._main_pid
        return max(1, self.received) if is_orphan else self.received


class StopSignals:
    """The signals of one process.

    Args:
        act: Called with the number of signals so far: in a signal handler, or by `look()`.
        passed_on: Where to read the signals of the main process. None: this process receives its own.
    """

    def __init__(self, act: Callable[[int], None], passed_on: PassedOnSignals | None = None) -> None:
        self.count = 0
        self._act = act
        self._passed_on = passed_on
        self._logged = 0

    def listen(self, waker: Waker) -> None:
        """Install the handlers, which also wake the main thread. Call this in the main thread."""
        if self._passed_on is None:
            signal.signal(signal.SIGCHLD, lambda *_: None)
            for number in STOPPING:
                signal.signal(number, self._received)
        else:
            outlive_terminal()
            signal.signal(LOOK, lambda *_: self.look())
            request_death_signal(LOOK)
        waker.wake_on_signals()
        self.look()

    def close(self) -> None:
        """Wake the thread no more, because its waker is closed next."""
        signal.set_wakeup_fd(-1)

    def look(self) -> None:
        """Act on the signals that the main process has received, or on its end."""
        if self._passed_on is not None and (count := self._passed_on.count()) > self.count:
            self.count = count
            self._act(count)

    def tick(self) -> None:
        """Look, and log the signals of this process that are new. The main process logs those that it passes on.

        The signal handler does not log, because it may interrupt a log call.
        """
        self.look()
        while self._passed_on is None and self._logged < self.count:
            logger.warning("signal: %s", TEXTS[self._logged], extra=event("worker_stopping", signals=self._logged + 1))
            self._logged += 1

    def _received(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._act(self.count)
