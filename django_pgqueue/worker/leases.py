"""The heartbeats of a supervisor: they extend the leases of its living children. See `settlement` for the dead ones."""

from __future__ import annotations

import signal
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.db import EngineConnection

from .board import Board, Farewell, lease_clock
from .link import Link
from .options import Options
from .pulse import Pulse
from .refusals import Refusals
from .registration import register

EXITED_AT_ONCE: Final = {
    Farewell.LEASE_LOST: "the leases have ended, so it was ended",
    Farewell.PROMOTED: "the database was promoted, so it exited",
}
"""Why a process ended before it could log that itself."""
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
    place: int = 0
    """Which of the supervisor's PROCESSES places it works at."""
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

    def __init__(self, link: Link, options: Options) -> None:
        self.link = link
        self.options = options
        self.beat_at = 0.0
        """When the next beat is due, by the monotonic clock."""
        self.refusals = Refusals("the heartbeat of execution")
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
                first_id=self._first_id(started_ids),
                on_refused=self.refusals.note,
            )
            if time.monotonic() >= self._record_at:
                self._record_at = time.monotonic() + lease_seconds
                self._record(connection, beating_for)
        self._oldest_open.append(min((beat.execution_id for beat in beats), default=0))
        found = Counter(beat.worker_id for beat in beats)
        for process in beating_for:
            process.board.found_open(found[process.worker_id])
            process.board.hold_until(lease_from + lease_seconds)
        self.beat_at = sent_at + get_settings().beat_seconds

    def _first_id(self, started_ids: Iterable[int]) -> int:
        """Return the id to begin at. It is 0 once a job runs under a smaller id than was open: ids have restarted."""
        if min(started_ids, default=self._oldest_open[0]) < self._oldest_open[0]:
            self._oldest_open.extend([0] * MARK_BEATS)
        return self._oldest_open[0]

    def _record(self, connection: EngineConnection, processes: Iterable[Process]) -> None:
        """Record that these processes live. Record anew what somebody has removed, because people look there."""
        living = {process.worker_id: process for process in processes}
        registered = lifecycle.beat_workers(connection, list(living))
        for worker_id, process in living.items():
            if worker_id not in registered:
                register(connection, self.options, process.pid, worker_id)


def how_it_died(exit_code: int) -> str:
    """Return the way a process ended, in words."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"signal {signal.Signals(-exit_code).name}"
    except ValueError:  # a real-time signal has no name
        return f"signal {-exit_code}"
