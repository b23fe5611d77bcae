"""Report the health of a worker process to other processes of its worker, through shared memory.

The services of the process write. The supervisor adds what it alone knows: the process's ids and its leases. The health
file and the metrics process read (see `health_report`). Nothing else depends on the values.
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
ANSWERS_AT: Final = 128
"""When each of `STATEMENTS` was last answered, or 0; behind the fields of `HealthMemory`."""
SIZE: Final = ANSWERS_AT + ANSWERS.size


class HealthMemory:
    """The health of one process. A torn read does no harm. All times are of the monotonic clock, except one."""

    errors = SharedField(0, "Q", int)
    """How many errors the services of the process have had."""
    completions_behind_since = SharedField(8, "d", float)
    """Since when results cannot be written, or 0 if they can."""
    outage_since = SharedField(16, "d", float)
    """When the current database outage began, or 0 if there is none."""
    pid = SharedField(24, "Q", int)
    """The process that writes here, or 0 if no process does. Set by the supervisor."""
    worker_id = SharedField(32, "Q", int)
    """The id of the process's worker record, or 0. Set by the supervisor."""
    started_at = SharedField(40, "d", float)
    """When the process was forked. Set by the supervisor."""
    lease_until = SharedField(48, "d", float)
    """When its leases expire, by `lease_clock()`. Set by the supervisor."""
    responded_at = SharedField(56, "d", float)
    """When the main thread of the process last checked its services, or 0."""
    claims_expected_since = SharedField(64, "d", float)
    """Since when the fetcher has room for jobs, or 0 if it has none and therefore does not claim."""
    running = SharedField(72, "Q", int)
    """How many jobs ran when the main thread last checked."""
    prefetched = SharedField(80, "Q", int)
    """How many claimed jobs waited for a slot at that time."""
    slots = SharedField(88, "Q", int)
    """How many jobs may run at a time."""
    oldest_report_at = SharedField(96, "d", float)
    """When the oldest job ended whose result was not written at that time, or 0."""
    listens = SharedField(104, "Q", bool)
    """Whether notifications reach the process."""
    loop_blocked_since = SharedField(112, "d", float)
    """Since when the event loop of the process has not answered, or 0."""
    finished = SharedField(120, "Q", int)
    """How many results the process has written."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, SIZE)

    def become(self, other: HealthMemory) -> None:
        """Write to the memory of `other` from now on. A forked process calls this with the memory made for it."""
        self.memory = other.memory

    def clear(self) -> None:
        """Forget everything about the process that wrote here, because another one will."""
        self.memory[:] = bytes(SIZE)

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
