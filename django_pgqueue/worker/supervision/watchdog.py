"""Watch over the worker processes: send orders to them, kill those that hang, and log why one has ended.

A process stops its own jobs at their timeout. C code that holds the interpreter lock prevents that, and prevents all
other threads of the process from running. Only another process can end it then. So the supervisor kills processes that
show no signs of life or cannot stop a job at its timeout.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Iterable
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.runtime.process_info import exit_code_text
from django_pgqueue.worker.runtime.shared_memory import NO_EXECUTION, ExitReason
from django_pgqueue.worker.slots.deadlines import STAY_SECONDS

from .heartbeat import EXITED_AT_ONCE, ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

SILENCE_LIMIT_SECONDS: Final = 600.0
"""How long a process may show no signs of life."""
OVERDUE_SECONDS: Final = 2 * STAY_SECONDS
"""How far past its timeout a job may run. Its process should have abandoned it after `STAY_SECONDS`."""
LOGGED_BEFORE: Final = (ExitReason.PROMOTED, ExitReason.FOREIGN)
"""Reasons that the process or the supervisor logs as well, as a database outage or as a foreign database."""


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
        _kill_child(process, "has shown no sign of life for 10 minutes", "no sign of life")


def _check_timeouts(process: ChildProcess) -> None:
    overdue = process.state.overdue(OVERDUE_SECONDS)
    if overdue:
        process.overdue = frozenset(overdue)
        reason = "jobs that exceeded their timeout"
        _kill_child(process, f"could not stop {reason}", reason)


def _kill_child(process: ChildProcess, problem: str, reason: str) -> None:
    extra = event("process_killed", pid=process.pid, reason=reason)
    logger.error("worker process %d %s and was killed", process.pid, problem, extra=extra)
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


def log_exit(process: ChildProcess, exit_code: int) -> None:
    """Log the end of a process, unless it was ordered to end."""
    exit_reason, pid = process.state.exit_reason, process.pid
    if exit_reason is ExitReason.RECYCLED:
        logger.info("worker process %d has exited and is replaced", pid, extra=event("process_replaced", pid=pid))
    elif exit_reason in EXITED_AT_ONCE:
        level = logging.INFO if exit_reason in LOGGED_BEFORE else logging.CRITICAL
        reason = EXITED_AT_ONCE[exit_reason]
        logger.log(level, "worker process %d: %s", pid, reason, extra=event("process_exited", pid=pid, reason=reason))
    elif not process.expected_to_end:
        how = exit_code_text(exit_code)
        if process.state.ended_by == NO_EXECUTION:
            how += ", because a schedule or a signal receiver has called os._exit()"
        logger.error("worker process %d died (%s)", pid, how, extra=event("process_died", pid=pid, reason=how))
    elif exit_reason is ExitReason.STUCK:
        extra = event("process_stuck", pid=pid, reason="stuck")
        logger.error("worker process %d was stuck and has exited; its jobs are ready again", pid, extra=extra)


def order_all(children: Iterable[ChildProcess], order: bytes) -> None:
    """Send an order to all processes that have an id. Their end does not count as a crash."""
    for process in [process for process in list(children) if process.worker_id]:
        process.expected_to_end = True
        try:
            os.write(process.orders, order)
        except OSError:
            logger.debug("worker process %d no longer accepts orders", process.pid)


def is_stop_requested(children: Iterable[ChildProcess]) -> bool:
    """Return whether an operator has requested a stop of one of these processes."""
    return any(process.state.stop_requested for process in children)
