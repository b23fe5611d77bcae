"""The lanes a fetcher looks at, in which order, and its cursor in each."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from django_pgqueue import lifecycle, registry
from django_pgqueue.db import EngineConnection
from django_pgqueue.lifecycle import EPOCH, Claimed, Cursor, Lane

from .rest import Rest
from .shared_looks import SharedLooks

logger = logging.getLogger("django_pgqueue.worker")

AGE_LIMIT_SECONDS: Final = 1.0
MARGIN: Final = timedelta(seconds=2)
"""How far behind the last look an exhausted lane's cursor stays. A job that is due now and commits within this time
after it was enqueued is still ahead of the cursor."""
SHARED_SECONDS: Final = 5.0
"""How old this process's own last look may be when a sibling's look stands in for the next one: it also tells which
queues and tasks are paused."""
CURSORS: Final = 1000
"""Cursors that are kept at the most while their lanes have no ready jobs."""
MANY: Final = 200
LATELY: Final = 8
"""Lanes that are remembered for the next announcement."""


class Lanes:
    """Not for two threads at once."""

    def __init__(self, queue_names: Sequence[str], shared: SharedLooks | None = None) -> None:
        self.shared = shared
        """Where the processes of one supervisor publish their looks; None if this one shares none."""
        self._sibling_due_at = float("inf")
        """When the next job is due by a sibling's look, if that stood in for the last one."""
        self.queue_names = list(queue_names)
        """Strict in this order; empty for all queues, by priority, those of one priority taking turns."""
        self.last_was_empty = True
        """Whether the last claim found nothing, or there was nothing to claim."""
        self.paused_tasks: list[str] = []
        """Names of tasks that no job may be claimed of, their aliases too."""
        self._due_at: dict[Lane, float] = {}
        """When the first job of each lane is due, by the monotonic clock; of a paused queue, when the pause ends."""
        self._cursors: dict[Lane, Cursor] = {}
        """The one moved last is the last."""
        self._seen_at = EPOCH
        """The time of the last look, by the database's clock."""
        self._served: dict[Lane, int] = {}
        """The turn in which each lane last gave a job."""
        self._lately: dict[Lane, None] = {}
        self._looked_at = self._ordered_at = float("-inf")
        self._rest = Rest()
        self._turn = 0
        self._warned = False

    def forget(self) -> None:
        """Begin anew, as after a reconnect: another server may not know what this one did."""
        self._cursors.clear()
        self._looked_at = float("-inf")

    def look_again(self) -> None:
        """Look before the next claim: what may be claimed has changed."""
        self._lately.clear()
        self._looked_at = float("-inf")

    def ordered(self, connection: EngineConnection, *, from_start: bool) -> dict[Lane, Cursor]:
        """Return the lanes that have something due, in the order to claim from, each with where to begin."""
        age = time.monotonic() - self._looked_at
        if age > max(0.0 if self.last_was_empty else AGE_LIMIT_SECONDS, self._rest.seconds):
            self._look(connection)
        self._turn += 1
        start, lanes = Cursor(), self._in_order()
        self.last_was_empty = self.last_was_empty or not lanes
        return {lane: start if from_start else self._cursors.get(lane, start) for lane in lanes}

    def lately(self) -> dict[Lane, Cursor]:
        """Return the lanes that jobs were last found in, the latest first, each with where to begin."""
        start = Cursor()
        return {lane: self._cursors.get(lane, start) for lane in reversed(self._lately)}

    def next_due_at(self, otherwise: float) -> float:
        """Return when the next job is due, by the monotonic clock: infinite if none is known of.

        `otherwise`: in place of that for lanes whose first job was due already, and not to be had.
        """
        tried_at = self._ordered_at
        own = min((at if at > tried_at else otherwise for at in self._due_at.values()), default=float("inf"))
        return min(own, self._sibling_due_at)

    def are_empty_for_sibling(self, moment: float | None) -> bool:
        """Whether a sibling's look that began at `moment` or later has found nothing due, so that none is needed here.

        `next_due_at()` then takes account of what the sibling found.
        """
        if self.shared is None or moment is None or time.monotonic() - self._looked_at > SHARED_SECONDS:
            return False
        due_at = self.shared.answer(moment)
        if due_at is None:
            return False
        self._sibling_due_at = due_at
        return True

    def move_cursors(self, claimed: Iterable[Claimed]) -> None:
        """Put each lane's cursor where its claim ended, also when that is further back."""
        last = {(job.queue_name, job.priority): job for job in claimed}
        for queue_and_priority, job in last.items():
            lane = Lane(*queue_and_priority)
            self._set_cursor(lane, Cursor(job.run_after, job.job_id))
            self._served.pop(lane, None)
            self._served[lane] = self._turn
            self._lately.pop(lane, None)
            self._lately[lane] = None
        for oldest in list(self._lately)[:-LATELY]:
            del self._lately[oldest]
        self.last_was_empty = not last

    def pass_by(self, cursors: Mapping[Lane, Cursor], claimed: Sequence[Claimed], *, all_exhausted: bool) -> None:
        """Move the cursors of exhausted lanes up to the last look: what is left there cannot be claimed now.

        Such jobs belong to a paused task, or somebody has them locked. Without this, each claim would walk over all of
        them. A claim takes the lanes in order, so it has exhausted those before the last lane that gave a job, and all
        of them if it returned fewer jobs than it could (`all_exhausted`).
        """
        exhausted = list(cursors)
        if not all_exhausted:
            last = exhausted.index(Lane(claimed[-1].queue_name, claimed[-1].priority)) if claimed else 0
            exhausted = exhausted[:last]
        passed = Cursor(self._seen_at - MARGIN) if self._seen_at > EPOCH else Cursor()
        for lane in exhausted:
            self._set_cursor(lane, max(self._cursors.get(lane, passed), passed))

    def _set_cursor(self, lane: Lane, cursor: Cursor) -> None:
        self._cursors.pop(lane, None)
        self._cursors[lane] = cursor

    def _look(self, connection: EngineConnection) -> None:
        began = time.monotonic()
        if self.shared is not None:
            self.shared.begin()
        found, paused_queues, paused_tasks, seen_at = lifecycle.look(connection)
        self._looked_at, self._sibling_due_at = time.monotonic(), float("inf")
        self._rest.after(self._looked_at - began)
        paused_before = set(self.paused_tasks)
        self.paused_tasks = [name for task_name in paused_tasks for name in registry.names_of(task_name)]
        if seen_at < self._seen_at or not paused_before <= set(self.paused_tasks):
            self._cursors.clear()  # the clock went back or a pause has ended: jobs lie behind the cursors
        self._seen_at = seen_at
        wanted = set(self.queue_names)
        self._due_at = {
            lane: self._looked_at + seconds
            for lane, seconds in found.items()
            if not wanted or lane.queue_name in wanted
        }
        if self.shared is not None:
            next_due_at = min(self._due_at.values(), default=float("inf"))
            self.shared.end(next_due_at if next_due_at > self._looked_at else None)
        self._forget_old(self._cursors)
        self._forget_old(self._served)
        self._lately = {lane: None for lane in self._lately if lane.queue_name not in paused_queues}
        if len(self._due_at) > MANY and not self._warned:
            self._warned = True
            logger.warning("%d lanes (queues times priorities) have ready jobs: each costs every claim", len(found))

    def _forget_old(self, known: dict[Lane, Any]) -> None:
        """Drop the oldest entries beyond `CURSORS`, but none of lanes that have ready jobs.

        Entries of other lanes are kept because a queue that has run empty gets jobs again: without its cursor, the next
        claim would walk over the dead index entries of all jobs that were claimed there before.
        """
        for lane in [lane for lane in known if lane not in self._due_at][:-CURSORS]:
            del known[lane]

    def _in_order(self) -> list[Lane]:
        self._ordered_at = time.monotonic()
        due = [lane for lane, due_at in self._due_at.items() if due_at <= self._ordered_at]
        if self.queue_names:
            place = {name: number for number, name in enumerate(self.queue_names)}
            return sorted(due, key=lambda lane: (place[lane.queue_name], -lane.priority))
        return sorted(due, key=lambda lane: (-lane.priority, self._served.get(lane, 0)))
