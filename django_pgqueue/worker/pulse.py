"""What a process says of its own health, in memory that it shares with its supervisor: for the health file alone."""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

WORDS: Final = struct.Struct("=dQ")
"""When a claim last had an answer, by the monotonic clock, 0 if none ever had; how many errors its services met."""


class Pulse:
    """One process's words. Written by that process, read by the supervisor; a torn reading harms nobody."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, WORDS.size)

    def become(self, other: Pulse) -> None:
        """From now on write where `other` does: what a process does with the memory made for it before its fork."""
        self._memory = other._memory

    def claimed(self) -> None:
        """Say that a claim had an answer, if only that nothing is due."""
        struct.pack_into("=d", self._memory, 0, time.monotonic())

    def erred(self) -> None:
        """Count an error of a service."""
        struct.pack_into("=Q", self._memory, 8, self.errors + 1)

    @property
    def claim_age_seconds(self) -> float | None:
        """How long ago a claim last had an answer; None if none ever had."""
        claimed_at: float = WORDS.unpack_from(self._memory)[0]
        return time.monotonic() - claimed_at if claimed_at else None

    @property
    def errors(self) -> int:
        """How many errors the process's services have met."""
        return int(WORDS.unpack_from(self._memory)[1])


pulse: Final = Pulse()
"""This process's own."""
