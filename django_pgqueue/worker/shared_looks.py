"""What the worker processes of one supervisor tell each other about their looks for due jobs.

A notification wakes every idle process, and each would look at once and four times more. One look answers for all of
them, because they have the same queues. So each process publishes, in memory made before the forks, when its last look
began and when the next job is due. A process skips its own look if a sibling's look began late enough.

Each place of the supervisor has a row that only its process writes. A reader takes a row only if the time is the same
before and after it reads the rest, because it may read while the writer writes. Nothing depends on the sibling after
that: the reader itself wakes when the next job is due, and a look that has not ended yet, or never will because the
process died, answers for `UNDER_WAY_SECONDS` only.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

ROW: Final = struct.Struct("=dd")
"""When the look began; when the next job is due. Both by the monotonic clock, which all processes share."""
WORD: Final = struct.Struct("=d")
UNDER_WAY_SECONDS: Final = 0.05
NEVER: Final = float("-inf")


class SharedLooks:
    """The rows of all places, for the process at one of them."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.place = 0
        """That of this process; set after the fork."""
        self._memory = mmap.mmap(-1, places * ROW.size)

    def begin(self) -> None:
        """Publish that a look begins now. Call it before the statement takes its snapshot."""
        now = time.monotonic()
        self._write(now, now + UNDER_WAY_SECONDS)

    def end(self, next_due_at: float | None) -> None:
        """Publish what the look found: when the next job is due, or None if one is due already."""
        began_at, _ = self._read(self.place)
        self._write(NEVER if next_due_at is None else began_at, next_due_at or 0.0)

    def answer(self, moment: float) -> float | None:
        """Return when the next job is due, from a sibling's look that began at `moment` or later and found none due.

        Return None if there is no such look.
        """
        for place in range(self.places):
            began_at, due_at = self._read(place)
            if place != self.place and began_at >= moment and self._read(place)[0] == began_at:
                return due_at
        return None

    def _read(self, place: int) -> tuple[float, float]:
        began_at, due_at = ROW.unpack_from(self._memory, place * ROW.size)
        return began_at, due_at

    def _write(self, began_at: float, due_at: float) -> None:
        start = self.place * ROW.size
        WORD.pack_into(self._memory, start, NEVER)
        WORD.pack_into(self._memory, start + WORD.size, due_at)
        WORD.pack_into(self._memory, start, began_at)
