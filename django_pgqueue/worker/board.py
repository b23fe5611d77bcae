"""A few words of shared memory between a supervisor and one child: what runs there, and how long its leases hold.

The child writes which executions have started, so that the supervisor can charge a crash to those alone; the
supervisor writes until when the last beat holds, by `lease_clock()`. All other times are of the monotonic clock.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

HEADER: Final = struct.Struct("=dQQQQQ")
"""Until when the leases hold, by `lease_clock()`; how often the child has shown that it lives; its farewell; how
many executions the last beat found open; whether it retires; whether the supervisor has seen its end."""
SLOT: Final = struct.Struct("=qd")
"""The id of the execution that runs in a slot, or 0; until when it may run, by the monotonic clock, or 0 for ever."""
UNWRITTEN: Final = struct.Struct("=512q")
"""The ids of executions that have ended here, and whose ends the database refuses to write; 0 for none."""

ELSEWHERE: Final = -1.0
"""In place of that time: it runs in a process of its own, and is not to blame for the end of this one."""


class Farewell(IntEnum):
    """Why a child ends, said before it does. An exit code proves nothing: a task may call `os._exit(0)`."""

    NONE = 0
    """It did not say: it died."""
    STOPPED = 1
    DRAINED = 2
    RECYCLED = 3
    LEASE_LOST = 4
    STUCK = 5
    """A service of it had died or hung. That is no job's fault."""
    PROMOTED = 6
    """The database became another server, which may use the ids of this process's executions for others."""


def lease_clock() -> float:
    """Return the time by which leases end, in seconds.

    The monotonic clock stands still while a virtual machine is suspended. The database's does not, so after the machine
    resumes, leases that look valid may be over. Linux has a clock that includes that time.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Board:
    """Shared memory made before the fork; `slots` executions at the most can run at a time."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._unwritten_at = HEADER.size + slots * SLOT.size
        self._memory = mmap.mmap(-1, self._unwritten_at + UNWRITTEN.size)
        self._signs_of_life = 0

    # ---------------------------------------------------------------- the supervisor's words

    def hold_until(self, lease_until: float) -> None:
        """Say until when the child's leases hold, by `lease_clock()`."""
        struct.pack_into("=d", self._memory, 0, lease_until)

    def found_open(self, count: int) -> None:
        """Say how many executions the last beat found open under the child's id."""
        struct.pack_into("=Q", self._memory, 24, count)

    def mark_gone(self) -> None:
        """Record that the process has ended: nothing runs there any more, whatever its slots say."""
        struct.pack_into("=Q", self._memory, 40, 1)

    @property
    def is_gone(self) -> bool:
        """Whether the supervisor has seen the end of the process."""
        return bool(struct.unpack_from("=Q", self._memory, 40)[0])

    @property
    def open_executions(self) -> int:
        """How many that were."""
        return int(struct.unpack_from("=Q", self._memory, 24)[0])

    @property
    def lease_until(self) -> float:
        """Until when the child's leases hold, as of the last beat that went through."""
        return float(struct.unpack_from("=d", self._memory, 0)[0])

    @property
    def lease_left_seconds(self) -> float:
        """How long they hold still; negative when over."""
        return self.lease_until - lease_clock()

    # ---------------------------------------------------------------- the child's words

    def started(self, slot: int, execution_id: int, stop_at: float = 0.0) -> None:
        """Say that an execution runs in a slot, and until when it may (0: as long as it takes)."""
        SLOT.pack_into(self._memory, HEADER.size + slot * SLOT.size, execution_id, stop_at)

    def ended(self, slot: int) -> None:
        """Say that the slot is free."""
        SLOT.pack_into(self._memory, HEADER.size + slot * SLOT.size, 0, 0.0)

    def running(self) -> list[int]:
        """Return the ids of the executions that have started and not ended."""
        return [execution_id for execution_id, _ in self._taken()]

    def suspects(self) -> list[int]:
        """Return those of them that run in this process, and may be what ended it."""
        return [execution_id for execution_id, stop_at in self._taken() if stop_at != ELSEWHERE]

    def overdue(self, seconds: float) -> list[int]:
        """Return the ids of those that should have ended so many seconds ago, or earlier."""
        latest = time.monotonic() - seconds
        return [execution_id for execution_id, stop_at in self._taken() if 0 < stop_at < latest]

    def set_unwritten(self, execution_ids: Iterable[int]) -> None:
        """Say which executions have ended here without a word of it in the database, 512 at the most."""
        ids = list(execution_ids)[:512]
        UNWRITTEN.pack_into(self._memory, self._unwritten_at, *ids, *[0] * (512 - len(ids)))

    def unwritten(self) -> set[int]:
        """Return these executions: each has used up its attempt."""
        return set(UNWRITTEN.unpack_from(self._memory, self._unwritten_at)) - {0}

    def _taken(self) -> list[tuple[int, float]]:
        end = HEADER.size + self._slots * SLOT.size
        return [slot for slot in SLOT.iter_unpack(self._memory[HEADER.size : end]) if slot[0]]

    def retire(self) -> None:
        """Say that this process takes no more jobs, and ends when those that it has are done: it may be replaced."""
        struct.pack_into("=Q", self._memory, 32, 1)

    @property
    def retires(self) -> bool:
        """Whether it said so."""
        return bool(struct.unpack_from("=Q", self._memory, 32)[0])

    def show_life(self) -> None:
        """Say that the child's own threads still get to run."""
        self._signs_of_life += 1
        struct.pack_into("=Q", self._memory, 8, self._signs_of_life)

    @property
    def signs_of_life(self) -> int:
        """How often the child has said so."""
        return int(struct.unpack_from("=Q", self._memory, 8)[0])

    def say_farewell(self, farewell: Farewell) -> None:
        """Say why this process is about to end."""
        struct.pack_into("=Q", self._memory, 16, farewell)

    @property
    def farewell(self) -> Farewell:
        """Why the child ended, as far as it said."""
        return Farewell(struct.unpack_from("=Q", self._memory, 16)[0])
