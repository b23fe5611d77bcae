"""Shared memory between a supervisor and one worker process: the running executions, the leases, and the exit reason.

The worker process writes which executions have started, so that the supervisor can charge a crash to those only. An
execution that has ended stays listed, because its result may not be written when the process dies. Nobody removes it:
the supervisor looks only for executions that are open in the database, and a written result has closed its execution.
The supervisor writes when the leases expire, by `lease_clock()`. All other times are of the monotonic clock.
"""

from __future__ import annotations

import itertools
import mmap
import struct
import time
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar

T = TypeVar("T")
SLOTS_AT: Final = 64
"""Where the slots begin, behind the fields of `ProcessState`."""
SLOT: Final = struct.Struct("=qdq")
"""The id of the execution that runs in a slot, or 0; the time at which it must stop, or 0 for no limit; the number of
its group of queues (see `QueueSlots`), or 0."""
UNWRITTEN_LIMIT: Final = 512
UNWRITTEN: Final = struct.Struct(f"={UNWRITTEN_LIMIT}q")
"""The ids of executions that have ended here, and whose results the database refuses to store; 0 for none."""
ENDED_LIMIT: Final = 8192
"""How many of the executions that have ended last are listed. More than 5,000 results never wait to be written, because
the process claims no jobs then (see `Completer.is_full`), except for those of the jobs that it has claimed before."""
ENDED: Final = struct.Struct("=q")
"""The id of an execution that has ended, negative if it cannot have caused the end of the process; 0 for none."""

NO_EXECUTION: Final = -1
"""Stored in place of the execution that has ended the process, if a receiver or a schedule has ended it."""
ELSEWHERE: Final = -1.0
"""Stored in place of the time at which an execution must stop, if it runs in an isolated process. Such an execution
cannot have caused the end of this process."""
STATEMENTS: Final = ("claim", "rescue", "schedules", "completion")
"""The statements that a worker repeats. If a service is silently dead, the age of its last answer shows it."""
ANSWERS: Final = struct.Struct("=4d")
ANSWERS_AT: Final = 128
"""When each of `STATEMENTS` was last answered, or 0; behind the fields of `HealthMemory`."""
SIZE: Final = ANSWERS_AT + ANSWERS.size


class ExitReason(IntEnum):
    """Why a worker process ends, written before it ends. An exit code proves nothing: a task may call `os._exit(0)`."""

    NONE = 0
    """The process has written no reason, so it has crashed."""
    STOPPED = 1
    EMPTY = 2
    RECYCLED = 3
    LEASE_LOST = 4
    STUCK = 5
    """A service had died or hung. No job is charged a crash."""
    PROMOTED = 6
    """The database became another server, which may use the ids of this process's executions for other executions."""
    FOREIGN = 7
    """The database belongs to another installation."""


def lease_clock() -> float:
    """Return the time by which leases expire, in seconds.

    The monotonic clock stops while a virtual machine is suspended. The database's clock does not, so after the machine
    resumes, leases that look valid may have expired. Linux has a clock that includes the suspended time.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class SharedField(Generic[T]):
    """An attribute of an object with a `memory`, stored there in 8 bytes. Zero bytes are its first value.

    Args:
        offset: Where it is stored.
        code: Its format, as in `struct`.
        kind: Makes the attribute's value of the stored number.
    """

    def __init__(self, offset: int, code: str, kind: Callable[[Any], T]) -> None:
        self._offset = offset
        self._format = struct.Struct(f"={code}")
        self._kind = kind

    def __get__(self, owner: Any, owner_class: object = None) -> T:
        return self._kind(self._format.unpack_from(owner.memory, self._offset)[0])

    def __set__(self, owner: Any, value: T) -> None:
        self._format.pack_into(owner.memory, self._offset, value)


class ProcessState:
    """The shared memory of one worker process, created before the fork.

    Args:
        slots: How many executions can run at a time.
    """

    lease_until = SharedField(0, "d", float)
    """When the leases expire according to the last successful heartbeat, by `lease_clock()`. Set by the supervisor."""
    signs_of_life = SharedField(8, "Q", int)
    """The lease guard of the process increments it regularly. If it does not change, the process is stuck."""
    exit_reason = SharedField(16, "Q", ExitReason)
    """Why the process is about to end, or has ended."""
    retires = SharedField(24, "Q", bool)
    """Whether the process starts no more jobs and ends after its running jobs. It may be replaced then."""
    is_gone = SharedField(32, "Q", bool)
    """Whether the supervisor has seen the end of the process. Its slots may still list executions, but none runs."""
    has_requests = SharedField(40, "Q", bool)
    """Whether the last recorded heartbeat found requests of an operator to the process. Set by the supervisor."""
    stop_requested = SharedField(48, "Q", bool)
    """Whether an operator has requested that the supervisor stops with all its processes. Set by the process."""
    ended_by = SharedField(56, "q", int)
    """The execution that has ended the process by `os._exit()`, `NO_EXECUTION`, or 0 if that is not known."""

    def __init__(self, slots: int) -> None:
        self._unwritten_at = SLOTS_AT + slots * SLOT.size
        self._ended_at = self._unwritten_at + UNWRITTEN.size
        self._next_ended = itertools.cycle(range(ENDED_LIMIT))
        self.memory = mmap.mmap(-1, self._ended_at + ENDED_LIMIT * ENDED.size)
        self._ended = memoryview(self.memory)[self._ended_at :].cast("q")
        # The three columns of `SLOT`: to write one number of a slot takes a third of the time of packing all three.
        slots_memory = memoryview(self.memory)[SLOTS_AT : self._unwritten_at]
        self._executions, self._groups = slots_memory.cast("q")[0::3], slots_memory.cast("q")[2::3]
        self._stops = slots_memory.cast("d")[1::3]

    @property
    def lease_left_seconds(self) -> float:
        """How many seconds the leases are still valid; negative if they have expired."""
        return self.lease_until - lease_clock()

    def started(self, slot: int, execution_id: int, stop_at: float = 0.0, group: int = 0) -> None:
        """Record that an execution runs in a slot, when it must stop (0: no limit), and the group of its queue."""
        self._stops[slot] = stop_at
        self._groups[slot] = group
        self._executions[slot] = execution_id  # last, because a slot without an execution is not read

    def ended(self, slot: int) -> None:
        """Record that the slot is free."""
        self._executions[slot] = 0

    def note_ended(self, slot: int, execution_id: int) -> None:
        """Record that an attempt that counts has ended in a slot. Call it before `ended()`. Safe from any thread."""
        self._ended[next(self._next_ended)] = -execution_id if self._stops[slot] == ELSEWHERE else execution_id

    def note_delayed(self, execution_ids: Iterable[int]) -> None:
        """Record again attempts that have ended and whose results wait for a lock, unless they are listed as such.

        They ended so long ago that they cannot have caused the end of the process. One thread calls this, again and
        again for the same attempts.
        """
        delayed = set(execution_ids)
        if delayed:
            delayed.difference_update([-key for key in self._ended if key < 0])
        for execution_id in delayed:
            self._ended[next(self._next_ended)] = -execution_id

    def ended_last(self) -> tuple[set[int], set[int]]:
        """Return the attempts that have ended last: those that may have ended this process, and the others."""
        ids = set(self._ended)
        elsewhere = {-key for key in ids if key < 0}
        return {key for key in ids if key > 0} - elsewhere, elsewhere

    def running(self) -> list[int]:
        """Return the ids of the executions that have started and not ended."""
        return [execution_id for execution_id, _, _ in self._occupied_slots()]

    def running_of(self, group: int) -> int:
        """Return how many executions of a group of queues have started and not ended."""
        return sum(found == group for _, _, found in self._occupied_slots())

    def suspects(self) -> list[int]:
        """Return the ids of running executions that may have caused the end of this process: all but isolated ones."""
        return [execution_id for execution_id, stop_at, _ in self._occupied_slots() if stop_at != ELSEWHERE]

    def overdue(self, seconds: float) -> list[int]:
        """Return the ids of the executions that should have stopped more than this many seconds ago."""
        latest = time.monotonic() - seconds
        return [execution_id for execution_id, stop_at, _ in self._occupied_slots() if 0 < stop_at < latest]

    def set_unwritten(self, execution_ids: Iterable[int]) -> None:
        """Record which executions have ended without a result in the database, 512 at most."""
        ids = list(execution_ids)[:UNWRITTEN_LIMIT]
        UNWRITTEN.pack_into(self.memory, self._unwritten_at, *ids, *[0] * (UNWRITTEN_LIMIT - len(ids)))

    def unwritten(self) -> set[int]:
        """Return the executions that have ended without a result in the database. Their attempts count."""
        return set(UNWRITTEN.unpack_from(self.memory, self._unwritten_at)) - {0}

    def _occupied_slots(self) -> list[tuple[int, float, int]]:
        return [slot for slot in SLOT.iter_unpack(self.memory[SLOTS_AT : self._unwritten_at]) if slot[0]]


class HealthMemory:
    """The health of one process. A torn read does no harm. All times are of the monotonic clock, except one.

    The services of the process write. The supervisor adds what it alone knows: the process's ids and its leases. The
    health file and the metrics process read (see `health_report`). Nothing else depends on the values.
    """

    errors = SharedField(0, "Q", int)
    """How many errors the services of the process have had."""
    completions_behind_since = SharedField(8, "d", float)
    """Since when results cannot be written, or 0 if they can."""
    outage_since = SharedField(16, "d", float)
    """Since when the database has been failing, or 0 if it works."""
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
