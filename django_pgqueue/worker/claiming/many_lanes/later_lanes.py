"""Keep when lanes without a due job have one, as far as a circle over all lanes has found out.

Used by `LaneWalk` for lanes, and by `LimitedLanes` for keys of lanes, in the fetcher's thread. Only lanes whose first
job is due soon are kept, because later circles find the others in time. Of the others, the earliest time is kept: a
circle has to be complete by then.

Only the results of the last two rounds over the index are kept, so lanes whose jobs are gone are forgotten.
"""

from __future__ import annotations

import heapq
from typing import Final, Generic, TypeVar

T = TypeVar("T")

SOON_SECONDS: Final = 120.0
MOST_LANES: Final = 50_000


class _Round(Generic[T]):
    """The results of one round over the index."""

    def __init__(self) -> None:
        self.due_at: dict[T, float] = {}
        self.queue: list[tuple[float, T]] = []
        self.others_due_at = float("inf")


class LaterLanes(Generic[T]):
    """The lanes of which the first job is due later."""

    def __init__(self) -> None:
        self._now, self._before = _Round[T](), _Round[T]()

    def note(self, lane: T, due_at: float, now: float) -> None:
        """Note when the first job of a lane is due."""
        self.discard(lane)
        found = self._now
        if due_at > now + SOON_SECONDS or len(found.queue) >= MOST_LANES:
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
