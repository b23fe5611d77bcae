"""Report the health of a worker process to its supervisor through shared memory.

The services of the process write, and the supervisor reads for the health file. Nothing else depends on the values.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

LAYOUT: Final = struct.Struct("=Qdddddd")
"""The number of errors in services; since when results cannot be written, or 0; since when the database has been away,
or 0; and when each of `STATEMENTS` was last answered, or 0. All times are of the monotonic clock."""
STATEMENTS: Final = ("claim", "rescue", "schedules", "completion")
"""The statements that a worker repeats. If a service is silently dead, the age of its last answer shows it."""


class HealthMemory:
    """The health of one process. The process writes and the supervisor reads; a torn read does no harm."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, LAYOUT.size)

    def become(self, other: HealthMemory) -> None:
        """Write to the memory of `other` from now on. A forked process calls this with the memory made for it."""
        self._memory = other._memory

    def answered(self, statement: str) -> None:
        """Record that the database has answered one of `STATEMENTS`, even if there was nothing to do."""
        struct.pack_into("=d", self._memory, 24 + 8 * STATEMENTS.index(statement), time.monotonic())

    def completions_behind(self, since: float | None) -> None:
        """Record since when results cannot be written, or None if they can."""
        struct.pack_into("=d", self._memory, 8, since or 0.0)

    @property
    def completions_behind_seconds(self) -> float | None:
        """How long results could not be written, or None if they can be written now."""
        _, since, *_ = LAYOUT.unpack_from(self._memory)
        return time.monotonic() - since if since else None

    @property
    def outage_since(self) -> float:
        """When the current database outage began, or 0 if there is none."""
        return float(LAYOUT.unpack_from(self._memory)[2])

    @outage_since.setter
    def outage_since(self, since: float) -> None:
        struct.pack_into("=d", self._memory, 16, since)

    def count_error(self) -> None:
        """Count an error of a service."""
        struct.pack_into("=Q", self._memory, 0, self.errors + 1)

    @property
    def ages_seconds(self) -> dict[str, float | None]:
        """How long ago each of `STATEMENTS` was last answered, or None if it never was."""
        now, (_, _, _, *answered_at) = time.monotonic(), LAYOUT.unpack_from(self._memory)
        return {statement: now - at if at else None for statement, at in zip(STATEMENTS, answered_at, strict=True)}

    @property
    def errors(self) -> int:
        """How many errors the services of the process have had."""
        return int(LAYOUT.unpack_from(self._memory)[0])


health_memory: Final = HealthMemory()
"""The instance of this process."""
