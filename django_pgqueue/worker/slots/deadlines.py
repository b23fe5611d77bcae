"""Stop jobs that run for longer than their task's `timeout`, or that keep running after they were asked to stop.

At the deadline, the service raises an exception in the job's thread or cancels its coroutine. If the job still runs 5 s
later, the service abandons it: its stack is recorded, its execution is closed, and its slot gets a new thread. C code
that holds the interpreter lock stops this service too; in that case the supervisor ends the whole process.

`Pool` adds and removes jobs. Isolated jobs are not watched here, because the slot that waits for an isolated process
kills it at its timeout.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from django_pgqueue.worker.runtime.service import Service

RETRY_SECONDS: Final = 0.01
"""Interval between attempts to stop a job that is at a point where no exception may be raised."""
STAY_SECONDS: Final = 5.0
"""Time that a job has to clean up after it was stopped."""


class Deadlines(Service):
    """Watch the jobs of this process that have a timeout or were asked to stop."""

    def __init__(
        self, time_out: Callable[[int], bool], cancel: Callable[[int], bool], give_up: Callable[[int], None]
    ) -> None:
        super().__init__("deadlines")
        self.time_out = time_out
        self.cancel = cancel
        self.give_up = give_up
        self.watched: set[int] = set()
        """Executions that may have to be removed when they end. It is empty if no job has a timeout or is cancelled."""
        self._stop_at: dict[int, float] = {}
        self._cancel_at: dict[int, float] = {}
        self._late: dict[int, float] = {}
        """Executions that were stopped, with the time at which each is abandoned."""
        self._sleeps_until = float("inf")

    def add(self, execution_id: int, stop_at: float) -> None:
        """Watch a job that has started. `stop_at` is a time of the monotonic clock. Safe from any thread."""
        self.watched.add(execution_id)
        self._stop_at[execution_id] = stop_at
        if stop_at < self._sleeps_until:
            self.wake()

    def add_cancel(self, execution_id: int, cancel_at: float) -> None:
        """Watch a job that was asked to stop. Safe from any thread.

        `cancel_at` is a time of the monotonic clock; only the first one counts. A job that was already stopped and is
        cleaning up is ignored, because every scan for cancellation requests reports it again.
        """
        if execution_id in self._late:
            return
        self.watched.add(execution_id)
        if self._cancel_at.setdefault(execution_id, cancel_at) < self._sleeps_until:
            self.wake()

    def remove(self, execution_id: int) -> None:
        """Forget a job that has ended. Safe from any thread, also for a job that is not watched."""
        self.watched.discard(execution_id)
        self._stop_at.pop(execution_id, None)
        self._cancel_at.pop(execution_id, None)
        self._late.pop(execution_id, None)

    def tick(self) -> float:
        """Stop the jobs that are due. Return the seconds until the next deadline."""
        self._sleeps_until = float("inf")  # every deadline that is added from here on wakes this thread
        now = time.monotonic()
        self._stop_due(self._stop_at, self.time_out, now)
        self._stop_due(self._cancel_at, self.cancel, now)
        for execution_id in _due(self._late, now):
            if self._late.pop(execution_id, None) is not None:
                self.give_up(execution_id)
                self.watched.discard(execution_id)  # the job may have ended just before it was added
        instants = (at for watched in (self._stop_at, self._cancel_at, self._late) for at in list(watched.values()))
        next_at = min(instants, default=now + 60.0)
        self._sleeps_until = next_at
        return max(0.0, next_at - time.monotonic())

    def _stop_due(self, instants: dict[int, float], stop: Callable[[int], bool], now: float) -> None:
        for execution_id in _due(instants, now):
            self._late.setdefault(execution_id, now + STAY_SECONDS)  # before the removal, because of `add_cancel`
            if instants.pop(execution_id, None) is not None and not stop(execution_id):
                instants[execution_id] = now + RETRY_SECONDS


def _due(instants: dict[int, float], now: float) -> list[int]:
    return [execution_id for execution_id, instant in list(instants.items()) if instant <= now]
