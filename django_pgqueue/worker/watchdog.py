"""The supervisor's eye on its children: those that show no life, and those that cannot end a job at its timeout."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from typing import Final

from .deadlines import STAY_SECONDS
from .leases import Process

logger = logging.getLogger("django_pgqueue.worker")

SILENCE_LIMIT_SECONDS: Final = 600.0
OVERDUE_SECONDS: Final = 2 * STAY_SECONDS
"""How far over its timeout a job may be before its process, which should have given it up, is killed."""


def look_after(children: Iterable[Process]) -> None:
    """Kill the children that are silent or overdue; they are no longer beaten for, even if they cannot die."""
    for process in children:
        if process.silent:
            continue
        _look_for_life(process)
        _look_for_overdue(process)


def _look_for_life(process: Process) -> None:
    signs = process.board.signs_of_life
    if signs != process.signs_of_life:
        process.signs_of_life, process.alive_at = signs, time.monotonic()
    elif time.monotonic() - process.alive_at > SILENCE_LIMIT_SECONDS:
        logger.error("worker process %d has shown no life for 10 minutes: killed", process.pid)
        _end(process)


def _look_for_overdue(process: Process) -> None:
    """End a process that could not itself end a job at its timeout: C code keeps the interpreter from it."""
    overdue = process.board.overdue(OVERDUE_SECONDS)
    if overdue:
        logger.error("worker process %d cannot end jobs that are over their timeout: killed", process.pid)
        process.overdue = frozenset(overdue)
        _end(process)


def _end(process: Process) -> None:
    process.silent = True
    kill(process.pid)


def kill(pid: int) -> None:
    """Kill a process, if it is there still."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        logger.debug("process %d has ended already", pid)
