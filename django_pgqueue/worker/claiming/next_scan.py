"""Decide when an idle fetcher scans next, and whether the scan of a sibling process can replace its own.

A notification wakes all idle processes of a supervisor together, so all of them would scan, and scan again, at the same
time. The first process with room for a job scans in time, and the others wait somewhat longer, by a random time. They
skip their own scan if another one began late enough to answer for it (see `SharedScans`).

Only the fetcher's thread uses `NextScan`. `Pacing` is the interval of any scan that recurs.
"""

from __future__ import annotations

import mmap
import random
import struct
import time
from typing import Final, Protocol

FACTOR: Final = 10
PATIENT_FACTOR: Final = 50
BEHIND_SECONDS: Final = 1.0
"""How long a job behind a cursor may wait for a claim from the start, so that such claims delay other jobs less."""
APART_SECONDS: Final = 0.003
"""Roughly how far apart a notification wakes the processes of one host."""
MAX_EXTRA_FACTOR: Final = 1.5
"""The random extra wait before a scan is at most this many times the interval."""
HELD_BACK_SECONDS: Final = 0.01
ROW: Final = struct.Struct("=dd")
"""When the scan began; when the next job is due. Both by the monotonic clock, which all processes share."""
TIME: Final = struct.Struct("=d")
UNDER_WAY_SECONDS: Final = 0.05
NEVER: Final = float("-inf")


class SharedScans:
    """The results of scans for due jobs that the worker processes of one supervisor share, as one of them uses them.

    A notification wakes every idle process. Without this class each of them would scan at once and four more times. One
    scan answers for all processes, because they serve the same queues. Each process therefore publishes, in memory that
    is created before the forks, when its last scan began and when the next job is due. A process skips its own scan if
    the scan of a sibling process began late enough. After a notification, the first process that has room for a job
    claims at once, and the others wait a moment for it. Without this, 10 processes made 7 claims for each of 100 jobs a
    second.

    Concurrency: each place of the supervisor has a row that only its process writes. A reader can read while the writer
    writes, so it accepts a row only if the time is the same before and after it reads the rest. After that nothing
    depends on the sibling: the reader itself wakes when the next job is due. A scan that has not ended yet, or never
    will because its process died, answers for `UNDER_WAY_SECONDS` only.
    """

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


class Pacing:
    """The interval of one recurring scan: ten times the duration of the scan.

    Used by `Lanes` for the scan for lanes with ready jobs, and by the fetcher for claims from the start of the lanes.

    The shorter of its last two durations counts. A scan that walks over dead index entries is slow each time. A scan
    that was slow once only waited, for example for a migration's lock. An interval of ten times that wait would be a
    stall of its own.

    Args:
        patience_seconds: The interval is fifty times the duration while that is at most so long.
    """

    def __init__(self, patience_seconds: float = 0.0) -> None:
        self._patience_seconds = patience_seconds
        self._took_seconds = 0.0
        self.seconds = 0.0

    def after(self, took_seconds: float) -> float:
        """Record the duration of a scan. Return the interval in seconds; `seconds` keeps it."""
        before, self._took_seconds = self._took_seconds, took_seconds
        shorter = min(before, took_seconds)
        self.seconds = max(FACTOR * shorter, min(PATIENT_FACTOR * shorter, self._patience_seconds))
        return self.seconds


class ScannedLanes(Protocol):
    """The lanes that the scan reads."""

    shared: SharedScans | None

    def can_continue(self, free_slots: int) -> bool: ...
    def next_due_at(self, if_overdue: float) -> float: ...


class NextScan:
    """When the next scan is due, and which commits it must see."""

    def __init__(self, lanes: ScannedLanes) -> None:
        self.lanes = lanes
        self.moment: float | None = None
        """The next scan must see everything that was committed by this time. None: no sibling can answer for it."""
        self._interval_seconds = 0.0
        self._last_moment: float | None = None
        """The moment of the last scan that a sibling could answer for. The moments of the next intervals follow it."""
        self._held_back_at: float | None = None
        """Since when notifications have been held back without a scan."""

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that answers a notification at once."""
        return self.lanes.shared is None or self.lanes.shared.is_first()

    def take_moment(self, free_slots: int) -> float | None:
        """Return the moment and reset it: it counts for one scan.

        If a job of this process has ended and another job of its limit or queue can start, no scan of a sibling can
        answer.
        """
        moment, self.moment = self.moment, None
        self._last_moment = moment
        return None if self.lanes.can_continue(free_slots) else moment

    def after(self, pause_seconds: float) -> float:
        """Return how many seconds to sleep before a scan that is due `pause_seconds` after the last one.

        The interval begins at the moment of the last scan, and not when it was answered. So a notification gives all
        processes nearly the same moments, and one scan answers each of them.
        """
        if self.lanes.shared is None:
            return pause_seconds
        self._interval_seconds = pause_seconds
        seconds = self._seconds_until((self._last_moment or time.monotonic()) + pause_seconds)
        return seconds or pause_seconds  # after a stall of the host, it does not catch up on each scan

    def hold_back(self, moment: float | None, *, announced: bool) -> float | None:
        """Return how many seconds a sibling has to scan instead of this process, or None if it is time to scan.

        After a notification, the first process with room for a job scans at once. A sleep that ended for another reason
        continues, because nothing that it waits for has happened.
        """
        if moment is None or self.lanes.shared is None:
            return None
        if announced:
            if self.is_first or self._was_held_back():
                return None
            self._interval_seconds = APART_SECONDS
        elif time.monotonic() >= min(moment, self.lanes.next_due_at(float("inf"))):
            self._held_back_at = None
            return None
        return self._seconds_until(moment)

    def _was_held_back(self) -> bool:
        """Return whether to scan now although notifications arrive faster than this process waits.

        Otherwise a constant stream of notifications would hold this process back for ever.
        """
        now = time.monotonic()
        if self._held_back_at is not None and now - self._held_back_at > HELD_BACK_SECONDS:
            self._held_back_at = None
            return True
        self._held_back_at = self._held_back_at or now
        return False

    def _seconds_until(self, moment: float) -> float:
        self.moment = moment
        until_moment_seconds = max(0.0, moment - time.monotonic())
        if self.is_first:  # it scans for the others
            return until_moment_seconds
        extra_seconds = random.uniform(0, MAX_EXTRA_FACTOR) * self._interval_seconds  # noqa: S311 -- spreads load
        return until_moment_seconds + APART_SECONDS + extra_seconds
