"""Write the log line about a worker process that has ended. The supervisor calls `log_exit()`."""

from __future__ import annotations

import logging

from django_pgqueue.log_events import event
from django_pgqueue.worker.runtime.process_info import exit_code_text
from django_pgqueue.worker.runtime.shared_memory import ExitReason

from .heartbeat import EXITED_AT_ONCE, ChildProcess

logger = logging.getLogger("django_pgqueue.worker")


def log_exit(process: ChildProcess, exit_code: int) -> None:
    """Log why a worker process has ended. Log nothing if it has stopped in order."""
    exit_reason, pid = process.state.exit_reason, process.pid
    if exit_reason is ExitReason.RECYCLED:
        logger.info("worker process %d has exited and is replaced", pid, extra=event("process_replaced", pid=pid))
    elif exit_reason in EXITED_AT_ONCE:
        # INFO for a promotion, because each process has logged it already as a database outage.
        level = logging.INFO if exit_reason is ExitReason.PROMOTED else logging.CRITICAL
        reason = EXITED_AT_ONCE[exit_reason]
        extra = event("process_exited", pid=pid, reason=reason)
        logger.log(level, "worker process %d: %s; its jobs are ready again", pid, reason, extra=extra)
    elif not process.expected_to_end:
        how = exit_code_text(exit_code)
        logger.error("worker process %d died (%s)", pid, how, extra=event("process_died", pid=pid, reason=how))
    elif exit_reason is ExitReason.STUCK:
        extra = event("process_stuck", pid=pid, reason="stuck")
        logger.error("worker process %d was stuck and has exited; its jobs are ready again", pid, extra=extra)
