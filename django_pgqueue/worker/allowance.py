"""How many jobs a worker process may run beside the process that it replaces.

A process that is to be replaced finishes its running jobs while its replacement works already. Without a rule, both run
CONCURRENCY jobs, and long jobs let one retiring process after another pile up. The rule has two parts:

- Both processes together run at most CONCURRENCY jobs. The retiring process starts no jobs, so the replacement may
  start one each time a job there ends. It reads this from the shared memory of the retiring process.
- A process does not retire while the process that it replaced still exists. Each place of the supervisor therefore has
  at most two processes.

The worker process reads an `Allowance`; the supervisor marks in the shared memory that a process has ended.
"""

from __future__ import annotations

from .board import Board


class Allowance:
    """What one process may run, and whether it may retire."""

    def __init__(self, concurrency: int, predecessor: Board | None = None) -> None:
        self.concurrency = concurrency
        self._predecessor = predecessor

    @property
    def places(self) -> int:
        """How many jobs this process may run now. It never shrinks."""
        if self.may_retire or self._predecessor is None:
            return self.concurrency
        return max(0, self.concurrency - len(self._predecessor.running()))

    @property
    def may_retire(self) -> bool:
        """Whether the process that this one replaces has ended."""
        return self._predecessor is None or self._predecessor.is_gone
