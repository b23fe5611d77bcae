"""Report the worker's health once a second, and when it has become ready: write the health file, notify systemd.

The supervisor's main thread may wait long for the database, and even longer for a name server. A separate thread
therefore reports. It reads memory only and sends no statements. The thread pauses while the supervisor forks, because
forking a process that has threads is unsafe.

A platform may wait for a worker that is not ready, so the thread then looks more often whether the status has changed.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.runtime.health_report import HealthReport, Judgement
from django_pgqueue.worker.runtime.outages import outage_log

from .systemd import SystemdNotifier

CHECK_SECONDS: Final = 0.05
"""The time between two looks at the status of a worker that is not ready."""
logger = logging.getLogger("django_pgqueue.worker")


class HealthFile:
    """The health file of one worker. Each write replaces the whole file. Without a path, the object does nothing.

    `django_pgqueue.health` reads the file. The supervisor creates one `HealthFile`, and its `HealthThread` writes it.
    """

    def __init__(self, path: str | None, report: HealthReport) -> None:
        self.path = path
        self.report = report

    def write(self) -> None:
        """Replace the file. The rename is atomic, so a reader never sees a partial file.

        In a directory where others can write, somebody could put a link in the place of the unfinished file, and have
        the worker overwrite another file. So the worker creates it anew, and follows no link.
        """
        if self.path is None:
            return
        unfinished = f"{self.path}.{os.getpid()}"
        with suppress(FileNotFoundError):
            os.unlink(unfinished)  # left by a process that was killed
        with open(unfinished, "x", encoding="utf-8") as file:
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
        report: The worker's health.
        interval_seconds: The time between two rounds, unless the status changes.
    """

    def __init__(
        self, steps: Sequence[Callable[[], None]], report: HealthReport, interval_seconds: float = 1.0
    ) -> None:
        self.steps = steps
        self.report = report
        self.interval_seconds = interval_seconds
        self._reported: Judgement | None = None
        self._reported_at = float("-inf")
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
        while not self._stopping.wait(self.pause_seconds()):
            self.report_if_due()

    def pause_seconds(self) -> float:
        """Return how long to wait before the next call of `report_if_due()`."""
        left_seconds = max(0.0, self._reported_at + self.interval_seconds - time.monotonic())
        is_ready = self._reported is not None and self._reported.is_ready
        return left_seconds if is_ready else min(left_seconds, CHECK_SECONDS)

    def report_if_due(self) -> None:
        """Report if the status has changed, or if the interval is over."""
        judgement = self.report.judge()
        has_changed = self._reported is None or self._reported.status != judgement.status
        if has_changed or time.monotonic() - self._reported_at >= self.interval_seconds:
            self._reported, self._reported_at = judgement, time.monotonic()
            for step in self.steps:
                step()


def health_thread(file: HealthFile, report: HealthReport) -> HealthThread:
    """Return the thread that writes the file and notifies systemd, as far as they are wanted."""
    systemd = SystemdNotifier(report)
    steps = [file.write_if_alive] if file.path is not None else []
    steps += [systemd.notify] if systemd.is_wanted else []
    return HealthThread(steps, report, systemd.interval_seconds)
