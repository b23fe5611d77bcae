"""Keep one event loop of this process working: check it from outside, and replace it when it is blocked or broken.

`Pool` owns the `Loops`. Any thread submits jobs, the main thread calls `check()` once a second, and the deadlines call
`abandon()`. Two invariants hold:

* A coroutine job that is claimed and not started stands in `waiting`, whatever a loop does. The current loop takes it
  from there, so a loop that is replaced takes no job with it.
* A running job stays on the loop on which it started. If that loop is blocked by one of its running jobs, the loop is
  kept until its jobs have ended, because the job may only be slow. If it is blocked by anything else, such as a
  background task that an ended job has left, nothing would ever end that. The loop is then abandoned, and its jobs are
  released.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final

from django_pgqueue.ground.log_events import event

from .event_loop import LoopSlots
from .host import SlotHost
from .inflight import QueuedJob

logger = logging.getLogger("django_pgqueue.worker")

UNANSWERED_LIMIT: Final = 9
"""How many checks in a row a loop may leave unanswered. Checks are a second apart, and the first one only asks."""


class Loops:
    """The current event loop, and those that were replaced and still run jobs.

    Args:
        host: The pool.
        slots: The slots of coroutines.
        on_left: Called with the executions that an abandoned loop has left. It must report them.
    """

    def __init__(self, host: SlotHost, slots: range, on_left: Callable[[list[int]], None]) -> None:
        self.host = host
        self.waiting: deque[QueuedJob] = deque()
        self.free = list(slots)
        self.abandoned = 0
        """How many loops have failed, or were abandoned because nothing would end what blocks them."""
        self._on_left = on_left
        self._guard = threading.Lock()
        """Held to replace a loop: the main thread and the deadlines may both find it blocked."""
        self.current = self._loop()
        self._replaced: list[LoopSlots] = []
        self._is_stopping = False

    def start(self) -> None:
        """Start the event loop."""
        self.current.start()

    def submit(self, jobs: Iterable[QueuedJob]) -> None:
        """Queue jobs. Safe from any thread."""
        # In this order: if the loop is replaced in between, the new loop finds the jobs when it starts.
        self.waiting.extend(jobs)
        self.current.start_waiting()

    def of(self, execution_id: int) -> LoopSlots:
        """Return the loop that runs this execution; the current one if none does. Safe from any thread."""
        return next((loop for loop in list(self._replaced) if execution_id in loop.running), self.current)

    def check(self) -> float:
        """Replace a loop that is blocked or broken. Return since when a loop with jobs has been blocked, or 0.

        The main thread calls this once a second.
        """
        if self._is_stopping:
            return 0.0
        for loop in (self.current, *self._replaced):
            loop.ask()
        if self.current.has_failed or not self.current.is_alive():
            self.abandoned += self.current.has_failed
            self.abandon(self.current)
        elif self.current.unanswered > UNANSWERED_LIMIT:
            self._replace(self.current)
        for loop in list(self._replaced):
            if loop.unanswered > UNANSWERED_LIMIT and loop.blocking_execution() is None:
                self.abandoned += 1
                self.abandon(loop)
            elif not loop.running:
                self.abandon(loop)
        return min((loop.blocked_since for loop in [self.current, *self._replaced] if loop.blocked_since), default=0.0)

    def abandon(self, loop: LoopSlots) -> None:
        """Replace a loop if it is the current one, end it, and release the jobs that run on it."""
        self._replace(loop)
        with self._guard:
            if loop not in self._replaced:  # another thread was faster
                return
            self._replaced.remove(loop)
            left = loop.retire()
        self._on_left(left)

    def stop(self) -> None:
        """Stop all loops. Safe from any thread."""
        self._is_stopping = True
        for loop in (self.current, *self._replaced):
            loop.stop()

    def _replace(self, loop: LoopSlots) -> None:
        """Start a new loop in place of this one, if it is the current one. The jobs that run on it go on."""
        with self._guard:
            if loop is not self.current:
                return
            logger.error(
                "the event loop of process %d is blocked or broken; a new one runs the next coroutine jobs. Stack:\n%s",
                os.getpid(),
                loop.stack(),
                extra=event("event_loop_replaced", pid=os.getpid()),
            )
            loop.replace()
            self._replaced.append(loop)  # before the change, so that `of()` finds its jobs
            self.current = self._loop()
            with suppress(RuntimeError):  # the system cannot start a thread; the next check tries again
                self.current.start()
        self.current.start_waiting()

    def _loop(self) -> LoopSlots:
        return LoopSlots(self.host, self.waiting, self.free)
