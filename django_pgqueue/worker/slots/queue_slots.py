"""Limit how many jobs of each queue this process runs at a time, as `runworker --queue NAME=N` says.

The fetcher asks for the room of a queue before it claims from it. A job takes a slot of its queue when it is put in
flight, and frees it when it ends or is released. Prefetched jobs count too, so no started job has to wait for its
queue, and no job of a full queue waits before the jobs of other queues.

A process without `--queue` has no `QueueSlots`.

Concurrency: only the fetcher's thread counts. Other threads append to `_freed`, and the fetcher's thread subtracts.
The count is therefore never too low.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.worker.runtime.shared_memory import ProcessState

UNLIMITED: Final = sys.maxsize


class QueueSlots:
    """The slots that the jobs of each queue may use.

    Args:
        served: The queues of the worker. Queues that share slots are a *group*.
        running_before: Returns how many jobs of the group with this number the process still runs that this one
            replaces. Both together run no more than one process may.
    """

    def __init__(self, served: ServedQueues, running_before: Callable[[int], int] = lambda number: 0) -> None:
        self.group_of = served.group_of
        """Returns the group of a queue, or None if the number of its jobs has no limit."""
        self._capacity = {name: number for name, number in served.concurrency.items() if number is not None}
        self._numbers = {name: number for number, name in enumerate(self._capacity, start=1)}
        self._running_before = running_before
        self._taken: Counter[str] = Counter()
        self._freed: deque[str] = deque()
        self._awaited: set[str] = set()
        """Groups without a free slot that have due jobs."""

    def number_of(self, queue_name: str) -> int:
        """Return the number of a queue's group, or 0 if the number of its jobs has no limit. Safe from any thread."""
        return self._numbers.get(self.group_of(queue_name) or "", 0)

    def room(self, queue_name: str) -> int:
        """Return how many jobs of a queue may be put in flight now."""
        group = self.group_of(queue_name)
        if group is None:
            return UNLIMITED
        while self._freed:
            self._taken[self._freed.popleft()] -= 1
        return self._capacity[group] - self._taken[group] - self._running_before(self._numbers[group])

    def is_full(self, queue_name: str) -> bool:
        """Return whether a queue with due jobs has no free slot. If so, its next free slot is awaited."""
        group = self.group_of(queue_name)
        if group is None:
            return False
        # Before the count: a slot that another thread frees after the count would wake nobody otherwise.
        self._awaited.add(group)
        if self.room(queue_name) <= 0:
            return True
        self._awaited.discard(group)
        return False

    def is_awaited(self, queue_name: str) -> bool:
        """Return whether the fetcher waits for a free slot of a queue. Safe from any thread."""
        return self.group_of(queue_name) in self._awaited

    def take(self, jobs: Iterable[Claimed]) -> None:
        """Count jobs that are put in flight. A chunk takes one slot."""
        self._taken.update(group for job in jobs if (group := self.group_of(job.queue_name)) is not None)

    def free(self, queue_name: str) -> None:
        """Free the slot of a job that has ended or was released. Safe from any thread."""
        group = self.group_of(queue_name)
        if group is not None:
            self._freed.append(group)


class Allowance:
    """How many jobs a process may run while the process that it replaces still runs jobs, and whether it may retire.

    A retiring process finishes its running jobs while its replacement already works. Without a limit, both would run
    CONCURRENCY jobs, and long jobs would let retiring processes pile up. Two rules prevent this:

    - Both processes together run at most CONCURRENCY jobs. The retiring process starts no jobs, so the replacement may
      start one job for each job that ends there. It reads the number of running jobs from the shared memory of the
      retiring process. The same holds for each queue with a number of its own (`runworker --queue mail=2`).
    - A process does not retire while the process that it replaced still exists. Each place of the supervisor therefore
      has at most two processes.

    The supervisor marks in the shared memory that a process has ended.
    """

    def __init__(self, concurrency: int, predecessor: ProcessState | None = None) -> None:
        self.concurrency = concurrency
        self._predecessor = predecessor

    @property
    def places(self) -> int:
        """How many jobs this process may run now. The number never decreases."""
        if self.may_retire or self._predecessor is None:
            return self.concurrency
        return max(0, self.concurrency - len(self._predecessor.running()))

    def running_before(self, group: int) -> int:
        """Return how many jobs of a group of queues the process that this one replaces still runs."""
        return 0 if self.may_retire or self._predecessor is None else self._predecessor.running_of(group)

    @property
    def may_retire(self) -> bool:
        """Whether the process that this one replaces has ended."""
        return self._predecessor is None or self._predecessor.is_gone
