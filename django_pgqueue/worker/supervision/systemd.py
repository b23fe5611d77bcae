"""Notify systemd of the worker's state, if its unit has `Type=notify`.

The protocol is a datagram of lines to the socket in `NOTIFY_SOCKET` (man sd_notify). systemd accepts it from the main
process of the unit, which is the supervisor. `HealthThread` calls `SystemdNotifier.notify()` once a second.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.runtime.health_report import HealthReport, Judgement
from django_pgqueue.worker.runtime.outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")

START_SECONDS: Final = 30.0
"""When a worker that is not ready counts as started. A boot must not wait for a database that is away."""


class SystemdNotifier:
    """The notifications of one supervisor.

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
        status = "; ".join(judgement.reasons) or f"{len(self.report.living())} processes are ready"
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
