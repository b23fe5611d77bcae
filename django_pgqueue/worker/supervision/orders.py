"""Pass orders from the supervisor to its worker processes, and read an operator's request to stop from them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from .heartbeat import ChildProcess

logger = logging.getLogger("django_pgqueue.worker")


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
