"""Claim jobs with a limit: visit the due keys of a lane in turns, and claim from each what its limit admits.

Called by `KeyPages` and the claimer, in the fetcher's thread. Only `note_ended()` and `is_busy()` may be called by
other threads. A visit takes up to `KEYS` keys of one lane. Afterwards a key with due jobs keeps its turn, and a key
without jobs is forgotten. Other keys wait: for a token of their rate, the end of a job, the claim of another worker, or
the end of a pause. A key waits in all lanes at once, so 3,000 queues whose jobs wait for one token cost one visit.

When this process ends a job of a key, it visits that key at once. It finds jobs that other workers have ended after
`BUSY_SECONDS`. Two invariants: the keys of a lane take turns (`DueKeys`), and the memory is bounded, because the walk
meets again what is forgotten here.

Jobs with a rate are not prefetched. If a claim leaves such a job because no slot of this process is free, the lane
*needs a slot*. Until it gets one, this process prefetches no jobs of later lanes. Otherwise no slot would ever be free
beside a lane with many jobs.

Operators can override limits and pause keys. While there is such a row, each claim reads those of its keys after it has
locked them.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.lifecycle.limits import KeyResult
from django_pgqueue.lifecycle.types import Claimed, Lane
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.claiming.many_lanes.lane_walk import LaterLanes
from django_pgqueue.worker.claiming.next_scan import Pacing

from .key_claims import KeyClaims, Visit

KEYS: Final = 100
"""How many keys one claim visits."""
BUSY_SECONDS: Final = 0.9
"""How long a key waits whose slots are all in use, unless a job of it ends in this process."""
LOCKED_SECONDS: Final = 0.003
"""How long a key waits that another worker was just claiming from. It doubles if this happens again."""
LONGEST_LOCKED_FACTOR: Final = 16.0
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


class LimitedLanes:
    """The lanes of limited jobs of one fetcher. `later` keeps when its keys are due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.longest_rest_seconds = get_settings().POLL_INTERVAL_WITHOUT_LISTEN
        """How long a key waits at most: an operator can change limits, and the notification can be lost."""
        self.busy_seconds, self.locked_seconds = BUSY_SECONDS, LOCKED_SECONDS
        self._ended: deque[str] = deque()
        self._locked_factor = 1.0
        self._paced_until = 0.0
        self._pacing = Pacing()
        self.forget()

    def forget(self) -> None:
        """Start afresh after a reconnect: another server may lack what the last one had committed."""
        self._lanes: dict[Lane, DueKeys] = {}
        """The lanes with keys to visit."""
        self._freed: dict[Lane, None] = {}
        """Those of them with a key of which a job has ended in this process."""
        self._need_slots: set[Lane] = set()
        self._waits = Waits()
        self.claims = KeyClaims(self._clock)
        self.later: LaterLanes[tuple[Lane, str]] = LaterLanes()
        self.waiting: set[Lane] = set()
        """Lanes with due jobs that wait for their limit, their chunk or a slot, as far as this process has seen."""
        self.has_failed = False
        """Whether a claim has not found a due job that a scan had seen, since this was last reset."""

    # ---------------------------------------------------------------- which lanes have keys to visit

    def note_ended(self, limit_keys: Iterable[str]) -> None:
        """Note keys of which jobs have ended in the database. Safe from any thread."""
        self._ended.extend(limit_keys)

    def is_busy(self, limit_key: str | None) -> bool:
        """Return whether a key waits. Safe from any thread."""
        return limit_key in self._waits

    def add(self, lane: Lane, key: str, *, is_seen: bool = False, is_news: bool = False) -> bool:
        """Let a lane visit a key, unless the key waits. Return whether it does not wait."""
        until = self._waits.until(key, lane, now := self._clock())
        if until is not None:
            self.later.note((lane, key), until, now)
            return False
        self.later.discard((lane, key))
        self._lanes.setdefault(lane, DueKeys()).add(key, is_seen=is_seen, is_news=is_news)
        return True

    def free_ended(self) -> list[Lane]:
        """Return the lanes of keys of which a job has ended in this process: visit them now."""
        while self._ended:
            key = self._ended.popleft()
            for lane in self._waits.pop_ended(key):
                if self.add(lane, key, is_news=True):
                    self._freed[lane] = None
        return list(self._freed)

    def has_keys(self, lane: Lane) -> bool:
        """Return whether a lane has keys to visit."""
        return lane in self._lanes

    def is_sure(self, lane: Lane) -> bool:
        """Return whether a visit of the lane will probably claim a job."""
        keys = self._lanes.get(lane)
        return keys is not None and (keys.is_fruitful or bool(keys.first) or lane in self._need_slots)

    @property
    def is_idle(self) -> bool:
        """Whether no lane has a key to visit, and no key waits."""
        return not self._lanes and not self._waits

    @property
    def is_paced(self) -> bool:
        """Whether other lanes come first now, because visits have claimed nothing.

        Such visits get a tenth of the time while other jobs are due. Without this, jobs without a limit ran at 0.65 of
        their rate beside 100,000 keys that all waited.
        """
        return self._clock() < self._paced_until

    def can_continue(self, free_slots: int) -> bool:
        """Return whether this process may be able to claim jobs because one of its own jobs has ended."""
        return bool(self.free_ended()) or (self.need_slots and free_slots > 0)

    def needs_slot(self, lane: Lane) -> bool:
        """Return whether the last claim left a job of the lane only because no slot of this process was free."""
        return lane in self._need_slots

    @property
    def need_slots(self) -> bool:
        """Whether a lane needs a slot of this process (see `needs_slot()`)."""
        return bool(self._need_slots)

    def has_waiting(self, key: str) -> bool:
        """Return whether a due job of a key waits for a slot or a token. Jobs of held keys do not."""
        return self._waits.has_waiting(key)

    def wake(self) -> list[Lane]:
        """Let no key wait, because an operator may have changed something. Return the lanes with keys to visit."""
        for key, wait in self._waits.pop_all().items():
            for lane in wait.lanes:
                self.add(lane, key)
        return list(self._lanes)

    def drop(self, lane: Lane) -> None:
        """Forget the keys of a lane."""
        self._lanes.pop(lane, None)
        self._freed.pop(lane, None)
        self._need_slots.discard(lane)

    # ---------------------------------------------------------------- claiming

    def claim(
        self, connection: Connection, lane: Lane, *, limit: int, free_slots: int, **options: Any
    ) -> list[Claimed]:
        """Claim up to `limit` jobs of a lane. `options` are further arguments of `lifecycle.limits.claim_keys()`."""
        state = self._lanes.get(lane)
        if state is None or (free_slots <= 0 and lane in self._need_slots):
            return []
        began = self._clock()
        keys = self._take(lane, state, min(KEYS, limit) if state.is_fruitful else KEYS)
        claimed = self._visit(connection, lane, state, keys, limit=limit, free_slots=free_slots, **options)
        state.is_fruitful = bool(claimed)
        if keys and not claimed:
            self._paced_until = self._clock() + self._pacing.after(self._clock() - began)
        if not state:
            self.drop(lane)
        return claimed

    def _take(self, lane: Lane, state: DueKeys, most: int) -> dict[str, bool]:
        """Return the next keys to visit. Leave those that began to wait meanwhile, in another lane."""
        now = self._clock()
        keys: dict[str, bool] = {}
        while state and len(keys) < most:
            for key, is_seen in state.take(most - len(keys)).items():
                until = self._waits.until(key, lane, now)
                if until is None:
                    keys[key] = is_seen
                else:
                    self.later.note((lane, key), until, now)
        return keys

    def _visit(
        self, connection: Connection, lane: Lane, state: DueKeys, seen: Mapping[str, bool], **options: Any
    ) -> list[Claimed]:
        """Claim from these keys of a lane, and decide when each is visited again."""
        self._need_slots.discard(lane)
        self._freed.pop(lane, None)
        if not seen:
            return []
        try:
            visit = self.claims.claim(connection, lane, list(seen), **options)
        except BaseException:
            for key, is_seen in seen.items():
                state.add(key, is_seen=is_seen, is_news=False)
            raise
        if visit.left:
            self._need_slots.add(lane)
        self._note_locked(lane, set(seen) - set(visit.locked), is_any_locked=bool(visit.locked))
        self._note_paused(lane, visit)
        results, left = {result.limit_key: result for result in visit.results}, dict[str, bool]()
        last = {job.limit_key: place for place, job in enumerate(visit.claimed)}
        for key in sorted((key for key in seen if key in results), key=lambda key: last.get(key, -1)):
            result = results[key]
            if result.is_left and (visit.is_full or key in visit.left):
                left[key] = seen[key]
            elif not result.may_have_more or key not in visit.exhausted:
                self._place(lane, state, result, is_seen=seen[key])
        state.put_back(left)
        return visit.claimed

    def due_keys(self, lane: Lane) -> list[str]:
        """Return keys that the next claim of a lane can visit."""
        state = self._lanes.get(lane)
        return [] if state is None else [*state.first, *state.others][:KEYS]

    # ---------------------------------------------------------------- when to visit each key again

    def _place(self, lane: Lane, state: DueKeys, result: KeyResult, *, is_seen: bool) -> None:
        """Keep a key in its lane, let it wait, or forget it."""
        key, now = result.limit_key, self._clock()
        has_waiting = not result.admits_more and not result.is_held
        if has_waiting:  # perhaps no other job waits: then the next circle finds none
            self.waiting.add(lane)
        if result.due_seconds is not None:
            self._wait(lane, key, now + max(result.due_seconds, 0.0), has_waiting=has_waiting)
        elif not result.admits_more:
            self._wait(lane, key, now + self.busy_seconds, ends_with_job=True, has_waiting=has_waiting)
        elif result.is_claimed:
            state.add(key, is_seen=False, is_news=False)
        else:  # its jobs are gone or locked, their task is paused, or another job of its order comes first
            if is_seen:
                self.has_failed = True
                self.claims.cursors.forget(lane, key)

    def _wait(
        self, lane: Lane, key: str, until: float, *, ends_with_job: bool = False, has_waiting: bool = False
    ) -> None:
        now = self._clock()
        until = min(until, now + self.longest_rest_seconds)
        self._waits.set(key, KeyWait(until, {lane: None}, ends_with_job, has_waiting), now)
        self.later.note((lane, key), until, now)

    def _note_locked(self, lane: Lane, limit_keys: Iterable[str], *, is_any_locked: bool) -> None:
        """Let the keys wait that another worker was claiming from."""
        if is_any_locked:
            self._locked_factor = 1.0
        for key in limit_keys:
            seconds = self.locked_seconds * self._locked_factor * random.uniform(0.5, 1)  # noqa: S311 -- spreads load
            self._wait(lane, key, self._clock() + seconds)
        if not is_any_locked:
            self._locked_factor = min(2 * self._locked_factor, LONGEST_LOCKED_FACTOR)

    def _note_paused(self, lane: Lane, visit: Visit) -> None:
        for key in visit.locked:
            pause = visit.controls.pause_of(key)
            if pause is not None:
                self._wait(lane, key, self._clock() + min(pause.seconds, self.busy_seconds))
