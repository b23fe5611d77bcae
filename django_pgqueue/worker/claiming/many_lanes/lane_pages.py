"""Read the plain lanes page by page, if they are too many for one scan, and keep those that have due jobs.

Called by `Lanes`, in the fetcher's thread. While one scan reads all lanes, it returns them, and this module keeps
nothing. Otherwise each scan reads the next page of the walk (see `LaneWalk`). A claim gets the first of the lanes that
are known to have due jobs. A lane is forgotten when a claim has left no job in it, and a later circle finds it again if
that was wrong.

A fetcher for named queues reads the lanes of these queues only, in one scan.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from itertools import islice
from math import isfinite
from typing import Final

from django_pgqueue.db.statements import Connection
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import claims
from django_pgqueue.lifecycle.types import Cursor, Lane, LaneScan, ReadyPlace
from django_pgqueue.worker.slots.queue_slots import QueueSlots

from .lane_walk import LANES_PER_CLAIM, LaneWalk

logger = logging.getLogger("django_pgqueue.worker")

PAGE_LANES: Final = 300
"""How many lanes one scan reads. A scan of so many takes 1 to 4 ms."""
NEWEST_JOBS: Final = 300
"""Among how many of the newest jobs the one is searched that a notification has announced."""
NAMED_SECONDS: Final = 60.0
"""How long a fetcher for named queues reads only these after a scan that would have read more than a page."""
NAMES: Final = 100
"""How many queues whose pause may have ended are read with one page."""
STEP_SECONDS: Final = 0.01
"""The pause between two tries to claim from the start of lanes. The fetcher permits such claims a tenth of the time."""
TOLERANCE: Final = timedelta(milliseconds=1)


class LanePages(LaneWalk):
    """The plain lanes of one fetcher, if there are more than a page. Otherwise `is_active` is false.

    `_others` are the lanes in which a due job lies behind the cursor.
    """

    def __init__(
        self,
        queue_names: Collection[str],
        clock: Callable[[], float],
        queue_slots: QueueSlots | None,
        cursors: Mapping[Lane, Cursor],
    ) -> None:
        self._cursors = cursors
        self._named_until = float("-inf")
        self._has_logged = False
        super().__init__(queue_names, clock, queue_slots)

    def forget(self) -> None:
        """Start afresh: the next scan begins with the first lane."""
        super().forget()
        self._names: set[str] = set()
        """Queues to read with the next page: they were paused and may not be any more."""
        self._has_forgotten = False
        self._from_start: set[Lane] = set()
        """Lanes of the last pick that the claim visits from their start."""

    # ---------------------------------------------------------------- reading

    def needs_page(self, polling_seconds: float) -> bool:
        """Return whether to read the next page: in a circle that has begun, or one for which there is a reason now."""
        return not self.is_active or bool(self._names) or self._begins_circle(polling_seconds)

    @property
    def reads_names(self) -> bool:
        """Whether scans read only the lanes of the named queues, because all lanes were too many."""
        return self._clock() < self._named_until

    def read(self, connection: Connection, turn: int, cursors: Mapping[Lane, Cursor]) -> LaneScan:
        """Scan. Return the lanes with ready jobs, or no lane if this object keeps them (`is_active`).

        The lanes of `cursors` are read only behind their cursors. It is empty if this object keeps the lanes.
        """
        now = self._clock()
        if cursors:
            scan = claims.scan_lanes(connection, limit=PAGE_LANES, cursors=cursors)
            if len(scan.due_in) < PAGE_LANES:
                return scan
        if now < self._named_until:
            return claims.scan_lanes(connection, queue_names=self._queue_names)
        self._circle.before_page(now)
        position = self._circle.position
        after = position and Lane(position.queue_name, position.priority)
        scan = claims.scan_lanes(connection, after=after, limit=PAGE_LANES)
        is_last = len(scan.due_in) < PAGE_LANES
        if is_last and after is None:
            if self.is_active:
                self.forget()
            return scan
        if self._queue_names:
            self._named_until = now + NAMED_SECONDS
            return claims.scan_lanes(connection, queue_names=self._queue_names)
        self._activate()
        self._keep(scan, turn)
        self._note_pauses(connection, set(scan.paused_queues), turn)
        self._end_page(None if is_last else ReadyPlace(*next(reversed(scan.due_in))[:2]))
        return scan._replace(due_in={})

    def _note_newest(self, connection: Connection, turn: int) -> bool:
        now, has_due = self._clock(), False
        for lane, seconds in claims.newest_lanes(connection, limit=NEWEST_JOBS).items():
            if lane.queue_name in self._paused_queues:
                continue
            if seconds <= 0:
                self._due.add(lane, turn)
                has_due = True
            else:  # another job of the lane may be due sooner
                self._later.note_sooner(lane, now + seconds, now)
        return has_due

    def _activate(self) -> None:
        if not self.is_active:
            self.is_active = True
            self._circle.begin(self._clock())
            if not self._has_logged:
                self._has_logged = True
                logger.info(
                    "more than %d lanes (pairs of queue and priority) have ready jobs: they are read page by page",
                    PAGE_LANES,
                    extra=event("many_lanes", count=PAGE_LANES),
                )

    def _keep(self, scan: LaneScan, turn: int) -> None:
        """Note the lanes of a scan. If the first due job lies behind the cursor, claim from the start of the lane."""
        now, due_in = self._clock(), list(scan.due_in.items())
        # If only some of the lanes can be kept, these must not be the first of the page each time.
        first = random.randrange(len(due_in) or 1)  # noqa: S311 -- spreads turns
        for lane, seconds in due_in[first:] + due_in[:first]:
            self._note(lane, seconds, now, turn)
            cursor = self._cursors.get(lane)
            if (
                cursor is not None
                and seconds <= 0
                and scan.seen_at + timedelta(seconds=seconds) < cursor.run_after - TOLERANCE
            ):
                self._others.add(lane, turn)

    def _note(self, lane: Lane, seconds: float, now: float, turn: int) -> None:
        if seconds <= 0:
            self._later.discard(lane)
            self._due.add(lane, turn)
        else:
            self._due.discard(lane)
            if isfinite(seconds):
                self._later.note(lane, now + seconds, now)

    def _note_pauses(self, connection: Connection, paused_queues: set[str], turn: int) -> None:
        """Forget the lanes of queues that are paused now, and read those of queues that are not any more."""
        ended, _ = self._set_paused(paused_queues)
        self._names |= ended
        if self._names:
            names = list(self._names)[:NAMES]
            self._names.difference_update(names)
            self._keep(claims.scan_lanes(connection, queue_names=names), turn)

    # ---------------------------------------------------------------- claiming

    def pick(self, most: int, turn: int, *, from_start: bool) -> tuple[dict[Lane, int], set[Lane]]:
        """Return up to `most` lanes to claim from, each with its turn, and those to claim from the start in."""
        for lane in self._later.take_due(self._clock()):
            if lane.queue_name in self._paused_queues:  # this may have changed, and when the pause ends too
                self._names.add(lane.queue_name)
            else:
                self._due.add(lane, turn)
        self._has_forgotten = False
        most = min(most, LANES_PER_CLAIM)
        behind = self._others.pick(most, self._is_full) if from_start else {}
        for lane in behind:
            self._due.add(lane, turn)
        self._from_start = set(behind)
        picked = behind | self._due.pick(most, self._is_full)
        return dict(islice(picked.items(), most)), self._from_start

    def had_turn(self, lane: Lane, turn: int) -> None:
        """Note that a claim has found a job in a lane."""
        super().had_turn(lane, turn)
        if lane in self._from_start:
            self._others.discard(lane)

    def exhaust(self, cursors: Mapping[Lane, Cursor], claimed_from: Collection[Lane], turn: int) -> None:
        """Forget lanes in which a claim that began at these cursors has left no job.

        If the claim has found none at all, the due job that a scan has seen lies behind the cursor, or another
        transaction has locked it, or its task is paused.
        """
        self._has_forgotten |= bool(cursors)
        for lane, cursor in cursors.items():
            is_known = self._due.discard(lane)
            if is_known and lane not in claimed_from:
                if cursor > Cursor():
                    self._others.add(lane, turn)
                else:
                    self._others.discard(lane)
                    self._has_failed = True

    # ---------------------------------------------------------------- sleeping

    def next_due_at(self, tried_at: float, page_due_at: float, if_overdue: float) -> float:
        """Return when there is something to do: a job is due, or a page is (`page_due_at`). See `Lanes`."""
        due_at = self._later.next_due_at
        if self._due.has_open(self._is_full):
            due_at = min(due_at, tried_at if self._has_forgotten else if_overdue)
        if self._others.has_open(self._is_full):
            due_at = min(due_at, tried_at + STEP_SECONDS)
        if not self._circle.is_complete or self._names:
            return min(due_at, page_due_at)
        return min(due_at, self._next_circle_at)
