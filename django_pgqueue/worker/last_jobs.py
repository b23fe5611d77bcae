"""How a worker process ends the jobs that still run after its grace, so that none runs in two processes at once.

`Child` calls this in the process's main thread, when no slot starts another job. It releases afterwards what is left.

To release a running job is to let another worker start it while it still runs here. So that comes last, and directly
before the exit. Before it the completer writes the ends of jobs that ended in time, jobs that run are interrupted, and
the completer writes that these were released.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from .completer import Completer
from .hand import Hand
from .pool import Pool

logger = logging.getLogger("django_pgqueue.worker")

LIMIT_SECONDS: Final = 8.0
"""For all of it. The supervisor kills the process 12 s after the grace, and the release needs time too."""
FIRST_WRITE_SECONDS: Final = 3.0
"""How long the completer gets for what ended in time, before jobs are interrupted."""
CLEAN_UP_SECONDS: Final = 1.0
"""How long interrupted jobs get to end."""
HURRIED_CLEAN_UP_SECONDS: Final = 0.2
"""The same after a second signal, which asks for an exit within half a second."""
TURN_SECONDS: Final = 0.002


def end_running_jobs(hand: Hand, pool: Pool, completer: Completer, *, hurried: bool, lease_left_seconds: float) -> int:
    """Have all ends written, and interrupt what still runs; return how many jobs that was.

    Takes 8 s at most, and no longer than the leases hold.
    """
    deadline = time.monotonic() + max(1.0, min(LIMIT_SECONDS, lease_left_seconds))
    running = list(hand.running)
    if running:
        _empty(completer, min(deadline, time.monotonic() + FIRST_WRITE_SECONDS))
        running = list(hand.running)
    if running:
        logger.warning("%d jobs still run after the grace: they are given back", len(running))
        clean_up_seconds = HURRIED_CLEAN_UP_SECONDS if hurried else CLEAN_UP_SECONDS
        _interrupt(hand, pool, min(deadline, time.monotonic() + clean_up_seconds))
    pool.stop()
    _empty(completer, deadline)
    return len(running)


def _interrupt(hand: Hand, pool: Pool, deadline: float) -> None:
    for execution_id in list(hand.running):
        if time.monotonic() < deadline:
            pool.interrupt([execution_id])
    _wait(lambda: not hand.running, deadline)


def _empty(completer: Completer, deadline: float) -> None:
    def is_empty() -> bool:
        completer.wake()
        return not len(completer)

    _wait(is_empty, deadline)


def _wait(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.monotonic() < deadline:
        time.sleep(TURN_SECONDS)
