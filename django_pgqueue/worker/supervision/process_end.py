"""Log why a worker process has ended, and decide when to replace it. The supervisor calls this."""

from __future__ import annotations

import logging
import time
from typing import Final

from django_pgqueue.worker.runtime.process_info import exit_code_text
from django_pgqueue.worker.runtime.shared_memory import ExitReason

from .heartbeat import EXITED_AT_ONCE, ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

RESTART_BACKOFF_SECONDS: Final = (0.0, 0.2, 1.0, 5.0, 15.0)
"""The delays before processes that died are replaced. The first is replaced at once."""
HEALTHY_SECONDS: Final = 30.0
"""A process that lived longer than this before it died resets the backoff."""


class RestartBackoff:
    """The delays before processes that died are replaced."""

    def __init__(self) -> None:
        self._restarts = 0

    def seconds_after(self, process: ChildProcess) -> float:
        """Return how long to wait before a process that has died now is replaced."""
        self._restarts = 0 if time.monotonic() - process.born_at > HEALTHY_SECONDS else self._restarts
        seconds = RESTART_BACKOFF_SECONDS[min(self._restarts, len(RESTART_BACKOFF_SECONDS) - 1)]
        self._restarts += 1
        return seconds


def log_end(process: ChildProcess, exit_code: int) -> None:
    """Log the end of a process, unless it was ordered to stop or ran until the queues were empty."""
    exit_reason = process.state.exit_reason
    if exit_reason is ExitReason.RECYCLED:
        logger.info("worker process %d has exited and is replaced", process.pid)
    elif exit_reason in EXITED_AT_ONCE:
        # INFO for a promotion, because each process has logged it already as a database outage.
        level = logging.INFO if exit_reason is ExitReason.PROMOTED else logging.CRITICAL
        reason = EXITED_AT_ONCE[exit_reason]
        logger.log(level, "worker process %d: %s; its jobs are ready again", process.pid, reason)
    elif not process.expected_to_end:
        logger.error("worker process %d died (%s)", process.pid, exit_code_text(exit_code))
    elif exit_reason is ExitReason.STUCK:
        logger.error("worker process %d was stuck and has exited; its jobs are ready again", process.pid)
