"""What a worker process holds: jobs that wait for a slot, and jobs that run.

Shared by all threads of the process. Whoever removes an entry from `waiting` owns the job, and removing is one atomic
operation on a dict: so a job is either started by a slot or released by the fetcher, never both. What keeps the number
that runs within `capacity`, threads and coroutines together, is a stack of places, popped and pushed in one operation
too. With a lock here, ten threads waited for each other at every job: 46 µs a job instead of 10.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from django_pgqueue.lifecycle import Claimed, ExecutionKey


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

    def __init__(self, capacity: int, opened: int | None = None) -> None:
        """Make a hand of `capacity` places, of which `opened` may be used until `open_places()` (None: all)."""
        self.capacity = capacity
        """How many may run at a time, in the end."""
        self.opened = capacity if opened is None else opened
        """How many may run at a time now."""
        self.waiting: dict[int, Waiting] = {}
        self.running: dict[int, Running] = {}
        self.lately: set[str] = set()
        """The tasks of jobs that have ended since somebody last emptied this."""
        self._places = [None] * self.opened
        self._started = [0] * (2 * capacity)
        self._room_made = threading.Condition()
        self._threads_waiting = 0
        self._is_closed = False

    def add(self, jobs: list[Claimed]) -> None:
        """Put newly claimed jobs behind those that wait."""
        now = time.monotonic()
        for claimed in jobs:
            self.waiting[claimed.execution_id] = Waiting(claimed, now)

    def start(self, execution_id: int, slot: int, *, wait: bool) -> Claimed | None:
        """Move a job from waiting to running; None if it was released meanwhile.

        Where as many run as may, waits for one to end, or raises `Full`.
        """
        if self._is_closed or not self._takes_place(execution_id, wait=wait):
            return None
        waiting = self.waiting.pop(execution_id, None)
        if waiting is None:
            self._leave_place()
            return None
        self.running[execution_id] = Running(waiting.claimed, waiting.claimed_at, slot)
        self._started[slot] += 1  # by this slot's thread alone
        return waiting.claimed

    def close(self) -> None:
        """Let no further job start: the process ends. What waits stays, to be released."""
        self._is_closed = True

    def end(self, execution_id: int) -> None:
        """Forget a job that has ended."""
        running = self.running.pop(execution_id, None)
        if running is not None:
            self.lately.add(running.claimed.task_name)
            self._leave_place()

    def open_places(self, allowed: int) -> bool:
        """Let up to `allowed` jobs run from now on; return whether that is more than before. By one thread only."""
        more = min(allowed, self.capacity) - self.opened
        if more <= 0:
            return False
        self.opened += more
        self._places.extend([None] * more)
        self._tell_threads_waiting()
        return True

    def _takes_place(self, execution_id: int, *, wait: bool) -> bool:
        if self._pops_place():
            return True
        if not wait and execution_id in self.waiting:
            raise Full
        with self._room_made:
            self._threads_waiting += 1  # before the look: who leaves a place looks at this afterwards
            try:
                while execution_id in self.waiting:
                    if self._pops_place():
                        return True
                    self._room_made.wait()
            finally:
                self._threads_waiting -= 1
        return False

    def _pops_place(self) -> bool:
        try:
            self._places.pop()
        except IndexError:
            return False
        return True

    def _leave_place(self) -> None:
        self._places.append(None)
        self._tell_threads_waiting()

    def _tell_threads_waiting(self) -> None:
        if self._threads_waiting:
            with self._room_made:
                self._room_made.notify_all()

    @property
    def started(self) -> int:
        """How many jobs have started since the process did: the fetcher's measure of speed."""
        return sum(self._started)

    @property
    def free_slots(self) -> int:
        """How many jobs would start at once if they came now."""
        return max(0, self.opened - len(self.running) - len(self.waiting))

    def take_waiting(self, claimed_before: float = float("inf")) -> list[Claimed]:
        """Remove and return the jobs that have waited since before then; they are the caller's to release."""
        old = [key for key, waiting in list(self.waiting.items()) if waiting.claimed_at < claimed_before]
        taken = [self.waiting.pop(key, None) for key in old]
        if taken:
            self._tell_threads_waiting()
        return [waiting.claimed for waiting in taken if waiting is not None]

    def known_before(self, instant: float) -> set[int]:
        """Return the ids that were held before then, and still are."""
        waiting = {key for key, entry in list(self.waiting.items()) if entry.claimed_at < instant}
        return waiting | {key for key, entry in list(self.running.items()) if entry.claimed_at < instant}

    def keys_before(self, instant: float) -> set[ExecutionKey]:
        """Return the keys of the executions that were held before then, and still are."""
        waiting = {entry.claimed.key for entry in list(self.waiting.values()) if entry.claimed_at < instant}
        return waiting | {entry.claimed.key for entry in list(self.running.values()) if entry.claimed_at < instant}

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)
