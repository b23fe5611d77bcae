"""Walk over all lanes page by page, so that one scan has a bounded cost for any number of lanes.

`LanePages` and `KeyPages` are the two walks of a fetcher: over the index of plain jobs, and over the index of jobs
with a limit key or a chunk key. Each scan reads the next page of a *circle* over its index. Invariant: when a circle is
complete, each lane was read at least once since the circle began. The fetcher may then sleep until the next job is due.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle.types import Lane, ReadyPlace
from django_pgqueue.worker.claiming.next_scan import Pacing
from django_pgqueue.worker.slots.queue_slots import QueueSlots

T = TypeVar("T")

SOON_SECONDS: Final = 120.0
MOST_LATER: Final = 50_000
"""How many lanes are kept that are due within `SOON_SECONDS`."""
MOST_LANES: Final = 50_000
"""How many lanes are kept of one priority. They take about 20 MB. The next circle finds the others."""
RENEW_SECONDS: Final = 0.4
"""For this long after a notification, each page begins the circle again. `enqueue()` omits notifications that follow
another at once, and relies on the polls of this time."""
LANES_PER_CLAIM: Final = 200
AGAIN_SECONDS: Final = 1.0
"""The pause between two circles while due jobs cannot be claimed, such as locked ones."""


class _Round(Generic[T]):
    """The results of one round over the index."""

    def __init__(self) -> None:
        self.due_at: dict[T, float] = {}
        self.queue: list[tuple[float, T]] = []
        self.others_due_at = float("inf")


class LaterLanes(Generic[T]):
    """The lanes of which the first job is due later, as far as a circle over all lanes has found out.

    Used by `LaneWalk` for lanes, and by `LimitedLanes` for keys of lanes, in the fetcher's thread. Only lanes whose
    first job is due within `SOON_SECONDS` are kept, because later circles find the others in time. Of the others, the
    earliest time is kept: a circle has to be complete by then.

    Only the results of the last two rounds over the index are kept, so lanes whose jobs are gone are forgotten.
    """

    def __init__(self) -> None:
        self._now, self._before = _Round[T](), _Round[T]()

    def note(self, lane: T, due_at: float, now: float) -> None:
        """Note when the first job of a lane is due."""
        self.discard(lane)
        found = self._now
        if due_at > now + SOON_SECONDS or len(found.queue) >= MOST_LATER:
            found.others_due_at = min(found.others_due_at, due_at)
        else:
            found.due_at[lane] = due_at
            heapq.heappush(found.queue, (due_at, lane))

    def note_sooner(self, lane: T, due_at: float, now: float) -> None:
        """Note when a job of a lane is due, unless the lane has a job that is due sooner."""
        known = self._now.due_at.get(lane, self._before.due_at.get(lane, float("inf")))
        if due_at < known:
            self.note(lane, due_at, now)

    def __contains__(self, lane: T) -> bool:
        return lane in self._now.due_at or lane in self._before.due_at

    def discard(self, lane: T) -> None:
        """Forget a lane."""
        self._now.due_at.pop(lane, None)
        self._before.due_at.pop(lane, None)

    def end_round(self) -> None:
        """Note that the last page of the index was read."""
        self._now, self._before = _Round[T](), self._now

    def take_due(self, now: float) -> list[T]:
        """Return the lanes whose first job is due now, and forget them."""
        taken: list[T] = []
        for found in (self._now, self._before):
            while (first := self._first(found)) is not None and first[0] <= now:
                self.discard(first[1])
                taken.append(first[1])
        return taken

    @property
    def next_due_at(self) -> float:
        """The time at which the first job of the kept lanes is due. It is infinity if no lane is kept."""
        firsts = [self._first(found) for found in (self._now, self._before)]
        return min((first[0] for first in firsts if first is not None), default=float("inf"))

    @property
    def others_due_at(self) -> float:
        """When the first job of the lanes that are not kept is due."""
        return min(self._now.others_due_at, self._before.others_due_at)

    def _first(self, found: _Round[T]) -> tuple[float, T] | None:
        """Return the first entry that is still true, and remove those before it."""
        while found.queue:
            due_at, lane = found.queue[0]
            if found.due_at.get(lane) == due_at:
                return found.queue[0]
            heapq.heappop(found.queue)
        return None


class DueLanes:
    """Lanes by priority, and by the queues that share slots (`group_of`).

    Used by `LaneWalk`, in the fetcher's thread. There can be tens of thousands of such lanes, so a claim must not sort
    them: a pick reads only the lanes that it returns. Invariant: lanes of one priority take turns. A lane moves to the
    end when a claim finds a job in it, and a new lane begins at the end.
    """

    def __init__(self, group_of: Callable[[str], str | None]) -> None:
        self._group_of = group_of
        self._turns: dict[tuple[int, str], dict[Lane, int]] = {}
        """For each priority, highest first, and each group: the lanes, and in which turn each came to its place."""

    def add(self, lane: Lane, turn: int) -> None:
        """Add a lane at the end, unless it is known or too many are."""
        key = self._key(lane)
        lanes = self._turns.get(key)
        if lanes is None:
            lanes = self._turns[key] = {}
            self._turns = dict(sorted(self._turns.items()))
        if len(lanes) < MOST_LANES:
            lanes.setdefault(lane, turn)

    def discard(self, lane: Lane) -> bool:
        """Remove a lane. Return whether it was known."""
        key = self._key(lane)
        lanes = self._turns.get(key, {})
        is_known = lanes.pop(lane, None) is not None
        if is_known and not lanes:
            del self._turns[key]
        return is_known

    def discard_queues(self, queue_names: Collection[str]) -> list[Lane]:
        """Remove and return the lanes of these queues."""
        removed = [lane for lanes in self._turns.values() for lane in lanes if lane.queue_name in queue_names]
        for lane in removed:
            self.discard(lane)
        return removed

    def had_turn(self, lane: Lane, turn: int) -> None:
        """Move a lane to the end, if it is known. If too many lanes are, leave its place to another one."""
        lanes = self._turns.get(self._key(lane), {})
        if lane in lanes:
            is_crowded = len(lanes) >= MOST_LANES
            self.discard(lane)
            if not is_crowded:
                self.add(lane, turn)

    def pick(self, most: int, is_full: Callable[[str], bool]) -> dict[Lane, int]:
        """Return up to `most` lanes whose queues have free slots, in order, each with its turn."""
        picked: list[tuple[int, int, Lane]] = []
        priority = None
        for key, lanes in self._turns.items():
            if key[0] != priority and len(picked) >= most:
                break
            priority = key[0]
            if not is_full(next(iter(lanes)).queue_name):
                picked += [(priority, turn, lane) for lane, turn in islice(lanes.items(), most)]
        picked.sort(key=lambda entry: entry[:2])  # stable: lanes of one turn stay in their order
        return {lane: turn for _, turn, lane in picked[:most]}

    def one_of_each_full(self, is_full: Callable[[str], bool]) -> set[Lane]:
        """Return one lane of each group of queues that has due jobs and no free slot."""
        firsts = [next(iter(lanes)) for lanes in self._turns.values()]
        return {lane for lane in firsts if is_full(lane.queue_name)}

    def has_open(self, is_full: Callable[[str], bool]) -> bool:
        """Return whether there is a lane whose queue has a free slot."""
        return any(not is_full(next(iter(lanes)).queue_name) for lanes in self._turns.values())

    def __bool__(self) -> bool:
        return bool(self._turns)

    def _key(self, lane: Lane) -> tuple[int, str]:
        return -lane.priority, self._group_of(lane.queue_name) or ""


class LaneCircle:
    """The position in the circle, and which part of the circle is still to do."""

    def __init__(self) -> None:
        self.position: ReadyPlace | None = None
        """The end of the last page. None: the next page begins with the first lane."""
        self.is_complete = False
        self.began_at = float("-inf")
        self._stop: ReadyPlace | None = None
        """The position at which the circle began."""
        self._is_past_end = False
        self._renew_until = float("-inf")

    def begin(self, now: float) -> None:
        """Read all lanes, beginning at the present position."""
        self.began_at, self.is_complete = now, False
        self._stop, self._is_past_end = self.position, False

    def renew(self, now: float) -> None:
        """Begin again because jobs may have been enqueued in any lane just now, or are about to be committed."""
        self._renew_until = now + RENEW_SECONDS
        self.begin(now)

    def before_page(self, now: float) -> None:
        """Note that a page is read now."""
        if now < self._renew_until:
            self.begin(now)

    def after_page(self, last: ReadyPlace | None) -> None:
        """Move to the end of a page. None: nothing follows the page."""
        self.position = last
        if last is None:
            self.is_complete |= self._is_past_end or self._stop is None
            self._is_past_end = True
        elif self._is_past_end and self._stop is not None:
            self.is_complete |= not last.is_before(self._stop)


class LaneWalk:
    """One walk: its circle, the lanes that are known to have due jobs, and those that have one later.

    Args:
        queue_names: The queues to claim from. Empty: all.
        clock: Returns the time in seconds. All times here are by this clock.
        queue_slots: The slots of each queue, if they are limited.
    """

    def __init__(
        self, queue_names: Collection[str], clock: Callable[[], float], queue_slots: QueueSlots | None
    ) -> None:
        self._queue_names = queue_names
        self._clock = clock
        self._queue_slots = queue_slots
        self.again_seconds = AGAIN_SECONDS
        self._newest_at = float("-inf")
        self._newest_rest = Pacing()
        self.forget()

    def _group_of(self, queue_name: str) -> str | None:
        return None if self._queue_slots is None else self._queue_slots.group_of(queue_name)

    def _is_full(self, queue_name: str) -> bool:
        return self._queue_slots is not None and self._queue_slots.is_full(queue_name)

    def forget(self) -> None:
        """Start afresh: the next scan begins with the first lane."""
        self._circle = LaneCircle()
        self._due = DueLanes(self._group_of)
        self._others = DueLanes(self._group_of)
        """Lanes that get only some of the time."""
        self._later: LaterLanes[Any] = LaterLanes()
        self._paused_queues: set[str] = set()
        self.is_active = False
        """Whether there are more lanes, or keys, than one page has."""
        self._has_claimed = self._has_failed = self._is_announced = False
        self._again_at = float("inf")
        """When the next circle begins if jobs could not be claimed (`_has_failed`)."""

    @property
    def is_complete(self) -> bool:
        """Whether a whole circle has found no job to claim."""
        has_found = self._due or self._others or self._has_claimed
        return not self.is_active or (self._circle.is_complete and not has_found)

    def expect_jobs(self) -> None:
        """Note that jobs may have been enqueued in any lane."""
        self._is_announced = True
        self._circle.renew(self._clock())

    def _begins_circle(self, polling_seconds: float) -> bool:
        """Return whether to read the next page: in a circle that has begun, or one for which there is a reason now."""
        if not self._circle.is_complete:
            return True
        now = self._clock()
        is_old = now - self._circle.began_at >= 0.75 * polling_seconds
        if is_old or self._has_claimed or now >= self._next_circle_at:
            self._circle.begin(now)
            self._has_claimed = self._has_failed = False
            return True
        return False

    def _end_page(self, last: ReadyPlace | None) -> None:
        self._circle.after_page(last)
        if last is None:
            self._later.end_round()
        if self._circle.is_complete:  # a claim that follows can still fail
            self._again_at = self._clock() + self.again_seconds

    def read_newest(self, connection: Connection, turn: int, *, is_idle: bool) -> bool:
        """Read the newest jobs after a notification, or when an idle fetcher polls. Return whether one is due."""
        began = self._clock()
        if not self.is_active or not (self._is_announced or is_idle) or began < self._newest_at:
            return False
        self._is_announced = False
        has_due = self._note_newest(connection, turn)
        self._newest_at = self._clock() + self._newest_rest.after(self._clock() - began)
        return has_due

    def _note_newest(self, connection: Connection, turn: int) -> bool:
        raise NotImplementedError

    def _set_paused(self, paused_queues: set[str]) -> tuple[set[str], list[Lane]]:
        """Note which queues are paused. Return those that are not any more, and the lanes that are forgotten."""
        ended, began = self._paused_queues - paused_queues, paused_queues - self._paused_queues
        self._paused_queues = paused_queues
        walked = (self._due, self._others) if began else ()
        return ended, [lane for lanes in walked for lane in lanes.discard_queues(began)]

    def had_turn(self, lane: Lane, turn: int) -> None:
        """Note that a claim has found a job in a lane."""
        self._has_claimed = True
        self._due.had_turn(lane, turn)

    @property
    def full(self) -> set[Lane]:
        """For each queue, or queues that share slots, with due jobs and without a free slot: one lane."""
        return self._due.one_of_each_full(self._is_full) | self._others.one_of_each_full(self._is_full)

    @property
    def _next_circle_at(self) -> float:
        """When the next circle begins although there is no news: to retry claims, or before later jobs are due."""
        later_at = self._later.others_due_at - SOON_SECONDS / 2
        return min(later_at, self._again_at) if self._has_failed else later_at
