"""Report the worker's health once a second: write the health file, and notify systemd.

The supervisor's main thread may wait long for the database, and even longer for a name server. A separate thread
therefore reports. It reads memory only and sends no statements. The thread pauses while the supervisor forks, because
forking a process that has threads is unsafe.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from django_pgqueue.worker.runtime.health_report import HealthReport

from .health_file import HealthFile
from .systemd import SystemdNotifier


class HealthThread:
    """The thread of one supervisor, from `start()` to `close()`.

    Args:
        steps: What to call in each round. They raise nothing. If there are none, no thread is started.
        interval_seconds: The time between two rounds.
    """

    def __init__(self, steps: Sequence[Callable[[], None]], interval_seconds: float = 1.0) -> None:
        self.steps = steps
        self.interval_seconds = interval_seconds
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        if self.steps:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._run, name="pgqueue-health", daemon=True)
            self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the thread inside the block. A process forked there does not start it again; the supervisor does."""
        pid = os.getpid()
        was_running = self.close()
        try:
            yield
        finally:
            if was_running and os.getpid() == pid:
                self.start()

    def close(self) -> bool:
        """Stop the thread; return whether there was one."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._stopping.set()
        thread.join()
        return True

    def _run(self) -> None:
        while not self._stopping.wait(self.interval_seconds):
            for step in self.steps:
                step()


def health_thread(file: HealthFile, report: HealthReport) -> HealthThread:
    """Return the thread that writes the file and notifies systemd, as far as they are wanted."""
    systemd = SystemdNotifier(report)
    steps = [file.write_if_alive] if file.path is not None else []
    steps += [systemd.notify] if systemd.is_wanted else []
    return HealthThread(steps, systemd.interval_seconds)
