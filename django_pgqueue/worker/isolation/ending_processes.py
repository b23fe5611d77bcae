"""Watch isolated processes that were asked to end, while they run their exit functions.

A slot closes its isolated process without waiting for it. The worker process must wait for these processes before it
exits, because its exit kills them. It must not wait for a process that hangs.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from django_pgqueue.worker.runtime.exit_functions import EXIT_SECONDS

if TYPE_CHECKING:
    from .isolated_process import IsolatedProcess

LIMIT_SECONDS: Final = EXIT_SECONDS + 1.0
"""An isolated process limits its exit functions itself. A process that takes longer than this is killed."""
POLL_SECONDS: Final = 0.01


class EndingProcesses:
    """The ending isolated processes of one worker process. The threads of its slots use it concurrently."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ending: list[tuple[IsolatedProcess, float]] = []

    def add(self, process: IsolatedProcess) -> None:
        """Watch a process that was asked to end."""
        with self._lock:
            self._ending.append((process, time.monotonic() + LIMIT_SECONDS))
        self.sweep()

    def sweep(self) -> bool:
        """Forget the processes that have ended and kill those over the limit. Return whether all have ended."""
        with self._lock:
            for process, kill_at in list(self._ending):
                if process.has_ended():
                    process.forget()
                    self._ending.remove((process, kill_at))
                elif time.monotonic() > kill_at:
                    process.kill()
            return not self._ending

    def wait(self) -> None:
        """Wait until all have ended, at most `LIMIT_SECONDS`."""
        stop_at = time.monotonic() + LIMIT_SECONDS
        while not self.sweep() and time.monotonic() < stop_at:
            time.sleep(POLL_SECONDS)
