"""Log why a worker process has ended. Called by the supervisor, after it has seen the end of the process."""

from __future__ import annotations

import logging
from typing import Final

from django_pgqueue.worker.runtime.process_info import exit_code_text
from django_pgqueue.worker.runtime.shared_memory import ExitReason

from .heartbeat import EXITED_AT_ONCE, ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

LOGGED_BEFORE: Final = (ExitReason.PROMOTED, ExitReason.FOREIGN)
"""Reasons that the process or the supervisor logs as well, as a database outage or as a foreign database."""


def log_exit(process: ChildProcess, exit_code: int) -> None:
    """Log the end of a process, unless it was ordered to end."""
    exit_reason = process.state.exit_reason
    if exit_reason is ExitReason.RECYCLED:
        logger.info("worker process %d has exited and is replaced", process.pid)
    elif exit_reason in EXITED_AT_ONCE:
        level = logging.INFO if exit_reason in LOGGED_BEFORE else logging.CRITICAL
        logger.log(level, "worker process %d: %s", process.pid, EXITED_AT_ONCE[exit_reason])
    elif not process.expected_to_end:
        logger.error("worker process %d died (%s)", process.pid, exit_code_text(exit_code))
    elif exit_reason is ExitReason.STUCK:
        logger.error("worker process %d was stuck and has exited; its jobs are ready again", process.pid)
