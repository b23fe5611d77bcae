"""What a worker process holds: jobs that wait for a slot, and jobs that run.

Shared by all threads of the process. Whoever removes an entry from `waiting` owns the job, and removing is one atomic
operation on a dict: so a job is either started by a slot or released by the fetcher, never both. A lock only keeps the
number that runs within `capacity`, threads and coroutines together.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed


class Waiting(NamedTuple):
    """A claimed job that no slot has taken yet, and when it came, by the monotonic clock."""

    claimed: Claimed
    claimed_at: float


class Running(NamedTuple):
    """A job that runs, in which slot, and when it was claimed, by the monotonic clock."""

    claimed: Claimed
    claimed_at: float
    slot: int


class Full(Exception):
    """As many jobs run as may."""


class Hand:
    """The executions of this process that are open as far as it knows, the completer's apart."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        """How many may run at a time."""
        self.waiting: dict[int, Waiting] = {}
        self.running: dict[int, Running] = {}
        self.started = 0
        """How many jobs have started since the process did: the fetcher's measure of speed."""
        self.lately: set[str] = set()
        """The tasks of jobs that have ended since somebody last emptied this."""
        self._room = threading.Condition()
        self._threads_waiting = 0

    def add(self, jobs: list[Claimed]) -> None:
        """Put newly claimed jobs behind those that wait."""
        now = time.monotonic()
        for claimed in jobs:
            self.waiting[claimed.execution_id] = Waiting(claimed, now)

    def start(self, execution_id: int, slot: int, *, wait: bool) -> Claimed | None:
        """Move a job from waiting to running; None if it was released meanwhile.

        Where as many run as may, waits for one to end, or raises `Full`.
        """
        with self._room:
            while len(self.running) >= self.capacity and execution_id in self.waiting:
                if not wait:
                    raise Full
                self._threads_waiting += 1
                self._room.wait()
                self._threads_waiting -= 1
            waiting = self.waiting.pop(execution_id, None)
            if waiting is None:
                return None
            self.running[execution_id] = Running(waiting.claimed, waiting.claimed_at, slot)
            self.started += 1
            return waiting.claimed

    def end(self, execution_id: int) -> None:
        """Forget a job that has ended."""
        with self._room:
            running = self.running.pop(execution_id, None)
            if running is not None:
                self.lately.add(running.claimed.task_name)
            if self._threads_waiting:
                self._room.notify_all()

    @property
    def free_slots(self) -> int:
        """How many jobs would start at once if they came now."""
        return max(0, self.capacity - len(self.running) - len(self.waiting))

    def take_waiting(self, claimed_before: float = float("inf")) -> list[Claimed]:
        """Remove and return the jobs that have waited since before then; they are the caller's to release."""
        old = [key for key, waiting in list(self.waiting.items()) if waiting.claimed_at < claimed_before]
        taken = [self.waiting.pop(key, None) for key in old]
        if taken and self._threads_waiting:
            with self._room:
                self._room.notify_all()
        return [waiting.claimed for waiting in taken if waiting is not None]

    def known_before(self, instant: float) -> set[int]:
        """Return the ids that were held before then, and still are."""
        waiting = {key for key, entry in list(self.waiting.items()) if entry.claimed_at < instant}
        return waiting | {key for key, entry in list(self.running.items()) if entry.claimed_at < instant}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)
