"""Keep the keys of one lane of limited jobs that a claim may visit, and how long all other keys wait.

Used by `LimitedLanes`, in the fetcher's thread. Two invariants: keys of a lane take turns, and the memory is bounded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from django_pgqueue.lifecycle.types import Lane

MOST_KEYS: Final = 50_000
"""How many waiting keys a process remembers, and how many due keys of a lane. So many take about 20 MB. A circle meets
the others again."""


class DueKeys:
    """The keys of one lane that may have a job to claim."""

    def __init__(self) -> None:
        self.first: dict[str, bool] = {}
        """Keys with news: their job was announced, or a job of them has ended here. The value says whether a scan has
        seen a due job since the last visit."""
        self.others: OrderedDict[str, bool] = OrderedDict()
        self.is_fruitful = False
        """Whether the last visit has claimed a job."""
        self._is_turn_of_first = True

    def __bool__(self) -> bool:
        return bool(self.first or self.others)

    def add(self, key: str, *, is_seen: bool, is_news: bool) -> None:
        """Add a key behind the others, or behind those with news. A known key keeps its place."""
        known = self.first if key in self.first else self.others
        if key in known:
            known[key] = known[key] or is_seen
            if not is_news or known is self.first:
                return
            is_seen = self.others.pop(key)
        keys = self.first if is_news else self.others
        if len(keys) < MOST_KEYS:  # a later page meets it again
            keys[key] = is_seen

    def put_back(self, keys: Mapping[str, bool]) -> None:
        """Add keys that the last claim has left although their limits admit a job: they come first, in this order."""
        for key, is_seen in reversed(list(keys.items())):
            self.others[key] = is_seen
            self.others.move_to_end(key, last=False)
            self._is_turn_of_first = False

    def take(self, most: int) -> dict[str, bool]:
        """Remove and return up to `most` keys. Those with news and the others take turns, so that neither starve."""
        before, after = (self.first, self.others) if self._is_turn_of_first else (self.others, self.first)
        self._is_turn_of_first = not self._is_turn_of_first
        taken: dict[str, bool] = {}
        for keys in (before, after):
            while keys and len(taken) < most:
                key = next(iter(keys))
                taken[key] = keys.pop(key)
        return taken


class KeyWait(NamedTuple):
    """Why no job of a key can be claimed now."""

    until: float
    """When to visit the key again."""
    lanes: dict[Lane, None]
    """The lanes in which it was met meanwhile."""
    ends_with_job: bool
    """Whether the end of a job can let another one start."""
    has_waiting: bool
    """Whether a due job, if there is one, waits for a slot or a token. The key is not held, and not paused."""


class Waits:
    """The keys that wait, whatever lane their jobs are in."""

    def __init__(self) -> None:
        self._waits: dict[str, KeyWait] = {}

    def __contains__(self, key: str | None) -> bool:
        return key in self._waits

    def __len__(self) -> int:
        return len(self._waits)

    def until(self, key: str, lane: Lane, now: float) -> float | None:
        """Return how long a key waits, and note that it was met in a lane. None: it does not wait."""
        wait = self._waits.get(key)
        if wait is None:
            return None
        if wait.until <= now:
            del self._waits[key]
            return None
        wait.lanes[lane] = None
        return wait.until

    def set(self, key: str, wait: KeyWait, now: float) -> None:
        """Let a key wait. Forget the one that began first, if its wait has ended or too many wait."""
        before = self._waits.pop(key, None)
        if before is not None:
            wait.lanes.update(before.lanes)
        self._waits[key] = wait
        while self._waits:
            first = next(iter(self._waits))
            if len(self._waits) <= MOST_KEYS and self._waits[first].until > now:
                break
            del self._waits[first]

    def pop_ended(self, key: str) -> Iterable[Lane]:
        """Return the lanes of a key that waits for the end of a job, and let it wait no longer."""
        wait = self._waits.get(key)
        if wait is None or not wait.ends_with_job:
            return ()
        del self._waits[key]
        return wait.lanes

    def pop_all(self) -> dict[str, KeyWait]:
        """Return all waits, and end them."""
        waits, self._waits = self._waits, {}
        return waits

    def has_waiting(self, key: str) -> bool:
        """Return whether a due job of a key waits for a slot or a token."""
        wait = self._waits.get(key)
        return wait is not None and wait.has_waiting
