"""Limit how many jobs a worker process runs while the process that it replaces still runs jobs.

A retiring process finishes its running jobs while its replacement already works. Without a limit, both would run
CONCURRENCY jobs, and long jobs would let retiring processes pile up. Two rules prevent this:

- Both processes together run at most CONCURRENCY jobs. The retiring process starts no jobs, so the replacement may
  start one job for each job that ends there. It reads the number of running jobs from the shared memory of the
  retiring process. The same holds for each queue with a number of its own (`runworker --queue mail=2`).
- A process does not retire while the process that it replaced still exists. Each place of the supervisor therefore has
  at most two processes.

The worker process reads an `Allowance`. The supervisor marks in the shared memory that a process has ended.
"""

from __future__ import annotations

from django_pgqueue.worker.runtime.shared_memory import ProcessState


class Allowance:
    """The number of jobs that one process may run, and whether it may retire."""

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
