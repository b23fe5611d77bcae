"""Show a line about the worker at the bottom of the terminal: "12 running, 340/s, 1,204 done".

`runworker` switches it on if its standard output is a terminal. The supervisor calls `draw()` once a second.

Other processes print to the same terminal at any time: worker processes, log handlers, tasks. The line therefore
reserves the last row, with the terminal's scroll region, and everything else scrolls in the rows above. The terminal is
opened again without blocking: a terminal that is stopped by Ctrl-S must not stop the supervisor, which then draws
nothing.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Final, NamedTuple

from django_pgqueue.worker.runtime.shared_memory import HealthMemory

from .heartbeat import ChildProcess

MIN_ROWS: Final = 4
"""In a terminal with fewer rows there is no line."""
RATE_SECONDS: Final = 5.0
"""The rate is the average of this time."""
DRAW_SECONDS: Final = 0.5


class ProcessCounts(NamedTuple):
    """How many jobs run in a worker process, and how many have ended there. The line adds them up."""

    pid: int
    running: int
    finished: int


def counts_of_children(children: Mapping[int, ChildProcess]) -> list[ProcessCounts]:
    """Return the counts of the worker processes of a supervisor, which are exact."""
    return [
        ProcessCounts(pid, len(each.state.running()), each.health_memory.finished) for pid, each in children.items()
    ]


def counts_of_processes(processes: Iterable[HealthMemory]) -> list[ProcessCounts]:
    """Return the counts that worker processes have reported, which are up to a second old."""
    return [ProcessCounts(each.pid, each.running, each.finished) for each in processes]


class LiveLine:
    """The line of one worker.

    Args:
        counts: Returns the counts of the worker processes that live.
        is_enabled: Whether there is a line. Otherwise the methods do nothing.
        output: The descriptor of the terminal.
    """

    def __init__(self, counts: Callable[[], list[ProcessCounts]], *, is_enabled: bool, output: int = 1) -> None:
        self._read = counts
        self._terminal = _opened(output) if is_enabled else -1
        self._size = (0, 0)
        self._finished: dict[int, int] = {}
        """How many jobs each process has finished, also of those that have ended."""
        self._counts: deque[tuple[float, int]] = deque()
        self._drawn_at = float("-inf")

    def draw(self) -> None:
        """Draw the line, at most twice a second. Never wait."""
        now = time.monotonic()
        if self._terminal < 0 or now - self._drawn_at < DRAW_SECONDS:
            return
        self._drawn_at = now
        with suppress(OSError):  # the terminal is gone, or it is stopped
            size = os.get_terminal_size(self._terminal)
            if size.lines < MIN_ROWS:
                return
            reserved = _reserve(size.lines) if size != self._size else ""
            self._write(f"{reserved}\x1b7\x1b[{size.lines};1H\x1b[2K{self._text(now)[: size.columns - 1]}\x1b8")
            self._size = size

    def close(self) -> None:
        """Remove the line, and give the row back to the terminal."""
        terminal, rows = self._terminal, self._size[1]
        if terminal < 0:
            return
        with suppress(OSError):
            if rows:
                self._write(f"\x1b7\x1b[r\x1b[{rows};1H\x1b[2K\x1b8")
        self._terminal = -1
        os.close(terminal)

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def _text(self, now: float) -> str:
        processes = self._read()
        self._finished |= {process.pid: process.finished for process in processes}
        running, done = sum(process.running for process in processes), sum(self._finished.values())
        self._counts.append((now, done))
        while now - self._counts[0][0] > RATE_SECONDS and len(self._counts) > 2:
            self._counts.popleft()
        since, before = self._counts[0]
        rate = (done - before) / (now - since) if now > since else 0.0
        return f"{running:,} running, {rate:,.0f}/s, {done:,} done"


def _opened(output: int) -> int:
    """Open a terminal again, and return its descriptor; -1 if it is gone or is no terminal."""
    with suppress(OSError):
        return os.open(os.ttyname(output), os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    return -1


def _reserve(rows: int) -> str:
    """Return the codes that reserve the last row. The line feed makes room if the cursor is in that row."""
    return f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A"
