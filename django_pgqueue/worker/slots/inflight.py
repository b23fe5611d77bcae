"""Keep the jobs that this process has in flight: prefetched jobs that wait for a slot, and running jobs.

All threads of the process share one `InFlight`. The fetcher adds jobs, the slots start and end them, the lease monitor
reads them. Two invariants hold without a lock per job:

* A prefetched job is either started by a slot or released, never both. The thread that removes the entry from `waiting`
  owns the job, and the removal is one atomic operation on a dict.
* At most `capacity` jobs run, threads and coroutines together. A starting job pops a place from a stack and pushes it
  back when it ends; each is one atomic operation too.

With a lock here, ten threads waited for each other at every job: 46 µs a job instead of 10 µs. `JobQueue` has no lock
per job either.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from queue import Empty
from typing import NamedTuple

from django_pgqueue.lifecycle.types import Claimed, ExecutionKey
from django_pgqueue.worker.execution.attempt_plan import AttemptPlan

from .queue_slots import QueueSlots

QueuedJob = tuple[int, "AttemptPlan"]
"""An execution that waits for a slot, and the plan of its task."""


class Prefetched(NamedTuple):
    """A prefetched job, and when it was claimed, by the monotonic clock."""

    claimed: Claimed
    claimed_at: float


class Running(NamedTuple):
    """A running job, when it was claimed, by the monotonic clock, and its slot."""

    claimed: Claimed
    claimed_at: float
    slot: int


class Full(Exception):
    """The maximum number of jobs is running."""


class InFlight:
    """The open executions that this process knows, except those that the completer has taken over."""

    def __init__(self, capacity: int, opened: int | None = None, queue_slots: QueueSlots | None = None) -> None:
        """Create `capacity` places. Until `open_places()` is called, `opened` of them may be used (None: all)."""
        self.queue_slots = queue_slots
        """The slots of each queue. None: no queue has fewer than the process."""
        self.capacity = capacity
        """Jobs that may run at a time once all places are open."""
        self.opened = capacity if opened is None else opened
        """Jobs that may run at a time now."""
        self.waiting: dict[int, Prefetched] = {}
        self.running: dict[int, Running] = {}
        self.ended_tasks: set[str] = set()
        """Tasks of the jobs that have ended since `LeakDetector` last emptied this set."""
        self._first_ids: dict[int, int] = {}
        """For the executions of a chunk, except the first: the id of the first, which stands for the chunk here."""
        self._lost_ids: set[int] = set()
        """Executions of running chunks whose lease is lost, while the other jobs of the chunk continue."""
        self._places = [None] * self.opened
        self._started = [0] * (2 * capacity)
        self._room_made = threading.Condition()
        self._threads_waiting = 0
        self._is_closed = False

    def add(self, jobs: list[Claimed]) -> None:
        """Add newly claimed jobs behind the prefetched ones."""
        now = time.monotonic()
        for claimed in jobs:
            if claimed.others:
                self._first_ids |= {other.execution_id: claimed.execution_id for other in claimed.others}
            self.waiting[claimed.execution_id] = Prefetched(claimed, now)
        if self.queue_slots is not None:
            self.queue_slots.take(jobs)

    def start(self, execution_id: int, slot: int, *, wait: bool) -> Claimed | None:
        """Move a job from waiting to running and return it; return None if it was released meanwhile.

        If the maximum number of jobs is running, wait for one to end (`wait`), or raise `Full`.
        """
        if self._is_closed:
            return None
        try:
            self._places.pop()
        except IndexError:
            if not self._takes_place(execution_id, wait=wait):
                return None
        waiting = self.waiting.pop(execution_id, None)
        if waiting is None:
            self._places.append(None)
            self._notify_waiting_threads()
            return None
        claimed, claimed_at = waiting
        self.running[execution_id] = Running(claimed, claimed_at, slot)
        self._started[slot] += 1  # only this slot's thread writes this counter
        return claimed

    def close(self) -> None:
        """Let no further job start, because the process ends. Prefetched jobs stay here until they are released."""
        self._is_closed = True

    def end(self, execution_id: int) -> None:
        """Forget a job that has ended."""
        running = self.running.pop(execution_id, None)
        if running is not None:
            claimed = running.claimed
            self.ended_tasks.add(claimed.task_name)
            if claimed.others is not None:
                self._forget_chunk(claimed)
            if self.queue_slots is not None:
                self.queue_slots.free(claimed.queue_name)
            self._places.append(None)
            if self._threads_waiting:
                self._notify_waiting_threads()

    def running_with(self, execution_id: int) -> Running | None:
        """Return the running job with this execution, or the running chunk with it."""
        return self.running.get(self._first_ids.get(execution_id, execution_id))

    def lose(self, execution_ids: Iterable[int]) -> None:
        """Note that the leases of some jobs of a chunk are lost: `keys_before()` does not return them any more."""
        self._lost_ids |= set(execution_ids)

    def _forget_chunk(self, first: Claimed) -> None:
        self._lost_ids.discard(first.execution_id)
        for other in first.others or ():
            self._first_ids.pop(other.execution_id, None)
            self._lost_ids.discard(other.execution_id)

    def open_places(self, allowed: int) -> bool:
        """Let up to `allowed` jobs run from now on, and return whether that is more. Call it from one thread only."""
        more = min(allowed, self.capacity) - self.opened
        if more <= 0:
            return False
        self.opened += more
        self._places.extend([None] * more)
        self._notify_waiting_threads()
        return True

    def _takes_place(self, execution_id: int, *, wait: bool) -> bool:
        """Take a place after none was free. Return False if the job was released meanwhile."""
        if not wait and execution_id in self.waiting:
            raise Full
        with self._room_made:
            # `end()` reads this counter after it frees a place. Increment it before checking for a free place;
            # otherwise the wake-up is lost.
            self._threads_waiting += 1
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

    def _notify_waiting_threads(self) -> None:
        with self._room_made:
            self._room_made.notify_all()

    @property
    def started(self) -> int:
        """Jobs started since the process began. The fetcher measures its speed by it."""
        return sum(self._started)

    @property
    def free_slots(self) -> int:
        """Jobs that would start at once if they were claimed now."""
        return max(0, self.opened - len(self.running) - len(self.waiting))

    def take_waiting(self, claimed_before: float = float("inf")) -> list[Claimed]:
        """Remove and return the prefetched jobs that were claimed before then. The caller must release them."""
        return self.take([key for key, waiting in list(self.waiting.items()) if waiting.claimed_at < claimed_before])

    def take(self, execution_ids: Iterable[int]) -> list[Claimed]:
        """Remove these prefetched jobs and return them, with all jobs of their chunks. The caller must release them."""
        taken = [self.waiting.pop(self._first_ids.get(key, key), None) for key in execution_ids]
        if taken:
            self._notify_waiting_threads()
        jobs = [waiting.claimed for waiting in taken if waiting is not None]
        if self.queue_slots is not None:
            for job in jobs:
                self.queue_slots.free(job.queue_name)
        if not self._first_ids:
            return jobs
        for job in jobs:
            self._forget_chunk(job)
        return [member for job in jobs for member in job.members]

    def known_before(self, instant: float) -> set[int]:
        """Return the ids of the executions that were in flight before `instant` and still are."""
        known = {key for key, entry in list(self.waiting.items()) if entry.claimed_at < instant}
        known |= {key for key, entry in list(self.running.items()) if entry.claimed_at < instant}
        known |= {key for key, first_id in list(self._first_ids.items()) if first_id in known}
        return known - self._lost_ids

    def keys_before(self, instant: float) -> set[ExecutionKey]:
        """Return the keys of the executions that were in flight before `instant` and still are."""
        jobs = [entry.claimed for entry in list(self.waiting.values()) if entry.claimed_at < instant]
        jobs += [entry.claimed for entry in list(self.running.values()) if entry.claimed_at < instant]
        known = {job.key for job in jobs}
        if self._first_ids or self._lost_ids:
            known |= {other.key for job in jobs for other in job.others or ()}
            known = {key for key in known if key.execution_id not in self._lost_ids}
        return known

    def __len__(self) -> int:
        return len(self.waiting) + len(self.running)


class JobQueue:
    """The executions that wait for a thread of the pool. None ends a thread. Each job wakes one thread, and no other.

    The pool puts jobs, each `ThreadSlot` gets them. Invariant: no thread sleeps while a job is queued that was put
    after it fell asleep, unless another thread was woken for that job.

    Before Python 3.13, `queue.SimpleQueue` wakes a second thread for each job, because the thread that gets the job
    releases the queue's lock. The second thread finds nothing, but it competes for the interpreter while the job is to
    start.

    Concurrency: each operation on `queued` and `_idle` is atomic. A thread that finds no job adds its own lock to
    `_idle`, looks again, and waits until another thread releases its lock. Whichever thread removes a lock from `_idle`
    owns that wake-up: it releases the lock, or it is the owner and sleeps no more.
    """

    def __init__(self) -> None:
        self.queued: deque[QueuedJob | None] = deque()
        self._idle: list[threading.Lock] = []
        """The locks of the sleeping threads. The thread that fell asleep last comes last."""

    def put(self, executions: Sequence[QueuedJob | None]) -> None:
        """Queue executions, and wake as many threads: first those that fell asleep last, whose data is in the caches.

        Safe from any thread.
        """
        self.queued.extend(executions)
        try:
            for _ in executions:
                self._idle.pop().release()
        except IndexError:
            pass  # all threads are awake, and look for jobs before they sleep

    def get(self, lock: threading.Lock, timeout_seconds: float = -1) -> QueuedJob | None:
        """Remove and return an execution. Wait for one until the time is over; -1 means for ever.

        Args:
            lock: A lock of the calling thread, which it has acquired. It is acquired again at the return.
            timeout_seconds: How long to wait.

        Raises:
            Empty: if the time is over.
        """
        while True:
            try:
                return self.queued.popleft()
            except IndexError:
                self._idle.append(lock)
            if self.queued:  # it may have been put before the line above, and have woken nobody
                self._stay_awake(lock)
            elif not lock.acquire(timeout=timeout_seconds) and self._stay_awake(lock):
                raise Empty

    def _stay_awake(self, lock: threading.Lock) -> bool:
        """Do not sleep any more. Return False if a thread has put a job for this one meanwhile."""
        try:
            self._idle.remove(lock)
        except ValueError:
            lock.acquire()  # the other thread releases it now
            return False
        return True
