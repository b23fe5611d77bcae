"""Ends jobs that run for longer than their task's `timeout`, or on and on after they were asked to stop.

At the time: an exception is raised in the thread, the coroutine is cancelled. Five seconds later what is still there is
given up: its stack goes on record, its execution is closed, and its slot gets a new thread. What keeps even this
service from running, C code that holds the interpreter, is ended by the supervisor, with the process.

The timeouts of isolated jobs are not seen here: the slot that waits for one kills its process at the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from .service import Service

AGAIN_SECONDS: Final = 0.01
"""How soon to try again to stop a job that is where nothing can be thrown."""
STAY_SECONDS: Final = 5.0
"""How long a job may take to clean up after its time."""


class Deadlines(Service):
    """Watches the jobs of this process that have a timeout, or were asked to stop."""

    def __init__(
        self, time_out: Callable[[int], bool], cancel: Callable[[int], bool], give_up: Callable[[int], None]
    ) -> None:
        super().__init__("deadlines")
        self.time_out = time_out
        self.cancel = cancel
        self.give_up = give_up
        self._stop_at: dict[int, float] = {}
        self._cancel_at: dict[int, float] = {}
        self._late: dict[int, float] = {}
        """Those told to stop, and when they will be given up."""
        self._sleeps_until = float("inf")

    def add(self, execution_id: int, stop_at: float) -> None:
        """Watch a job that has started; `stop_at` is of the monotonic clock. From any thread."""
        self._stop_at[execution_id] = stop_at
        if stop_at < self._sleeps_until:
            self.wake()

    def add_cancel(self, execution_id: int, cancel_at: float) -> None:
        """Watch a job that was asked to stop; `cancel_at` as above, the first counts. From any thread.

        Nothing more for one that was stopped already, and cleans up: each look for requests tells of it again.
        """
        if execution_id in self._late:
            return
        if self._cancel_at.setdefault(execution_id, cancel_at) < self._sleeps_until:
            self.wake()

    def remove(self, execution_id: int) -> None:
        """A job has ended; from any thread, also for one that is not watched."""
        self._stop_at.pop(execution_id, None)
        self._cancel_at.pop(execution_id, None)
        self._late.pop(execution_id, None)

    def tick(self) -> float:
        """Stop what is due; sleep until the next is."""
        self._sleeps_until = float("inf")  # whatever is added from here on wakes us
        now = time.monotonic()
        self._stop_due(self._stop_at, self.time_out, now)
        self._stop_due(self._cancel_at, self.cancel, now)
        for execution_id in _due(self._late, now):
            if self._late.pop(execution_id, None) is not None:
                self.give_up(execution_id)
        instants = (at for watched in (self._stop_at, self._cancel_at, self._late) for at in list(watched.values()))
        next_at = min(instants, default=now + 60.0)
        self._sleeps_until = next_at
        return max(0.0, next_at - time.monotonic())

    def _stop_due(self, instants: dict[int, float], stop: Callable[[int], bool], now: float) -> None:
        for execution_id in _due(instants, now):
            self._late.setdefault(execution_id, now + STAY_SECONDS)  # first: see `add_cancel`
            if instants.pop(execution_id, None) is not None and not stop(execution_id):
                instants[execution_id] = now + AGAIN_SECONDS


def _due(instants: dict[int, float], now: float) -> list[int]:
    return [execution_id for execution_id, instant in list(instants.items()) if instant <= now]
