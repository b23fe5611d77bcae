"""Keep the lanes that are known to have due jobs, in the order to claim from them.

Used by `LaneWalk`, in the fetcher's thread. There can be tens of thousands of such lanes, so a claim must not sort
them: a pick reads only the lanes that it returns. Invariant: lanes of one priority take turns. A lane moves to the end
when a claim finds a job in it, and a new lane begins at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import islice
from typing import Final

from django_pgqueue.lifecycle import Lane

MOST_LANES: Final = 50_000
"""How many lanes are kept of one priority. They take about 20 MB. The next circle finds the others."""


class DueLanes:
    """Lanes by priority, and by the queues that share slots (`group_of`)."""

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
