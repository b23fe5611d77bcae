"""Decide when to replace a worker process that has died. The supervisor calls this."""

from __future__ import annotations

import time
from typing import Final

from .heartbeat import ChildProcess

RESTART_BACKOFF_SECONDS: Final = (0.0, 0.2, 1.0, 5.0, 15.0)
"""The delays before processes that died are replaced. The first is replaced at once."""
HEALTHY_SECONDS: Final = 30.0
"""A process that lived longer than this before it died resets the backoff."""


class RestartBackoff:
    """The delays before processes that died are replaced."""

    def __init__(self) -> None:
        self._restarts = 0

    def seconds_after(self, process: ChildProcess) -> float:
        """Return how long to wait before a process that has died now is replaced."""
        self._restarts = 0 if time.monotonic() - process.born_at > HEALTHY_SECONDS else self._restarts
        seconds = RESTART_BACKOFF_SECONDS[min(self._restarts, len(RESTART_BACKOFF_SECONDS) - 1)]
        self._restarts += 1
        return seconds
