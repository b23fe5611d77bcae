"""One helper process of the supervisor, which ends when the supervisor's end of a pipe is closed.

`LogProcess` and `MetricsServer` have one each. The invariant: the process does not outlive its supervisor, because each
forked process closes its copy of the pipe (`close_pipe()`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NoReturn

from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.process_info import set_process_name
from django_pgqueue.worker.runtime.process_signals import outlive_terminal

from .health_thread import HealthThread

Fork = Callable[[Callable[[], NoReturn], bytes], int]
"""Runs a function in a new process with a given name, and returns its pid."""

RESPAWN_SECONDS: Final = 5.0
"""The minimum time between two starts of the process."""
END_SECONDS: Final = 1.0
"""How long the worker's exit waits for the process."""


def fork_helper(health: HealthThread, begin: Callable[[], None], main: Callable[[], NoReturn], name: bytes) -> int:
    """Run a function in a new process with this name, which survives the signals that stop the worker; return its pid.

    `begin` is called in the new process, before `main`. It closes what belongs to this one.
    """
    django_connections.close_for_good()
    with health.paused():
        pid = os.fork()
    if pid == 0:
        try:
            outlive_terminal()  # first: a signal must not be written to the waker that `begin` closes
            begin()
            set_process_name(name)
            main()
        finally:
            os._exit(1)  # never return into the supervisor's code: there would be two supervisors
    return pid


class HelperProcess:
    """The supervisor's side of the process.

    Args:
        fork: Starts it.
        name: Its name in the list of processes.
    """

    def __init__(self, fork: Fork, name: bytes) -> None:
        self._fork = fork
        self._name = name
        self.pid = 0
        """0: it has ended, or was not started."""
        self.writer = -1
        self._started_at = float("-inf")

    def start(self, main: Callable[[int], NoReturn]) -> None:
        """Run a function in a new process, with the reading end of the pipe.

        Raise `OSError` if the system cannot start a process now. `is_missing` becomes true later, to try again.
        """
        self._started_at = time.monotonic()
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        self.close_pipe()
        self.writer = writer
        try:
            self.pid = self._fork(lambda: main(reader), self._name)
        finally:
            os.close(reader)

    @property
    def is_missing(self) -> bool:
        """Whether the process has ended, and was not started within the last 5 s."""
        return not self.pid and time.monotonic() - self._started_at > RESPAWN_SECONDS

    def reaped(self, pid: int) -> bool:
        """Record that a process has ended; return whether it was this one."""
        if pid != self.pid or not pid:
            return False
        self.pid = 0
        return True

    def close_pipe(self) -> None:
        """Close this process's end of the pipe. When all copies are closed, the helper process ends."""
        writer, self.writer = self.writer, -1
        if writer >= 0:
            os.close(writer)

    def close(self) -> None:
        """Wait up to 1 s until the process has ended, then kill it."""
        self.close_pipe()
        stop_at = time.monotonic() + END_SECONDS
        with suppress(ChildProcessError):
            while self.pid and time.monotonic() < stop_at:
                if os.waitpid(self.pid, os.WNOHANG)[0]:
                    self.pid = 0
                    return
                time.sleep(0.005)
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
