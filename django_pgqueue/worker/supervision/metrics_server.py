"""Serve the worker's health and metrics from a separate process. `HelperProcesses` creates one `MetricsServer`.

The supervisor owns the socket, so the port stays open while the process is replaced. It starts the process again if it
has ended, and kills it if it hangs. Without a port, the object does nothing.
"""

from __future__ import annotations

import logging
import socket
import time
from functools import partial
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.monitoring.metrics_process import ReadQueues, main
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.health_report import HealthReport

from .helper_process import Fork, HelperProcess
from .watchdog import kill

logger = logging.getLogger("django_pgqueue.worker")

HANG_SECONDS: Final = 30.0
"""How long the process may show no sign of life."""
BACKLOG: Final = 16
NAME: Final = b"pgqueue-metrics"


def open_port(options: Options) -> socket.socket | None:
    """Return a socket that listens on `--metrics-port`, or None without one. Raise `OSError` if the port is taken."""
    if options.metrics_port is None:
        return None
    family = socket.AF_INET6 if ":" in options.metrics_address else socket.AF_INET
    return socket.create_server((options.metrics_address, options.metrics_port), family=family, backlog=BACKLOG)


class MetricsServer:
    """The supervisor's side of the metrics process.

    Args:
        fork: Starts the process.
        listener: The socket of the port, or None.
        report: The worker's health.
        read_queue: Reads the figures of the queue, or None if the port does not serve them.
    """

    def __init__(
        self, fork: Fork, listener: socket.socket | None, report: HealthReport, read_queue: ReadQueues | None = None
    ) -> None:
        self._process = HelperProcess(fork, NAME)
        self._socket = listener
        self._report = report
        self._read_queue = read_queue

    def start(self) -> None:
        """Start the process, if there is a port. If the system cannot start one now, `keep_running()` tries again."""
        if self._socket is None:
            return
        self._report.memory.metrics_answered_at = time.monotonic()
        try:
            # The forked process calls `close_inherited()`, so it needs a copy of the socket.
            with self._socket.dup() as copy:
                self._process.start(partial(main, copy, report=self._report, read_queue=self._read_queue))
        except OSError as error:
            logger.warning("the metrics process could not be started: %s", error, extra=event("metrics_failed"))

    def keep_running(self) -> None:
        """Start the process again if it has ended, and kill it if it hangs. The supervisor calls this once a round."""
        if self._socket is None:
            return
        now = time.monotonic()
        if self._process.is_missing:
            self.start()
        elif self._process.pid and now - self._report.memory.metrics_answered_at > HANG_SECONDS:
            logger.error(
                "the metrics process has shown no sign of life for %.0f s and was killed",
                HANG_SECONDS,
                extra=event("metrics_failed"),
            )
            self._report.memory.metrics_answered_at = now  # log this once
            kill(self._process.pid)

    def reaped(self, pid: int) -> bool:
        """Record that a process has ended; return whether it was the metrics process."""
        return self._process.reaped(pid)

    def close_inherited(self) -> None:
        """Close the port and the pipe in a forked process. Otherwise both would outlive the supervisor."""
        self._process.close_pipe()
        if self._socket is not None:
            self._socket.close()

    def close(self) -> None:
        """Close the port, and end the process within a second."""
        self.close_inherited()
        self._process.close()
