"""Share the results of scans for due jobs between the worker processes of one supervisor.

A notification wakes every idle process. Without this module each of them would scan at once and four more times. One
scan answers for all processes, because they serve the same queues. Each process therefore publishes, in memory that is
created before the forks, when its last scan began and when the next job is due. A process skips its own scan if the
scan of a sibling process began late enough. After a notification, the first process that has room for a job claims at
once, and the others wait a moment for it. Without this, 10 processes made 7 claims for each of 100 jobs a second.

Concurrency: each place of the supervisor has a row that only its process writes. A reader can read while the writer
writes, so it accepts a row only if the time is the same before and after it reads the rest. After that nothing depends
on the sibling: the reader itself wakes when the next job is due. A scan that has not ended yet, or never will because
its process died, answers for `UNDER_WAY_SECONDS` only.

Used by `Lanes` and `NextScan`, in the fetcher's thread.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

ROW: Final = struct.Struct("=dd")
"""When the scan began; when the next job is due. Both by the monotonic clock, which all processes share."""
TIME: Final = struct.Struct("=d")
UNDER_WAY_SECONDS: Final = 0.05
NEVER: Final = float("-inf")


class SharedScans:
    """The rows of all places, as the process at one of them uses them."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.place = 0
        """The place of this process. It is set after the fork."""
        self._memory = mmap.mmap(-1, places * ROW.size)
        self._rooms = mmap.mmap(-1, places)
        """For each place, whether its process has room for a job. If it died with room, the others wait for nothing."""

    def set_room(self, *, has_room: bool) -> None:
        """Publish whether this process has room for a job."""
        self._rooms[self.place] = has_room

    def is_first(self) -> bool:
        """Return whether no process at an earlier place has room for a job."""
        return not any(self._rooms[: self.place])

    def begin(self) -> None:
        """Publish that a scan begins now. Call this before the statement takes its snapshot."""
        now = time.monotonic()
        self._write(now, now + UNDER_WAY_SECONDS)

    def end(self, next_due_at: float | None) -> None:
        """Publish the result of the scan: when the next job is due, or None if one is due already."""
        began_at, _ = self._read(self.place)
        self._write(NEVER if next_due_at is None else began_at, next_due_at or 0.0)

    def answer(self, moment: float) -> float | None:
        """Return when the next job is due, from a sibling's scan that began at `moment` or later and found none due.

        Return None if there is no such scan.
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
        TIME.pack_into(self._memory, start, NEVER)
        TIME.pack_into(self._memory, start + TIME.size, due_at)
        TIME.pack_into(self._memory, start, began_at)
