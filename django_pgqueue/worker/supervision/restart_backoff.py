"""Decide when to replace a worker process that has died. The supervisor calls this."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import Final

from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.shared_memory import ProcessState

from .heartbeat import ChildProcess

RESTART_BACKOFF_SECONDS: Final = (0.0, 0.2, 1.0, 5.0, 15.0)
"""The delays before processes that died are replaced. The first is replaced at once."""
HEALTHY_SECONDS: Final = 30.0
"""A process that lived longer than this before it died resets the backoff."""


class RestartBackoff:
    """The delays before processes that died are replaced.

    Processes that die together, as all of a worker do at a failover, take one step of the backoff. If each took one, a
    worker with five processes would start none for 15 s after a failover, although no replacement has failed.
    """

    def __init__(self) -> None:
        self._restarts = 0
        self._stepped_at = self._due_at = float("-inf")

    def seconds_after(self, process: ChildProcess) -> float:
        """Return how long to wait before a process that has died now is replaced."""
        now = time.monotonic()
        if now - process.born_at > HEALTHY_SECONDS:
            self._restarts = 0
        elif process.born_at < self._stepped_at:  # it is not the replacement of the process that died then
            return max(0.0, self._due_at - now)
        seconds = RESTART_BACKOFF_SECONDS[min(self._restarts, len(RESTART_BACKOFF_SECONDS) - 1)]
        self._restarts += 1
        self._stepped_at, self._due_at = now, now + seconds
        return seconds


def vacant_place(children: Collection[ChildProcess], options: Options) -> int | None:
    """Return the first place without a process, or None. A retiring process leaves its place free."""
    keep_all = options.until_empty
    taken = {process.place for process in children if keep_all or not process.state.retires}
    return next((place for place in range(options.processes) if place not in taken), None)


def retiring_at(children: Collection[ChildProcess], place: int) -> ProcessState | None:
    """Return the shared memory of the process that retires from this place, or None. There is at most one."""
    states = (process.state for process in children if process.place == place)
    return next((state for state in states if state.retires), None)
