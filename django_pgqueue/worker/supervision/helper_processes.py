"""Run application code outside the supervisor's own process: log handlers, backoff functions, and signal receivers.

The supervisor creates one `HelperProcesses`. Code that blocks in the supervisor would stop the heartbeats of all
worker processes, so the supervisor forks helper processes for it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.health_report import HealthReport

from .health_thread import HealthThread
from .helper_process import fork_helper
from .log_process import LogProcess
from .metrics_server import MetricsServer
from .settlement import Settlement
from .worker_events import WorkerEvents

AT_END_SECONDS: Final = 8.0
"""How long the worker's exit waits for the settlement of its last processes, including signal receivers."""
AT_END_OUTAGE_SECONDS: Final = 2.0
"""How long the database may be away while the last executions are closed. A supervisor can lose its session long before
it sends the next heartbeat, so the first statement here can be the one that notices."""
AT_END_TURN_SECONDS: Final = 0.1


class HelperProcesses:
    """The helper processes of one supervisor.

    Args:
        options: The worker's options.
        listener: The socket of the metrics port, or None.
        link: The supervisor's connection.
        health: The thread that reports the worker's health. It pauses during a fork.
        report: The worker's health.
        close_inherited: Called in a forked process; closes what belongs to the supervisor.
    """

    def __init__(
        self,
        options: Options,
        listener: socket.socket | None,
        link: Link,
        health: HealthThread,
        report: HealthReport,
        close_inherited: Callable[[], None],
    ) -> None:
        self._report = report
        self._close_inherited = close_inherited
        fork = partial(fork_helper, health, self._begin)
        self.log = LogProcess(fork)
        self.settlement = Settlement(link, fork)
        self.events = WorkerEvents(fork, options)
        self.metrics = MetricsServer(fork, listener, report, options.read_queue)

    def tick(self, *, stopping: bool) -> None:
        """Start the processes that are missing. The supervisor calls this once a round when its database is ready."""
        self.events.tick(stopping=stopping)
        self.log.restart_if_ended()
        self.metrics.keep_running()

    def reaped(self, pid: int, exit_code: int) -> None:
        """Record that a helper process has ended."""
        if not self.settlement.reaped(pid, exit_code) and not self.events.reaped(pid) and not self.metrics.reaped(pid):
            self.log.reaped(pid)

    def end(
        self,
        survive: Callable[[Callable[[], None]], bool],
        wait_and_reap: Callable[[float], None],
        limit_seconds: float,
    ) -> None:
        """Close the executions that the last worker processes left open, for 8 s at most, and send `worker_stopping`.

        Args:
            survive: Calls a step and returns whether the database was available.
            wait_and_reap: Waits for this many seconds and reaps processes that have ended.
            limit_seconds: How long the worker may still exist.
        """
        self.events.tick(stopping=True)
        stop_at = time.monotonic() + min(AT_END_SECONDS, limit_seconds - AT_END_TURN_SECONDS)
        give_up_at = time.monotonic() + AT_END_OUTAGE_SECONDS
        while True:
            now, works = time.monotonic(), survive(self.settlement.tick)
            give_up_at = now + AT_END_OUTAGE_SECONDS if works else give_up_at
            if (works and self.settlement.is_done) or now >= min(stop_at, give_up_at):
                break
            wait_and_reap(AT_END_TURN_SECONDS)
        self.settlement.kill_remaining()
        while self.events.is_busy:
            wait_and_reap(AT_END_TURN_SECONDS)
            self.events.tick(stopping=True)

    def _begin(self) -> None:
        self._close_inherited()
        counts.use(self._report.memory.helper_counts)
