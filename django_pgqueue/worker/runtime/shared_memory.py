"""Shared memory between a supervisor and one worker process: the running executions, the leases, and the exit reason.

The worker process writes which executions have started, so that the supervisor can charge a crash to those only. The
supervisor writes when the leases expire, by `lease_clock()`. All other times are of the monotonic clock.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

HEADER: Final = struct.Struct("=dQQQQQ")
"""In this order: when the leases expire, by `lease_clock()`; the number of signs of life; the exit reason; how many
open executions the last heartbeat found; whether the process retires; whether the supervisor has seen its end."""
SLOT: Final = struct.Struct("=qd")
"""The id of the execution that runs in a slot, or 0; the time at which it must stop, or 0 for no limit."""
UNWRITTEN: Final = struct.Struct("=512q")
"""The ids of executions that have ended here, and whose results the database refuses to store; 0 for none."""

ELSEWHERE: Final = -1.0
"""Stored in place of the time at which an execution must stop, if it runs in an isolated process. Such an execution
cannot have caused the end of this process."""


class ExitReason(IntEnum):
    """Why a worker process ends, written before it ends. An exit code proves nothing: a task may call `os._exit(0)`."""

    NONE = 0
    """The process has written no reason, so it has crashed."""
    STOPPED = 1
    EMPTY = 2
    RECYCLED = 3
    LEASE_LOST = 4
    STUCK = 5
    """A service had died or hung. No job is charged."""
    PROMOTED = 6
    """The database became another server, which may use the ids of this process's executions for other executions."""


def lease_clock() -> float:
    """Return the time by which leases expire, in seconds.

    The monotonic clock stops while a virtual machine is suspended. The database's clock does not, so after the machine
    resumes, leases that look valid may have expired. Linux has a clock that includes the suspended time.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ProcessState:
    """The shared memory of one worker process, created before the fork.

    Args:
        slots: How many executions can run at a time.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._unwritten_at = HEADER.size + slots * SLOT.size
        self._memory = mmap.mmap(-1, self._unwritten_at + UNWRITTEN.size)
        self._signs_of_life = 0

    # ---------------------------------------------------------------- written by the supervisor

    def hold_until(self, lease_until: float) -> None:
        """Record when the leases of the process expire, by `lease_clock()`."""
        struct.pack_into("=d", self._memory, 0, lease_until)

    def set_open_executions(self, count: int) -> None:
        """Record how many open executions of this process the last heartbeat found."""
        struct.pack_into("=Q", self._memory, 24, count)

    def mark_gone(self) -> None:
        """Record that the process has ended. Its slots may still list executions, but none of them runs."""
        struct.pack_into("=Q", self._memory, 40, 1)

    @property
    def is_gone(self) -> bool:
        """Whether the supervisor has seen the end of the process."""
        return bool(struct.unpack_from("=Q", self._memory, 40)[0])

    @property
    def open_executions(self) -> int:
        """How many open executions of this process the last heartbeat found."""
        return int(struct.unpack_from("=Q", self._memory, 24)[0])

    @property
    def lease_until(self) -> float:
        """When the leases of the process expire, according to the last successful heartbeat."""
        return float(struct.unpack_from("=d", self._memory, 0)[0])

    @property
    def lease_left_seconds(self) -> float:
        """How many seconds the leases are still valid; negative if they have expired."""
        return self.lease_until - lease_clock()

    # ---------------------------------------------------------------- written by the worker process

    def started(self, slot: int, execution_id: int, stop_at: float = 0.0) -> None:
        """Record that an execution runs in a slot, and when it must stop (0: no limit)."""
        SLOT.pack_into(self._memory, HEADER.size + slot * SLOT.size, execution_id, stop_at)

    def ended(self, slot: int) -> None:
        """Record that the slot is free."""
        SLOT.pack_into(self._memory, HEADER.size + slot * SLOT.size, 0, 0.0)

    def running(self) -> list[int]:
        """Return the ids of the executions that have started and not ended."""
        return [execution_id for execution_id, _ in self._occupied_slots()]

    def suspects(self) -> list[int]:
        """Return the ids of running executions that may have caused the end of this process: all but isolated ones."""
        return [execution_id for execution_id, stop_at in self._occupied_slots() if stop_at != ELSEWHERE]

    def overdue(self, seconds: float) -> list[int]:
        """Return the ids of the executions that should have stopped more than this many seconds ago."""
        latest = time.monotonic() - seconds
        return [execution_id for execution_id, stop_at in self._occupied_slots() if 0 < stop_at < latest]

    def set_unwritten(self, execution_ids: Iterable[int]) -> None:
        """Record which executions have ended without a result in the database, 512 at most."""
        ids = list(execution_ids)[:512]
        UNWRITTEN.pack_into(self._memory, self._unwritten_at, *ids, *[0] * (512 - len(ids)))

    def unwritten(self) -> set[int]:
        """Return the executions that have ended without a result in the database. Their attempts count."""
        return set(UNWRITTEN.unpack_from(self._memory, self._unwritten_at)) - {0}

    def _occupied_slots(self) -> list[tuple[int, float]]:
        end = HEADER.size + self._slots * SLOT.size
        return [slot for slot in SLOT.iter_unpack(self._memory[HEADER.size : end]) if slot[0]]

    def retire(self) -> None:
        """Record that this process starts no more jobs and ends after its running jobs. It may be replaced now."""
        struct.pack_into("=Q", self._memory, 32, 1)

    @property
    def retires(self) -> bool:
        """Whether this process starts no more jobs and ends after its running jobs."""
        return bool(struct.unpack_from("=Q", self._memory, 32)[0])

    def show_life(self) -> None:
        """Record that the process's own threads still run. The lease guard calls this regularly."""
        self._signs_of_life += 1
        struct.pack_into("=Q", self._memory, 8, self._signs_of_life)

    @property
    def signs_of_life(self) -> int:
        """How often `show_life()` was called. If it does not change, the process is stuck."""
        return int(struct.unpack_from("=Q", self._memory, 8)[0])

    def set_exit_reason(self, exit_reason: ExitReason) -> None:
        """Record why this process is about to end."""
        struct.pack_into("=Q", self._memory, 16, exit_reason)

    @property
    def exit_reason(self) -> ExitReason:
        """Why the process ended, or `ExitReason.NONE` if it wrote no reason."""
        return ExitReason(struct.unpack_from("=Q", self._memory, 16)[0])
