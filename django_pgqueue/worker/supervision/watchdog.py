"""Kill worker processes that show no signs of life or cannot stop a job at its timeout. The supervisor calls this.

A process stops its own jobs at their timeout. C code that holds the interpreter lock prevents that, and prevents all
other threads of the process from running. Only another process can end it then.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.slots.deadlines import STAY_SECONDS

from .heartbeat import ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

SILENCE_LIMIT_SECONDS: Final = 600.0
"""How long a process may show no signs of life."""
OVERDUE_SECONDS: Final = 2 * STAY_SECONDS
"""How far past its timeout a job may run. Its process should have abandoned it after `STAY_SECONDS`."""


def check_all(children: Iterable[ChildProcess]) -> None:
    """Kill the processes that are silent or overdue. They get no more heartbeats, even if they cannot die."""
    for process in children:
        if process.silent:
            continue
        _check_signs_of_life(process)
        _check_timeouts(process)


def _check_signs_of_life(process: ChildProcess) -> None:
    signs_of_life = process.state.signs_of_life
    if signs_of_life != process.signs_of_life:
        process.signs_of_life, process.alive_at = signs_of_life, time.monotonic()
    elif time.monotonic() - process.alive_at > SILENCE_LIMIT_SECONDS:
        logger.error(
            "worker process %d has shown no sign of life for 10 minutes and was killed",
            process.pid,
            extra=event("process_killed", pid=process.pid, reason="no sign of life"),
        )
        _kill_child(process)


def _check_timeouts(process: ChildProcess) -> None:
    overdue = process.state.overdue(OVERDUE_SECONDS)
    if overdue:
        logger.error(
            "worker process %d could not stop jobs that exceeded their timeout and was killed",
            process.pid,
            extra=event("process_killed", pid=process.pid, reason="jobs that exceeded their timeout"),
        )
        process.overdue = frozenset(overdue)
        _kill_child(process)


def _kill_child(process: ChildProcess) -> None:
    process.silent = True
    kill(process.pid)


def end_all(processes: Iterable[ChildProcess]) -> None:
    """Kill these processes. Their end does not count as a crash."""
    for process in processes:
        process.expected_to_end = True
        kill(process.pid)


def kill(pid: int) -> None:
    """Kill a process, unless it has ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.debug("process %d has ended already", pid)
