"""Hand queued jobs over to the threads of the pool. Each job wakes one sleeping thread, and no other.

The pool puts jobs, each `ThreadSlot` gets them. Invariant: no thread sleeps while a job is queued that was put after it
fell asleep, unless another thread was woken for that job.

`queue.SimpleQueue` wakes a second thread for each job before Python 3.13, because the thread that gets the job releases
the queue's lock. The second thread finds nothing, but it competes for the interpreter while the job is to start.

Concurrency: there is no lock per job, as in `InFlight`. Each operation on `queued` and `_idle` is atomic. A thread that
finds no job adds its own lock to `_idle`, looks again, and waits until another thread releases its lock. Whichever
thread removes a lock from `_idle` owns that wake-up: it releases the lock, or it is the owner and sleeps no more.
"""

from __future__ import annotations

from collections import deque
from queue import Empty
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Lock


class JobQueue:
    """The executions that wait for a thread. None ends a thread."""

    def __init__(self) -> None:
        self.queued: deque[int | None] = deque()
        self._idle: list[Lock] = []
        """The locks of the sleeping threads. The thread that fell asleep last comes last."""

    def put(self, executions: Sequence[int | None]) -> None:
        """Queue executions, and wake as many threads: first those that fell asleep last, whose data is in the caches.

        Safe from any thread.
        """
        self.queued.extend(executions)
        try:
            for _ in executions:
                self._idle.pop().release()
        except IndexError:
            pass  # all threads are awake, and look for jobs before they sleep

    def get(self, lock: Lock, timeout_seconds: float = -1) -> int | None:
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

    def _stay_awake(self, lock: Lock) -> bool:
        """Do not sleep any more. Return False if a thread has put a job for this one meanwhile."""
        try:
            self._idle.remove(lock)
        except ValueError:
            lock.acquire()  # the other thread releases it now
            return False
        return True
