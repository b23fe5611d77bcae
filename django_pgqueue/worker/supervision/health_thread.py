"""Report the worker's health once a second: write the health file, and notify systemd.

The supervisor's main thread may wait long for the database, and even longer for a name server. A separate thread
therefore reports. It reads memory only and sends no statements. The thread pauses while the supervisor forks, because
forking a process that has threads is unsafe.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from django_pgqueue.log_events import event
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.outages import outage_log

from .systemd import SystemdNotifier

logger = logging.getLogger("django_pgqueue.worker")


class HealthFile:
    """The health file of one worker. Each write replaces the whole file. Without a path, the object does nothing.

    `django_pgqueue.health` reads the file. The supervisor creates one `HealthFile`, and its `HealthThread` writes it.
    """

    def __init__(self, path: str | None, report: HealthReport) -> None:
        self.path = path
        self.report = report

    def write(self) -> None:
        """Replace the file. The rename is atomic, so a reader never sees a partial file."""
        if self.path is None:
            return
        unfinished = f"{self.path}.{os.getpid()}"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(self.report.as_dict(), file, indent=1)
        os.replace(unfinished, self.path)

    def write_if_alive(self) -> None:
        """Replace the file if the worker is alive. Otherwise the file becomes stale, and the platform restarts it."""
        if self.path is None or not self.report.judge().is_alive:
            return
        try:
            self.write()
        except OSError as error:
            if outage_log.may_log():
                logger.warning("could not write the health file: %s", error, extra=event("health_file_failed"))

    def remove(self) -> None:
        """Remove the file, so that it does not report a worker that has ended."""
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)


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
