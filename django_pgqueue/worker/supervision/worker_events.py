"""Send `worker_started` and `worker_stopping`, which are about the whole worker, once each.

The supervisor runs no application code, so each signal gets a process of its own, named `pgqueue-signals`. It is forked
only if the signal has receivers. Nothing waits for the receivers of `worker_started`; the worker's exit waits a few
seconds for both.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import deque
from functools import partial
from typing import Any, Final, NoReturn

from django_pgqueue import signals
from django_pgqueue.ground.log_events import event
from django_pgqueue.signals import WorkerSignal
from django_pgqueue.worker.execution.process_events import call_each
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.background_log import background_log
from django_pgqueue.worker.runtime.exit_functions import forget_inherited_processes, run_exit_functions
from django_pgqueue.worker.runtime.process_info import request_death_signal

from .helper_process import Fork
from .watchdog import kill

logger = logging.getLogger("django_pgqueue.worker")

START_SECONDS: Final = 30.0
"""How long the receivers of `worker_started` may take."""
STOP_SECONDS: Final = 3.0
"""How long the receivers of both signals together may take after the worker has begun to stop."""
NAME: Final = b"pgqueue-signals"
NAMES: Final = {signals.worker_started: "worker_started", signals.worker_stopping: "worker_stopping"}


class WorkerEvents:
    """The supervisor's side of both signals: it starts their processes one after the other, and limits their time.

    Args:
        fork: Runs a function in a new process with a given name, and returns its pid.
        options: The worker's options, for the arguments of the signals.
    """

    def __init__(self, fork: Fork, options: Options) -> None:
        self._fork = fork
        self._arguments: dict[str, Any] = {
            "database": options.database,
            "queue_names": options.queue_names,
            "processes": options.processes,
            "concurrency": options.concurrency,
        }
        self._due: deque[WorkerSignal] = deque()
        self._is_started = self._is_stopping = False
        self._pid = 0
        self._sending: WorkerSignal | None = None
        self._stop_at = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a signal is being sent or has to be sent."""
        return bool(self._due or self._pid)

    def tick(self, *, stopping: bool) -> None:
        """Send the signals that are due, and kill a process whose receivers take too long. Never wait.

        A worker that begins to stop before its first call of this function has not started, and sends no signal.
        """
        if not self._is_started:
            self._is_started, self._is_stopping = True, stopping
            if not stopping:
                self._add(signals.worker_started)
        elif stopping and not self._is_stopping:
            self._is_stopping = True
            self._add(signals.worker_stopping)
            self._stop_at = time.monotonic() + STOP_SECONDS
        if self._pid and time.monotonic() > self._stop_at:
            self._give_up()
        elif self._due and not self._pid:
            self._send(self._due.popleft())

    def reaped(self, pid: int) -> bool:
        """Record that a process has ended; return whether it was one of these."""
        if pid != self._pid or not pid:
            return False
        self._pid = 0
        return True

    def _add(self, about: WorkerSignal) -> None:
        if about.has_listeners():
            self._due.append(about)

    def _send(self, about: WorkerSignal) -> None:
        self._sending = about
        if not self._is_stopping:
            self._stop_at = time.monotonic() + START_SECONDS
        arguments = {"pid": os.getpid(), **self._arguments}
        try:
            self._pid = self._fork(partial(main, about, arguments), NAME)
        except OSError as error:
            extra = event("signals_dropped", count=1)
            logger.error("%s was not sent, because no process could be started: %s", NAMES[about], error, extra=extra)

    def _give_up(self) -> None:
        """Kill the process. `reaped()` follows."""
        if self._sending is not None:
            logger.error(
                "the receivers of %s have not returned; their process is killed",
                NAMES[self._sending],
                extra=event("receivers_late"),
            )
        self._sending = None
        kill(self._pid)


def main(about: WorkerSignal, arguments: dict[str, Any]) -> NoReturn:
    """Call the receivers of a signal one after another, and exit. Runs in a forked process."""
    try:
        request_death_signal(signal.SIGKILL)  # a receiver that hangs must not outlive the supervisor
        forget_inherited_processes()
        background_log.start()
        call_each(about, arguments)
    finally:
        run_exit_functions(seconds=1.0)
        os._exit(0)
