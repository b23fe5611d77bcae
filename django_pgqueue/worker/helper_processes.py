"""The processes in which a supervisor has code of the application run: log handlers, backoffs, signal receivers."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Final, NoReturn

from . import hygiene
from .health import HealthFile
from .link import Link
from .log_process import LogProcess
from .process_signals import outlive_terminal
from .settlement import Settlement

AT_END_SECONDS: Final = 8.0
"""How long the worker's end waits for what its last processes held to be settled, and for receivers."""
AT_END_TURN_SECONDS: Final = 0.1
PR_SET_NAME: Final = 15


class HelperProcesses:
    """Those of one supervisor. `leave_behind` lets go, in a process just forked, of what is the supervisor's."""

    def __init__(self, link: Link, health: HealthFile, leave_behind: Callable[[], None]) -> None:
        self._health = health
        self._leave_behind = leave_behind
        self.log = LogProcess(self._fork)
        self.settlement = Settlement(link, self._fork)

    def reaped(self, pid: int, exit_code: int) -> None:
        """Take note that a process has ended."""
        if not self.settlement.reaped(pid, exit_code):
            self.log.reaped(pid)

    def settle_at_end(self, survive: Callable[[Callable[[], None]], bool], nap: Callable[[float], None]) -> None:
        """Settle what the last worker processes held. `survive` says whether the database was there, `nap` reaps."""
        stop_at = time.monotonic() + AT_END_SECONDS
        while survive(self.settlement.tick) and not self.settlement.is_done and time.monotonic() < stop_at:
            nap(AT_END_TURN_SECONDS)
        self.settlement.kill_rest()

    def _fork(self, main: Callable[[], NoReturn], name: bytes) -> int:
        """Run a function in a new process, which outlives the signals that stop workers; return its pid."""
        hygiene.close_for_good()
        with self._health.paused():
            pid = os.fork()
        if pid == 0:
            try:
                self._leave_behind()
                outlive_terminal()
                _name_this_process(name)
                main()
            finally:
                os._exit(1)  # never back into the supervisor's code
        return pid


def _name_this_process(name: bytes) -> None:
    """Set what `ps -o comm` and `top` show; only Linux can."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
