"""Report the health of a worker process to its supervisor through shared memory.

The services of the process write, and the supervisor reads for the health file. Nothing else depends on the values.
"""

from __future__ import annotations

import mmap
import struct
import time
from typing import Final

from .shared_memory import SharedField

STATEMENTS: Final = ("claim", "rescue", "schedules", "completion")
"""The statements that a worker repeats. If a service is silently dead, the age of its last answer shows it."""
ANSWERS: Final = struct.Struct("=4d")
ANSWERS_AT: Final = 24
"""When each of `STATEMENTS` was last answered, or 0; behind the first fields of `HealthMemory`."""
FINISHED_AT: Final = ANSWERS_AT + ANSWERS.size


class HealthMemory:
    """The health of one process. A torn read does no harm. All times are of the monotonic clock."""

    errors = SharedField(0, "Q", int)
    """How many errors the services of the process have had."""
    completions_behind_since = SharedField(8, "d", float)
    """Since when results cannot be written, or 0 if they can."""
    outage_since = SharedField(16, "d", float)
    """When the current database outage began, or 0 if there is none."""
    finished = SharedField(FINISHED_AT, "Q", int)
    """How many results the process has written."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, FINISHED_AT + 8)

    def become(self, other: HealthMemory) -> None:
        """Write to the memory of `other` from now on. A forked process calls this with the memory made for it."""
        self.memory = other.memory

    def answered(self, statement: str) -> None:
        """Record that the database has answered one of `STATEMENTS`, even if there was nothing to do."""
        struct.pack_into("=d", self.memory, ANSWERS_AT + 8 * STATEMENTS.index(statement), time.monotonic())

    @property
    def completions_behind_seconds(self) -> float | None:
        """How long results could not be written, or None if they can be written now."""
        since = self.completions_behind_since
        return time.monotonic() - since if since else None

    @property
    def ages_seconds(self) -> dict[str, float | None]:
        """How long ago each of `STATEMENTS` was last answered, or None if it never was."""
        now, answered_at = time.monotonic(), ANSWERS.unpack_from(self.memory, ANSWERS_AT)
        return {statement: now - at if at else None for statement, at in zip(STATEMENTS, answered_at, strict=True)}


health_memory: Final = HealthMemory()
"""The instance of this process."""
