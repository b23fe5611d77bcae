"""What a process says of its own health, in memory that it shares with its supervisor: for the health file alone."""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

WORDS: Final = struct.Struct("=Qddd")
"""How many errors its services met; when each of `TURNS` last had an answer, by the monotonic clock, 0 for never."""
TURNS: Final = ("claim", "rescue", "schedules")
"""What a worker asks for again and again: one that is silently dead shows by its age."""


class Pulse:
    """One process's words. Written by that process, read by the supervisor; a torn reading harms nobody."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, WORDS.size)

    def become(self, other: Pulse) -> None:
        """From now on write where `other` does: what a process does with the memory made for it before its fork."""
        self._memory = other._memory

    def answered(self, turn: str) -> None:
        """Say that one of `TURNS` had an answer, if only that there is nothing to do."""
        struct.pack_into("=d", self._memory, 8 + 8 * TURNS.index(turn), time.monotonic())

    def erred(self) -> None:
        """Count an error of a service."""
        struct.pack_into("=Q", self._memory, 0, self.errors + 1)

    @property
    def ages_seconds(self) -> dict[str, float | None]:
        """How long ago each of `TURNS` last had an answer; None if it never had."""
        now, (_, *answered_at) = time.monotonic(), WORDS.unpack_from(self._memory)
        return {turn: now - at if at else None for turn, at in zip(TURNS, answered_at, strict=True)}

    @property
    def errors(self) -> int:
        """How many errors the process's services have met."""
        return int(WORDS.unpack_from(self._memory)[0])


pulse: Final = Pulse()
"""This process's own."""
