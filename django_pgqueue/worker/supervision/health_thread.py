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
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import are, counted
from django_pgqueue.worker.runtime.health_report import HealthReport, Judgement
from django_pgqueue.worker.runtime.outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")

CHECK_SECONDS: Final = 0.05
"""The time between two looks at the status of a worker that is not ready."""
START_SECONDS: Final = 30.0
"""When a worker that is not ready counts as started. A boot must not wait for a database that is away."""


class SystemdNotifier:
    """The notifications of one supervisor to systemd, if its unit has `Type=notify`.

    The protocol is a datagram of lines to the socket in `NOTIFY_SOCKET` (man sd_notify). systemd accepts it from the
    main process of the unit, which is the supervisor.

    Args:
        report: The worker's health.
        environment: The variables of this process. Those of the protocol are removed, because the programs that tasks
            start must not notify systemd.
    """

    def __init__(self, report: HealthReport, environment: MutableMapping[str, str] = os.environ) -> None:
        self.report = report
        address = environment.pop("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_seconds = _watchdog_seconds(environment)
        self._started_at = time.monotonic()
        self._watchdog_at = 0.0
        self._sent: set[str] = set()
        self._status = ""

    @property
    def is_wanted(self) -> bool:
        """Whether systemd has asked for notifications."""
        return bool(self._address)

    @property
    def interval_seconds(self) -> float:
        """The time between two calls of `notify()` that suffices for the watchdog, a second at most."""
        return min(1.0, self._watchdog_seconds / 2 or 1.0)

    def notify(self) -> None:
        """Send what has changed, and the sign of life if it is due. Raise nothing."""
        lines = self.lines(self.report.judge())
        if lines:
            self._send("\n".join(lines).encode())

    def lines(self, judgement: Judgement) -> list[str]:
        """Return the lines to send now."""
        lines = []
        now = time.monotonic()
        if "READY=1" not in self._sent and (judgement.is_ready or now - self._started_at > START_SECONDS):
            lines.append("READY=1")
        if "STOPPING=1" not in self._sent and judgement.status == "stopping":
            lines.append("STOPPING=1")
        self._sent.update(lines)
        status = "; ".join(judgement.reasons) or _in_words(len(self.report.living()))
        if judgement.status != self._status:
            self._status = judgement.status
            lines.append(f"STATUS={judgement.status}: {status}")
        if self._watchdog_seconds and judgement.is_alive and now >= self._watchdog_at:
            self._watchdog_at = now + self._watchdog_seconds
            lines.append("WATCHDOG=1")
        return lines

    def _send(self, message: bytes) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message, self._address)
        except OSError as error:
            self._sent, self._status, self._watchdog_at = set(), "", 0.0  # send everything again
            if outage_log.may_log():
                logger.warning("could not notify systemd: %s", error, extra=event("systemd_not_notified"))


def _watchdog_seconds(environment: MutableMapping[str, str]) -> float:
    """Return half of the unit's `WatchdogSec`, or 0 if it has none or it is meant for another process."""
    pid, microseconds = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
    if pid and pid != str(os.getpid()):
        return 0.0
    with suppress(ValueError):
        return max(0.0, int(microseconds) / 2e6)
    return 0.0


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


def _in_words(living: int) -> str:
    return f"{counted(living, 'process', 'processes')} {are(living)} ready"
