"""Claim jobs with a limit: visit the keys of a lane in a circle, and claim from each what its limit admits.

Called by the claimer and by `Lanes`, in the fetcher's thread. Only `note_ended()` may be called by other threads. A
lane of limited jobs is visited in steps of up to `KEYS` keys with due jobs. The next step continues behind the last key
that was served, so keys take turns. When a circle has found nothing to claim, the lane rests until something can
change: a token of a rate comes back, a job is due, or a running job ends.

A key without a free slot is *busy*. When this process ends a job of a busy key, it visits that key at once, without
waiting for the circle. Jobs that other workers end are found by the next circle, within `BUSY_SECONDS`.

Operators can override limits and pause keys. While there is such a row, each claim reads those of its keys after it has
locked them. A paused key is left out, and a circle passes all keys of a paused limit in one step.

The cursors have the purpose that those of `Lanes` have: no claim walks again over dead index entries while a
transaction elsewhere has an old snapshot. Jobs behind a cursor are found by circles without cursors.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Container, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from django_pgqueue import lifecycle, limits, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.lifecycle import Claimed, Cursor, Lane
from django_pgqueue.lifecycle.limit_overrides import NO_CONTROLS, KeyControls
from django_pgqueue.lifecycle.limits import FoundKey, KeyClaim, KeyResult, KeyToClaim

from .pacing import Pacing
from .probes import with_probes

KEYS: Final = 100
"""Number of keys with due jobs in one claim."""
VISITS: Final = 1000
"""Number of keys that one search visits."""
BUSY_SECONDS: Final = 0.9
"""The longest rest of a lane with a key whose slots are all in use, whose next job cannot be claimed, or that is
paused."""
LOCKED_SECONDS: Final = 0.02
"""The rest of a lane in which another worker was just claiming."""
CURSORS: Final = 200
"""How many keys of a lane have a cursor."""
MARGIN: Final = timedelta(seconds=2)
"""How far behind the last claimed job the cursor of a key stays, for jobs that commit late."""
NO_CLAIM: Final = KeyClaim([], [])
COUNT_SECONDS: Final = 2.0
"""How long a process remembers which executions of a key have ended. Ids of executions can restart."""


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
        self.after_key = ""
        """Where the next step of the circle begins."""
        self.circle = Circle(from_start=True)
        self.cursors: dict[str, Cursor] = {}
        """Keys and their cursors. The key that was claimed from last comes last."""
        self.freed: dict[str, None] = {}
        """Busy keys of which a job has ended in this process."""
        self.rest_until = 0.0
        self.rests_since = 0.0
        self.has_waiting = False
        """Whether the last circle found a due job that waits for a slot or a token."""
        self._pacing = Pacing()
        self._full_at = 0.0
        """When the next circle without cursors may begin."""
        self._served_freed = False

    def take_freed(self) -> list[str]:
        """Return freed keys to visit, or nothing if it is the circle's turn. They take turns, so neither starves."""
        self._served_freed = bool(self.freed) and not self._served_freed
        keys = list(self.freed)[:KEYS] if self._served_freed else []
        for key in keys:
            del self.freed[key]
        return keys

    def known(self) -> dict[str, Cursor]:
        """Return the cursors for the next search."""
        return {} if self.circle.from_start else self.cursors

    def keep_cursors(self, claimed: Iterable[Claimed]) -> None:
        """Move the cursor of each key to its last claimed job, or somewhat before it."""
        last = {job.limit_key: job for job in claimed if job.limit_key is not None}
        for key, job in last.items():
            self.cursors.pop(key, None)
            self.cursors[key] = Cursor(job.run_after - MARGIN, 0)
        for key in list(self.cursors)[:-CURSORS]:
            del self.cursors[key]

    def pass_on(
        self, found: Sequence[FoundKey], served: Sequence[str], pauses: Container[str], *, is_cut: bool
    ) -> None:
        """Continue the circle behind the visited keys. If the claim was full, continue behind the last served one.

        After the last key, a new circle begins. `pauses` are the names of paused limits and paused keys.
        """
        due = [key.limit_key for key in found if key.due_seconds is not None and key.due_seconds <= 0]
        is_cut = is_cut and max(served) != due[-1]
        if is_cut:
            self.after_key = max(served)
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
            self._full_at = now + self._pacing.after(now - circle.began_at)
        self.has_waiting = circle.has_waiting
        if circle.is_fruitful:
            self.rest_until = 0.0
        else:  # jobs may lie behind a cursor: no long rest before a circle without cursors
            self.rest_until = circle.wait_until if circle.from_start else min(circle.wait_until, self._full_at)
        self.after_key = ""
        self.circle = Circle(from_start=not circle.is_fruitful or now >= self._full_at)


class LimitedLanes:
    """The lanes of limited jobs of one fetcher."""

    def __init__(self) -> None:
        self.longest_rest_seconds = get_settings().POLL_INTERVAL_WITHOUT_LISTEN
        """How long a lane rests at most: an operator can change limits, and the notification can be lost."""
        self._lanes: dict[Lane, LimitedLane] = {}
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

    def scan(self, connection: EngineConnection) -> list[Lane]:
        """Return the lanes that have ready jobs. Runs no statement if no task of this process has a limit."""
        if not registry.limits():
            return []
        self._breakers = registry.breakers()
        lanes, self._has_controls = lifecycle.limits.scan_limited_lanes(connection)
        self._lanes = {lane: self._lanes.get(lane) or LimitedLane() for lane in lanes}
        return lanes

    def rests_until(self, lane: Lane) -> float:
        """Return when it is worth visiting the lane again, by the monotonic clock."""
        while self._ended:
            key = self._ended.popleft()
            for busy_lane in self._busy.pop(key, ()):
                if busy_lane in self._lanes:
                    self._lanes[busy_lane].freed[key] = None
        state = self._lanes.get(lane)
        if state is None or state.freed:
            return 0.0
        return min(state.rest_until, state.rests_since + self.longest_rest_seconds)

    @property
    def have_waiting(self) -> bool:
        """Whether due jobs wait for a slot or a token, as far as this process has seen."""
        return any(state.has_waiting for state in self._lanes.values())

    def wake(self) -> None:
        """Let no lane rest, because jobs may have been enqueued."""
        for state in self._lanes.values():
            state.rest_until = 0.0

    def forget(self) -> None:
        """Start afresh after a reconnect: another server may lack what the last one had committed."""
        self._lanes.clear()
        self._open_after.clear()

    def claim(self, connection: EngineConnection, lane: Lane, *, limit: int, **options: Any) -> list[Claimed]:
        """Claim up to `limit` jobs of a lane. `options` are further arguments of `lifecycle.limits.claim_keys()`."""
        state = self._lanes.setdefault(lane, LimitedLane())
        freed = state.take_freed()
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
            keys = self._to_claim(state, locked, controls)
            claim = lifecycle.limits.claim_keys(connection, lane, keys, limit=limit, **options) if keys else NO_CLAIM
        self._learn(lane, state, keys, claim.results)
        state.circle.wait(_resumes_at(controls, locked))
        state.keep_cursors(claim.claimed)
        if freed:
            state.freed |= dict.fromkeys(set(freed) - set(locked))  # another worker was claiming from them
        else:
            self._learn_from_search(state, found)
            served = [result.limit_key for result in claim.results if result.is_claimed]
            state.circle.is_fruitful |= bool(served)
            state.pass_on(found, served, controls.pauses, is_cut=len(claim.claimed) >= limit)
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

    def _controls_of(self, connection: EngineConnection, limit_keys: Sequence[str]) -> KeyControls:
        """Return what operators have changed for these keys, and which breakers are open. Usually run no statement.

        The last scan can be older than a breaker that has just opened, so keys that can have one are always read.
        """
        if not self._has_controls:
            limit_keys = [key for key in limit_keys if limits.name_of(key) in self._breakers]
        return lifecycle.limit_overrides.controls_of(connection, limit_keys) if limit_keys else NO_CONTROLS

    def _to_claim(self, state: LimitedLane, limit_keys: Iterable[str], controls: KeyControls) -> list[KeyToClaim]:
        known, now = registry.limits(), time.monotonic()
        keys = []
        for key in limit_keys:
            limit = known.get(limits.name_of(key))
            # Without a limit, it is one of newer or older code: other workers claim its jobs.
            if limit is not None and controls.pause_of(key) is None:
                open_after_id, seen_at = self._open_after.get(key, (0, now))
                is_recent = now - seen_at <= COUNT_SECONDS
                cursor = state.known().get(key, Cursor())
                policy = controls.policy_of(key, limit)
                keys.append(KeyToClaim(key, policy, cursor, open_after_id if is_recent else 0))
        return keys

    def _learn(self, lane: Lane, state: LimitedLane, keys: Iterable[KeyToClaim], results: Iterable[KeyResult]) -> None:
        now = time.monotonic()
        counted = {key.limit_key for key in keys if key.policy.concurrency is not None}
        for result in results:
            self._open_after.pop(result.limit_key, None)
            # Without a concurrency nothing was counted, and an override can add one while the executions are open.
            if result.open_after_id is not None and result.limit_key in counted:
                self._open_after[result.limit_key] = result.open_after_id, now
            state.circle.has_waiting |= not result.admits_more
            if result.due_seconds is not None:
                state.circle.wait(now + max(result.due_seconds, 0.0))
            elif not result.admits_more or not result.is_claimed:
                self._busy.setdefault(result.limit_key, set()).add(lane)
                state.circle.wait(now + BUSY_SECONDS)
        for key in list(self._open_after)[: -CURSORS * KEYS]:
            del self._open_after[key]

    def _learn_from_search(self, state: LimitedLane, found: Iterable[FoundKey]) -> None:
        now = time.monotonic()
        for key in found:
            if key.due_seconds is None:
                state.cursors.pop(key.limit_key, None)
            elif key.due_seconds > 0:
                state.circle.wait(now + key.due_seconds)
            elif not key.is_locked:
                state.circle.wait(now + LOCKED_SECONDS)


def _resumes_at(controls: KeyControls, limit_keys: Iterable[str]) -> float:
    """Return when to look at the paused keys again, by the monotonic clock."""
    pauses = [pause for key in limit_keys if (pause := controls.pause_of(key)) is not None]
    return time.monotonic() + min((min(pause.seconds, BUSY_SECONDS) for pause in pauses), default=float("inf"))
