"""What a supervisor does in the database: beat for its living children, and settle what the dead ones held."""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.db import wake_workers
from django_pgqueue.lifecycle import Failed, Fate, Held
from django_pgqueue.states import Outcome

from . import policy
from .board import Board, lease_clock
from .giving import give_back
from .link import Link
from .maintenance import tell_crash
from .pulse import Pulse

DIED: Final = "the worker process died while it ran"
OVERDUE: Final = "it ran past its timeout, and kept the whole worker process from running: killed with it"
MARK_BEATS: Final = 4
"""A beat begins at the oldest id that was open this many beats ago, so as not to walk over all that closed since.
Not at the last beat's: ids are drawn before the claim commits, and a claim may take two beats before it is given up."""


@dataclass
class Process:
    """One child, alive or waiting to be settled."""

    board: Board
    pid: int
    orders: int
    worker_id: int = 0
    born_at: float = field(default_factory=time.monotonic)
    signs_of_life: int = 0
    alive_at: float = field(default_factory=time.monotonic)
    silent: bool = False
    """Whether it was killed for showing no life, and is no longer beaten for, even if it cannot die."""
    overdue: frozenset[int] = frozenset()
    """Executions over their timeout that it was killed for."""
    pulse: Pulse = field(default_factory=Pulse)
    expected_to_end: bool = False
    """Whether its end, however it comes, is no crash."""


class Leases:
    """Those of one supervisor's children."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.to_settle: list[Process] = []
        """Children that have ended, and may have left open executions."""
        self.beat_at = 0.0
        """When the next beat is due, by the monotonic clock."""
        self._record_at = 0.0
        self._connected_at = 0.0
        self._oldest_open: deque[int] = deque([0] * MARK_BEATS, maxlen=MARK_BEATS)

    def put_off(self, seconds: float) -> None:
        """Beat no sooner than so many seconds from now: the database is away."""
        self.beat_at = max(self.beat_at, time.monotonic() + seconds)

    def beat(self, children: Iterable[Process]) -> None:
        """Extend the leases of all children's executions, if a quarter of a lease has passed since the last time."""
        beating_for = [process for process in children if process.worker_id and not process.silent]
        if time.monotonic() < self.beat_at or not beating_for:
            return
        sent_at, lease_from = time.monotonic(), lease_clock()
        lease_seconds = get_settings().LEASE
        worker_ids = [process.worker_id for process in beating_for]
        started_ids = [execution_id for process in beating_for for execution_id in process.board.running()]
        with self.link.use() as connection:
            if self.link.connected_at != self._connected_at:  # it may be another server, whose ids are behind
                self._connected_at = self.link.connected_at
                self._oldest_open.extend([0] * MARK_BEATS)
            beats = lifecycle.extend(
                connection,
                worker_ids,
                lease_seconds=lease_seconds,
                started_ids=started_ids,
                first_id=self._oldest_open[0],
            )
            if time.monotonic() >= self._record_at:
                self._record_at = time.monotonic() + lease_seconds
                lifecycle.beat_workers(connection, worker_ids)
        self._oldest_open.append(min((beat.execution_id for beat in beats), default=self._oldest_open[-1]))
        found = Counter(beat.worker_id for beat in beats)
        for process in beating_for:
            process.board.found_open(found[process.worker_id])
            process.board.hold_until(lease_from + lease_seconds)
        self.beat_at = sent_at + get_settings().beat_seconds

    def settle(self) -> None:
        """Close what ended children held: charged with the crash if it had started, given back if not."""
        for process in list(self.to_settle):
            if not process.worker_id or self._settle_one(process):
                self.to_settle.remove(process)

    def _settle_one(self, process: Process) -> bool:
        """Settle one child; say whether all of it could be, for another session may hold a row locked."""
        started = _guilty(process)
        error = OVERDUE if process.overdue else DIED
        with self.link.use() as connection:
            held = lifecycle.open_executions(connection, process.worker_id)
            crashed = {one.execution_id: one for one in held if one.execution_id in started and one.task_name}
            moves = give_back(connection, [one for one in held if one.execution_id not in crashed])
            if crashed:
                charged = lifecycle.fail(connection, [_crash(one, error) for one in crashed.values()])
                for execution_id, moved in charged.items():
                    tell_crash(crashed[execution_id], moved, connection.alias, error=error, rescued=False)
                moves |= charged
                wake_workers(connection)
            lifecycle.unregister_worker(connection, process.worker_id)
        return not any(moved.fate is Fate.LOCKED for moved in moves.values())


def _guilty(process: Process) -> set[int]:
    """Return the executions to charge with a child's end: those it was killed for, or all that had started in it."""
    if process.overdue:
        return set(process.overdue)
    return set() if process.expected_to_end else set(process.board.suspects())


def _crash(held: Held, error: str) -> Failed:
    delay_seconds = policy.delay_after_crash(held._replace(started=True))
    return Failed(held.execution_id, Outcome.CRASHED, delay_seconds, None, 0.0, error=error)


def how_it_died(exit_code: int) -> str:
    """Return the way a process ended, in words."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-exit_code}"
