"""Watch isolated processes that were asked to end, while they run their exit functions.

A slot lets go of its isolated process without waiting for it. The worker process must not exit before, because that
kills them, and must not wait for one that hangs.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from .exit_functions import EXIT_SECONDS

if TYPE_CHECKING:
    from .cell import Cell

PATIENCE_SECONDS: Final = EXIT_SECONDS + 1.0
"""A process bounds its exit functions itself. One that takes longer is killed."""
LOOK_SECONDS: Final = 0.01


class EndingProcesses:
    """Those of one worker process; used by the threads of its slots."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._ending: list[tuple[Cell, float]] = []

    def add(self, process: Cell) -> None:
        """Watch a process that was asked to end."""
        with self._guard:
            self._ending.append((process, time.monotonic() + PATIENCE_SECONDS))
        self.sweep()

    def sweep(self) -> bool:
        """Forget the processes that have ended, kill those that take too long; return whether none is left."""
        with self._guard:
            for process, kill_at in list(self._ending):
                if process.has_ended():
                    process.forget()
                    self._ending.remove((process, kill_at))
                elif time.monotonic() > kill_at:
                    process.kill()
            return not self._ending

    def wait(self) -> None:
        """Wait until all have ended, but no longer than their patience."""
        stop_at = time.monotonic() + PATIENCE_SECONDS
        while not self.sweep() and time.monotonic() < stop_at:
            time.sleep(LOOK_SECONDS)
