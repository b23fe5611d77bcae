"""Keep the state of one lane of limited jobs: the circle over its keys, cursors, freed keys, and the lane's rest.

Used by `limited_lanes`, in the fetcher's thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Container, Iterable, Sequence
from typing import Final

from django_pgqueue.lifecycle import Cursor
from django_pgqueue.lifecycle.limits import FoundKey, KeyResult, KeyToClaim
from django_pgqueue.limits import BEFORE_NAMES

from .key_cursors import KeyCursors
from .pacing import Pacing

KEYS: Final = 100
"""Number of keys with due jobs in one claim."""
VISITS: Final = 1000
"""Number of keys that one search visits."""
LOCKED_SECONDS: Final = 0.003
"""The rest of a lane in which another worker was just claiming. It doubles if this happens again."""
LONGEST_LOCKED_SECONDS: Final = 0.05


class Circle:
    """One visit to all keys of a lane."""

    def __init__(self, *, from_start: bool) -> None:
        self.began_at = time.monotonic()
        self.from_start = from_start
        """Whether the searches of this circle use no cursors."""
        self.is_fruitful = False
        """Whether a job was claimed."""
        self.has_waiting = False
        """Whether a due job waits for a slot or a token."""
        self.wait_until = float("inf")

    def wait(self, until: float) -> None:
        """Note that something can change at this time."""
        self.wait_until = min(self.wait_until, until)


class LimitedLane:
    """The keys of one lane of limited jobs."""

    def __init__(self) -> None:
        self.after_key = BEFORE_NAMES
        """Where the next step of the circle begins."""
        self.circle = Circle(from_start=True)
        self.cursors = KeyCursors()
        self.freed: dict[str, None] = {}
        """Busy keys of which a job has ended in this process."""
        self.rest_until = 0.0
        self.rests_since = 0.0
        self.has_waiting = False
        """Whether the last circle found a due job that waits for a slot or a token."""
        self.needs_slot = False
        """Whether the last claim left a job only because no slot of this process was free."""
        self.retry_at = 0.0
        """When to try again to lock a key."""
        self._locked_seconds = LOCKED_SECONDS
        self._pacing = Pacing()
        self.full_at = 0.0
        """When the next circle without cursors may begin."""
        self._served_freed = False
        self._paced_until = 0.0
        self._step_pacing = Pacing()

    @property
    def is_paced(self) -> bool:
        """Whether other lanes come first now, because the last step of the circle has found nothing to claim."""
        return not self.freed and not self.needs_slot and time.monotonic() < self._paced_until

    def note_step(self, took_seconds: float, *, has_claimed: bool) -> None:
        """Pace the next step of the circle. Steps that find nothing get a tenth of the time while other jobs are due.

        Without this, jobs without a limit ran at 0.65 of their rate beside 100,000 keys that all waited.
        """
        self._paced_until = 0.0 if has_claimed else time.monotonic() + self._step_pacing.after(took_seconds)

    def take_freed(self) -> list[str]:
        """Return freed keys to visit, or nothing if it is the circle's turn. They take turns, so neither starves.

        While the lane rests, the circle has no turn.
        """
        is_turn_of_circle = self._served_freed and time.monotonic() >= self.rest_until
        self._served_freed = bool(self.freed) and not is_turn_of_circle
        keys = list(self.freed)[:KEYS] if self._served_freed else []
        for key in keys:
            del self.freed[key]
        return keys

    def known(self) -> dict[str, Cursor]:
        """Return the cursors for the next search."""
        return {} if self.circle.from_start else self.cursors.last_claimed

    def cursor_of(self, key: str, *, is_freed: bool) -> Cursor:
        """Return where the next claim from a key begins.

        A freed key has its cursor in every circle: a busy key is visited hundreds of times in the rest of its lane.
        """
        return Cursor() if self.circle.from_start and not is_freed else self.cursors.beginning(key)

    def note_locked(self, *, is_locked: bool) -> None:
        """Note whether another worker was claiming from a key, so that this process waits before it tries again."""
        if not is_locked:
            self._locked_seconds = LOCKED_SECONDS
            return
        self.retry_at = time.monotonic() + self._locked_seconds * random.uniform(0.5, 1)  # noqa: S311 -- spreads load
        self._locked_seconds = min(2 * self._locked_seconds, LONGEST_LOCKED_SECONDS)

    def pass_on(
        self, found: Sequence[FoundKey], served: Sequence[str], pauses: Container[str], *, is_cut: bool
    ) -> None:
        """Continue the circle behind the visited keys. If the claim was cut, continue behind the last served one.

        After the last key, a new circle begins. `pauses` are the names of paused limits and paused keys.
        """
        due = [key.limit_key for key in found if key.due_seconds is not None and key.due_seconds <= 0]
        is_cut = is_cut and max(served, default="") != due[-1]
        if is_cut:
            self.after_key = max(served, default=self.after_key)
        elif found:
            self.after_key = found[-1].limit_key
            name, has_value, _ = self.after_key.partition(":")
            if has_value and name in pauses:
                self.after_key = f"{name};"  # behind all keys "name:…" in the order of bytes
        if not is_cut and len(found) < VISITS and len(due) < KEYS:
            self._end_circle()

    def _end_circle(self) -> None:
        now, circle = time.monotonic(), self.circle
        self.rests_since = now
        if circle.from_start:
            self.full_at = now + self._pacing.after(now - circle.began_at)
        self.has_waiting = circle.has_waiting
        if circle.is_fruitful:
            self.rest_until = 0.0
        else:  # jobs may lie behind a cursor: no long rest before a circle without cursors
            self.rest_until = circle.wait_until if circle.from_start else min(circle.wait_until, self.full_at)
        self.after_key = BEFORE_NAMES
        self.circle = Circle(from_start=not circle.is_fruitful or now >= self.full_at)


def left_without_slot(keys: Iterable[KeyToClaim], results: Iterable[KeyResult]) -> list[str]:
    """Return the keys of which a claim without further slots may have left a job that their limits admit."""
    not_prefetched = {key.limit_key for key in keys if key.policy.interval_seconds}
    return [
        result.limit_key
        for result in results
        if result.is_left or (result.may_have_more and result.limit_key in not_prefetched)
    ]
