"""Write the supervisor's log lines: why a worker process has ended, which signals have arrived, and failed steps."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from typing import Final

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.runtime.outages import is_expected, outage_log
from django_pgqueue.worker.runtime.process_info import exit_code_text
from django_pgqueue.worker.runtime.shared_memory import NO_EXECUTION, ExitReason

from .heartbeat import EXITED_AT_ONCE, ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

LOGGED_BEFORE: Final = (ExitReason.PROMOTED, ExitReason.FOREIGN)
"""Reasons that the process or the supervisor logs as well, as a database outage or as a foreign database."""
SUPERVISOR: Final = "supervisor"
SIGNAL_TEXTS: Final = ("stopping; running jobs may finish within the grace period", "releasing all jobs at once")


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


def log_signals(logged: int, arrived: int) -> int:
    """Log the signals that arrived since `logged` of them were logged. Return how many are logged now.

    The signal handler does not call this, because it may interrupt a log call.
    """
    for number in range(logged, arrived):
        logger.warning("signal: %s", SIGNAL_TEXTS[number], extra=event("worker_stopping", signals=number + 1))
    return arrived


def log_failed_step(error: Exception) -> None:
    """Log the exception of a step that is tried again, unless a line was logged less than a second ago."""
    if is_expected(error):
        outage_log.report(SUPERVISOR, error)
        outage_log.failing(SUPERVISOR)
    elif outage_log.may_log():
        extra = event("supervisor_failed")
        logger.error("a step of the supervisor failed and will be retried", exc_info=error, extra=extra)


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
