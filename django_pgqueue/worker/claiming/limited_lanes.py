"""Claim jobs with a limit: visit the keys of a lane in a circle, and claim from each what its limit admits.

Called by the claimer and by `Lanes`, in the fetcher's thread. Only `note_ended()` may be called by other threads. A
lane of limited jobs is visited in steps of up to `KEYS` keys with due jobs. The next step continues behind the last key
that was served, so keys take turns. When a circle has found nothing to claim, the lane rests until something can
change: a token of a rate comes back, a job is due, or a running job ends.

A key without a free slot is *busy*. When this process ends a job of a busy key, it visits that key at once, without
waiting for the circle. Jobs that other workers end are found by the next circle, within `BUSY_SECONDS`.

Jobs with a rate are not prefetched. If a claim leaves such a job because no slot of this process is free, the lane
*needs a slot*. Until it gets one, this process prefetches no jobs of later lanes. Otherwise no slot would ever be free
beside a lane with many jobs.

Operators can override limits and pause keys. While there is such a row, each claim reads those of its keys after it has
locked them. A paused key is left out, and a circle passes all keys of a paused limit in one step.

The cursors have the purpose that those of `Lanes` have: no claim walks again over dead index entries while a
transaction elsewhere has an old snapshot. Jobs behind a cursor are found by circles without cursors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

from django_pgqueue import lifecycle, limits, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import Claimed, Lane
from django_pgqueue.lifecycle.limit_overrides import NO_CONTROLS, KeyControls
from django_pgqueue.lifecycle.limits import FoundKey, KeyClaim, KeyResult, KeyToClaim

from .key_cursors import CURSORS
from .limited_lane import KEYS, LOCKED_SECONDS, VISITS, LimitedLane, left_without_slot
from .probes import with_probes

BUSY_SECONDS: Final = 0.9
"""The longest rest of a lane with a key whose slots are all in use, whose next job cannot be claimed, or that is
paused."""
ANNOUNCED_SECONDS: Final = 0.4
"""How long after a notification resting lanes are visited. `enqueue()` omits some notifications (see `fetcher`)."""
NO_CLAIM: Final = KeyClaim([], [])
COUNT_SECONDS: Final = 2.0
"""How long a process remembers which executions of a key have ended. Ids of executions can restart."""


class LimitedLanes:
    """The lanes of limited jobs of one fetcher."""

    def __init__(self) -> None:
        self.longest_rest_seconds = get_settings().POLL_INTERVAL_WITHOUT_LISTEN
        """How long a lane rests at most: an operator can change limits, and the notification can be lost."""
        self._lanes: dict[Lane, LimitedLane] = {}
        self._announced_until = 0.0
        self._has_controls = False
        """Whether the last scan found an override or a pause of a limit."""
        self._breakers = registry.breakers()
        """Names of the limits with a circuit breaker."""
        self._busy: dict[str, set[Lane]] = {}
        """The lanes in which claims found each busy key."""
        self._ended: deque[str] = deque()
        self._open_after: dict[str, tuple[int, float]] = {}
        """For each key an execution, up to which all have ended, and when that was seen."""

    def note_ended(self, limit_keys: Iterable[str]) -> None:
        """Note keys of which jobs have ended in the database. Safe from any thread."""
        self._ended.extend(limit_keys)

    def is_busy(self, limit_key: str | None) -> bool:
        """Return whether the last claim from a key left it without a free slot. Safe from any thread."""
        return limit_key in self._busy

    def has_freed(self, lane: Lane) -> bool:
        """Return whether it is worth visiting a key of the lane now, because a job of it has ended in this process."""
        self._free_ended()
        state = self._lanes.get(lane)
        return state is not None and bool(state.freed) and time.monotonic() >= state.retry_at

    def scan(self, connection: EngineConnection) -> list[Lane]:
        """Return the lanes that have ready jobs. Runs no statement if no task of this process has a limit."""
        if not registry.limits():
            return []
        self._breakers = registry.breakers()
        lanes, self._has_controls = lifecycle.limits.scan_limited_lanes(connection)
        self._lanes = {lane: self._lanes.get(lane) or LimitedLane() for lane in lanes}
        if time.monotonic() < self._announced_until:  # the rest of a lane must not delay jobs of other keys
            for state in self._lanes.values():
                state.rest_until = min(state.rest_until, state.full_at)
        return lanes

    def rests_until(self, lane: Lane) -> float:
        """Return when it is worth visiting the lane again, by the monotonic clock."""
        self._free_ended()
        state = self._lanes.get(lane)
        if state is None:
            return 0.0
        if state.freed:
            return state.retry_at
        return min(state.rest_until, state.rests_since + self.longest_rest_seconds)

    def is_under_way(self, lane: Lane) -> bool:
        """Return whether the circle over the keys of a lane has begun and not ended, and waits for no free slot."""
        state = self._lanes.get(lane)
        return state is not None and state.after_key != "" and not state.needs_slot

    def is_paced(self, lane: Lane) -> bool:
        """Return whether other lanes come first now (see `LimitedLane`)."""
        state = self._lanes.get(lane)
        return state is not None and state.is_paced

    def can_continue(self, free_slots: int) -> bool:
        """Return whether this process may be able to claim jobs because one of its own jobs has ended."""
        self._free_ended()
        return any(state.freed or (state.needs_slot and free_slots > 0) for state in self._lanes.values())

    def needs_slot(self, lane: Lane) -> bool:
        """Return whether the last claim left a job of the lane only because no slot of this process was free."""
        state = self._lanes.get(lane)
        return state is not None and state.needs_slot

    @property
    def need_slots(self) -> bool:
        """Whether a lane needs a slot of this process (see `needs_slot()`)."""
        return any(state.needs_slot for state in self._lanes.values())

    @property
    def have_waiting(self) -> bool:
        """Whether due jobs wait for a slot or a token, as far as this process has seen. Jobs of held keys do not."""
        return self.need_slots or any(state.has_waiting for state in self._lanes.values())

    def expect_jobs(self) -> None:
        """Visit resting lanes after the next scans, because a notification says that jobs were enqueued."""
        self._announced_until = time.monotonic() + ANNOUNCED_SECONDS

    def wake(self) -> None:
        """Let no lane rest, because jobs may have been enqueued."""
        for state in self._lanes.values():
            state.rest_until = 0.0

    def forget(self) -> None:
        """Start afresh after a reconnect: another server may lack what the last one had committed."""
        self._lanes.clear()
        self._open_after.clear()

    def claim(
        self, connection: EngineConnection, lane: Lane, *, limit: int, free_slots: int, **options: Any
    ) -> list[Claimed]:
        """Claim up to `limit` jobs of a lane. `options` are further arguments of `lifecycle.limits.claim_keys()`."""
        state = self._lanes.setdefault(lane, LimitedLane())
        if state.needs_slot and free_slots <= 0:
            return []
        freed = state.take_freed()
        if freed:
            claimed = self._visit(connection, lane, state, freed, limit=limit, free_slots=free_slots, **options)
            if claimed or state.needs_slot or time.monotonic() < state.rest_until:
                return claimed
        return self._visit(connection, lane, state, [], limit=limit, free_slots=free_slots, **options)

    def _visit(
        self,
        connection: EngineConnection,
        lane: Lane,
        state: LimitedLane,
        freed: Sequence[str],
        *,
        limit: int,
        free_slots: int,
        **options: Any,
    ) -> list[Claimed]:
        """Claim from these freed keys of a lane, or make a step of the circle if there are none."""
        began = time.monotonic()
        found: list[FoundKey] = []
        with connection.transaction():
            if freed:
                locked = lifecycle.limits.lock_keys(connection, freed)
            else:
                found = lifecycle.limits.find_keys(
                    connection, lane, after_key=state.after_key, known=state.known(), wanted=KEYS, visits=VISITS
                )
                locked = [key.limit_key for key in found if key.is_locked]
            controls = self._controls_of(connection, locked)
            keys = self._to_claim(state, locked, controls, are_freed=bool(freed))
            claim = (
                lifecycle.limits.claim_keys(connection, lane, keys, limit=limit, free_slots=free_slots, **options)
                if keys
                else NO_CLAIM
            )
        is_full = len(claim.claimed) >= limit
        has_slots = is_full or len(claim.claimed) < free_slots
        left = [] if has_slots else left_without_slot(keys, claim.results)
        state.needs_slot = bool(left)
        self._learn(lane, state, keys, claim.results, left)
        state.circle.wait(_resumes_at(controls, locked))
        state.cursors.keep(claim.claimed)
        if freed:
            more = [each.limit_key for each in claim.results if each.may_have_more or (is_full and each.is_left)]
            state.freed |= dict.fromkeys([*left, *more])
            state.freed |= dict.fromkeys(set(freed) - set(locked))  # another worker was claiming from them
            state.note_locked(is_locked=len(locked) < len(freed))
        else:
            self._learn_from_search(state, found)
            served = [result.limit_key for result in claim.results if result.is_claimed]
            state.circle.is_fruitful |= bool(served)
            state.pass_on(found, served, controls.pauses, is_cut=is_full or bool(left))
            state.note_step(time.monotonic() - began, has_claimed=bool(claim.claimed))
        return with_probes(claim.claimed, controls)

    def claim_from_key(self, connection: EngineConnection, lane: Lane, key: str, **options: Any) -> list[Claimed]:
        """Claim one job of one key. `options` are further arguments of `lifecycle.limits.claim_keys()`."""
        with connection.transaction():
            locked = lifecycle.limits.lock_keys(connection, [key])
            controls = self._controls_of(connection, locked)
            keys = self._to_claim(LimitedLane(), locked, controls)
            claim = lifecycle.limits.claim_keys(connection, lane, keys, limit=1, **options) if keys else NO_CLAIM
        return with_probes(claim.claimed, controls)

    def due_keys(self, connection: EngineConnection, lane: Lane) -> list[str]:
        """Return keys of a lane with due jobs, those of the next step of the circle first."""
        after_key = self._lanes.setdefault(lane, LimitedLane()).after_key
        found = lifecycle.limits.find_keys(connection, lane, after_key=after_key, known={}, wanted=KEYS, visits=VISITS)
        return [key.limit_key for key in found if key.is_locked]

    def _free_ended(self) -> None:
        while self._ended:
            key = self._ended.popleft()
            for busy_lane in self._busy.pop(key, ()):
                if busy_lane in self._lanes:
                    self._lanes[busy_lane].freed[key] = None

    def _controls_of(self, connection: EngineConnection, limit_keys: Sequence[str]) -> KeyControls:
        """Return what operators have changed for these keys, and which breakers are open. Usually run no statement.

        The last scan can be older than a breaker that has just opened, so keys that can have one are always read.
        """
        if not self._has_controls:
            limit_keys = [key for key in limit_keys if limits.name_of(key) in self._breakers]
        return lifecycle.limit_overrides.controls_of(connection, limit_keys) if limit_keys else NO_CONTROLS

    def _to_claim(
        self, state: LimitedLane, limit_keys: Iterable[str], controls: KeyControls, *, are_freed: bool = False
    ) -> list[KeyToClaim]:
        known, now = registry.limits(), time.monotonic()
        keys = []
        for key in limit_keys:
            limit = known.get(limits.name_of(key))
            # Without a limit, it is one of newer or older code: other workers claim its jobs.
            if limit is not None and controls.pause_of(key) is None:
                open_after_id, seen_at = self._open_after.get(key, (0, now))
                is_recent = now - seen_at <= COUNT_SECONDS
                policy = controls.policy_of(key, limit)
                cursor = state.cursor_of(key, is_freed=are_freed)
                keys.append(KeyToClaim(key, policy, cursor, open_after_id if is_recent else 0))
        return keys

    def _learn(
        self,
        lane: Lane,
        state: LimitedLane,
        keys: Iterable[KeyToClaim],
        results: Iterable[KeyResult],
        left: Container[str],
    ) -> None:
        now = time.monotonic()
        counted = {key.limit_key for key in keys if key.policy.concurrency is not None}
        for result in results:
            self._open_after.pop(result.limit_key, None)
            # Without a concurrency nothing was counted, and an override can add one while the executions are open.
            if result.open_after_id is not None and result.limit_key in counted:
                self._open_after[result.limit_key] = result.open_after_id, now
            state.circle.has_waiting |= not result.admits_more and not result.is_held
            if result.due_seconds is not None:
                state.circle.wait(now + max(result.due_seconds, 0.0))
            elif result.limit_key not in left and (not result.admits_more or not result.is_claimed):
                self._busy.setdefault(result.limit_key, set()).add(lane)
                state.circle.wait(now + BUSY_SECONDS)
        for key in list(self._open_after)[: -CURSORS * KEYS]:
            del self._open_after[key]

    def _learn_from_search(self, state: LimitedLane, found: Iterable[FoundKey]) -> None:
        now = time.monotonic()
        locks = [key.is_locked for key in found if key.is_locked is not None]
        if locks:
            state.note_locked(is_locked=not any(locks))
        for key in found:
            if key.due_seconds is None:
                state.cursors.forget(key.limit_key)
            elif key.due_seconds > 0:
                state.circle.wait(now + key.due_seconds)
            elif not key.is_locked:
                state.circle.wait(max(state.retry_at, now + LOCKED_SECONDS))


def _resumes_at(controls: KeyControls, limit_keys: Iterable[str]) -> float:
    """Return when to look at the paused keys again, by the monotonic clock."""
    pauses = [pause for key in limit_keys if (pause := controls.pause_of(key)) is not None]
    return time.monotonic() + min((min(pause.seconds, BUSY_SECONDS) for pause in pauses), default=float("inf"))
