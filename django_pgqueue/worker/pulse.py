"""What a process says of its own health, in memory that it shares with its supervisor: for the health file alone."""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

WORDS: Final = struct.Struct("=Qddddd")
"""How many errors its services met; since when completions cannot be written, 0 if they can; when each of `TURNS` last
had an answer, 0 for never. All times are of the monotonic clock."""
TURNS: Final = ("claim", "rescue", "schedules", "completion")
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
        struct.pack_into("=d", self._memory, 16 + 8 * TURNS.index(turn), time.monotonic())

    def completions_behind(self, since: float | None) -> None:
        """Say since when the ends of jobs cannot be written, None if they can."""
        struct.pack_into("=d", self._memory, 8, since or 0.0)

    @property
    def completions_behind_seconds(self) -> float | None:
        """For how long the ends of jobs have not been written; None if they are."""
        _, since, *_ = WORDS.unpack_from(self._memory)
        return time.monotonic() - since if since else None

    def erred(self) -> None:
        """Count an error of a service."""
        struct.pack_into("=Q", self._memory, 0, self.errors + 1)

    @property
    def ages_seconds(self) -> dict[str, float | None]:
        """How long ago each of `TURNS` last had an answer; None if it never had."""
        now, (_, _, *answered_at) = time.monotonic(), WORDS.unpack_from(self._memory)
        return {turn: now - at if at else None for turn, at in zip(TURNS, answered_at, strict=True)}

    @property
    def errors(self) -> int:
        """How many errors the process's services have met."""
        return int(WORDS.unpack_from(self._memory)[0])


pulse: Final = Pulse()
"""This process's own."""
