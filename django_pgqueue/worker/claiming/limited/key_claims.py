"""Claim from keys of a lane: lock them, read what operators have changed, and claim what their limits admit.

Used by `LimitedLanes`, in the fetcher's thread, and by `foreground_claim` for one job. It also remembers where the next
claim of each key begins, and the next count of its open executions, so that neither walks over old entries again.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.declared import limits
from django_pgqueue.display import visible
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import limit_overrides
from django_pgqueue.lifecycle import limits as lifecycle_limits
from django_pgqueue.lifecycle.execute import transaction_of
from django_pgqueue.lifecycle.limit_overrides import NO_CONTROLS, KeyControls
from django_pgqueue.lifecycle.limits import KeyClaim, KeyResult, KeyToClaim
from django_pgqueue.lifecycle.types import Claimed, Cursor, Lane
from django_pgqueue.tasks import registry

CURSORS: Final = 5000
"""How many keys have a cursor."""
MARGIN: Final = timedelta(seconds=2)
LOOK_BACK_SECONDS: Final = 0.5
"""How often a claim from a key begins `MARGIN` before its cursor."""
TOLERANCE: Final = timedelta(milliseconds=1)
logger = logging.getLogger("django_pgqueue.worker")
COUNT_SECONDS: Final = 2.0
"""How long a process remembers which executions of a key have ended. Ids of executions can restart."""
COUNTS: Final = 20_000
"""Of how many keys it remembers that."""


class KeyCursors:
    """The cursors of one fetcher.

    Used by `LimitedLanes`, in the fetcher's thread. Without cursors, each claim from a key would walk again over the
    index entries of all its claimed jobs, while a transaction elsewhere has an old snapshot. Jobs that commit late can
    lie behind a cursor. For these, a claim begins `MARGIN` before the cursor now and then. Claims must not all do so:
    at 5,000 jobs a second, they would walk over 10,000 entries each. For older jobs, the walk over all keys drops the
    cursor.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last: dict[tuple[Lane, str], tuple[Cursor, float]] = {}
        """The last claimed job of each key, and when a claim begins before it again. The newest entry comes last."""

    def beginning(self, lane: Lane, key: str) -> Cursor:
        """Return where the next claim from a key begins."""
        if (found := self._last.get((lane, key))) is None:
            return Cursor()
        cursor, looks_back_at = found
        return cursor if self._clock() < looks_back_at else Cursor(cursor.run_after - MARGIN, 0)

    def keep(self, lane: Lane, claimed: Iterable[Claimed]) -> None:
        """Move the cursor of each key to its last claimed job, even if that is further back."""
        now = self._clock()
        last = {job.limit_key: job for job in claimed if job.limit_key is not None}
        for key, job in last.items():
            _, looks_back_at = self._last.pop((lane, key), (None, 0.0))
            if looks_back_at <= now:
                looks_back_at = now + LOOK_BACK_SECONDS
            self._last[lane, key] = Cursor(job.run_after, job.job_id), looks_back_at
        while len(self._last) > CURSORS:
            del self._last[next(iter(self._last))]

    def drop_if_behind(self, lane: Lane, key: str, run_after: datetime) -> None:
        """Let the next claim begin at the first job of a key, if that job comes before the cursor."""
        found = self._last.get((lane, key))
        if found is not None and run_after < found[0].run_after - TOLERANCE:
            del self._last[lane, key]

    def forget(self, lane: Lane, key: str) -> None:
        """Let the next claim from a key begin at its first job."""
        self._last.pop((lane, key), None)


class Visit(NamedTuple):
    """The result of a claim from some keys."""

    claimed: list[Claimed]
    results: list[KeyResult]
    locked: list[str]
    """The keys that no other worker was claiming from."""
    controls: KeyControls
    left: Collection[str]
    """The keys with a job that was left only because no slot of this process was free."""
    is_full: bool
    """Whether it has claimed as many jobs as it may."""
    exhausted: Collection[str]
    """The keys that have no further due job."""


class KeyClaims:
    """The claims from keys of one fetcher, or of one run in the foreground."""

    def __init__(self, clock: Callable[[], float], *, has_controls: bool = False) -> None:
        self._clock = clock
        self.has_controls = has_controls
        """Whether there may be an override or a pause of a limit. The fetcher knows that from the last scan."""
        self.cursors = KeyCursors(clock)
        self._open_after: dict[str, tuple[int, float]] = {}
        """For each key an execution, up to which all have ended, and when that was seen."""

    def claim(
        self,
        connection: Connection,
        lane: Lane,
        limit_keys: Sequence[str],
        *,
        limit: int,
        free_slots: int,
        **options: Any,
    ) -> Visit:
        """Lock keys, and claim from those that were not locked: two statements in one transaction."""
        claim, keys = KeyClaim([], []), list[KeyToClaim]()
        with transaction_of(connection):
            locked = lifecycle_limits.lock_keys(connection, limit_keys)
            controls = self._controls_of(connection, locked)
            keys = self._to_claim(lane, locked, controls)
            if keys:
                claim = lifecycle_limits.claim_keys(
                    connection, lane, keys, limit=limit, free_slots=free_slots, **options
                )
        self.cursors.keep(lane, claim.claimed)
        self._learn_counts(keys, claim.results)
        is_full = len(claim.claimed) >= limit
        has_slots = is_full or len(claim.claimed) < free_slots
        left = [] if has_slots else left_without_slot(keys, claim.results)
        exhausted = _exhausted(keys, claim.claimed, limit=limit, free_slots=free_slots)
        claimed = with_probes(claim.claimed, controls)
        return Visit(claimed, claim.results, locked, controls, left, is_full, exhausted)

    def _controls_of(self, connection: Connection, limit_keys: Sequence[str]) -> KeyControls:
        """Return what operators have changed for these keys, and which breakers are open. Usually run no statement.

        The last scan can be older than a breaker that has just opened, so keys that can have one are always read.
        """
        if not self.has_controls:
            breakers = registry.breakers()
            limit_keys = [key for key in limit_keys if limits.name_of(key) in breakers]
        return limit_overrides.controls_of(connection, limit_keys) if limit_keys else NO_CONTROLS

    def _to_claim(self, lane: Lane, limit_keys: Iterable[str], controls: KeyControls) -> list[KeyToClaim]:
        known, now = registry.limits(), self._clock()
        keys = []
        for key in limit_keys:
            if controls.pause_of(key) is None:
                open_after_id, seen_at = self._open_after.get(key, (0, now))
                is_recent = now - seen_at <= COUNT_SECONDS
                policy = controls.policy_of(key, known[limits.name_of(key)])
                cursor = self.cursors.beginning(lane, key)
                keys.append(KeyToClaim(key, policy, cursor, open_after_id if is_recent else 0))
        return keys

    def _learn_counts(self, keys: Iterable[KeyToClaim], results: Iterable[KeyResult]) -> None:
        """Remember up to which execution the next count of each key can leave out all."""
        now = self._clock()
        counted = {key.limit_key for key in keys if key.policy.concurrency is not None}
        for result in results:
            self._open_after.pop(result.limit_key, None)
            # Without a concurrency nothing was counted, and an override can add one while the executions are open.
            if result.open_after_id is not None and result.limit_key in counted:
                self._open_after[result.limit_key] = result.open_after_id, now
        for key in list(self._open_after)[:-COUNTS] if len(self._open_after) > COUNTS else ():
            del self._open_after[key]


def _exhausted(
    keys: Sequence[KeyToClaim], claimed: Sequence[Claimed], *, limit: int, free_slots: int
) -> Collection[str]:
    """Return the keys of which a claim got fewer jobs than it asked for. It asks for the same number of each key."""
    if len(claimed) >= min(limit, free_slots):  # it may have left jobs
        return ()
    counts = Counter(job.limit_key for job in claimed)
    of_key = math.ceil(limit / len(keys)) if keys else 0
    return {key.limit_key for key in keys if counts[key.limit_key] < max(of_key, key.policy.share)}


def left_without_slot(keys: Iterable[KeyToClaim], results: Iterable[KeyResult]) -> list[str]:
    """Return the keys of which a claim without further slots may have left a job that their limits admit."""
    not_prefetched = {key.limit_key for key in keys if key.policy.interval_seconds}
    return [
        result.limit_key
        for result in results
        if result.is_left or (result.may_have_more and result.limit_key in not_prefetched)
    ]


def with_probes(claimed: list[Claimed], controls: KeyControls) -> list[Claimed]:
    """Return the claimed jobs, with `is_probe` set for those of a key with an open breaker."""
    if not controls.open_breakers:
        return claimed
    return [_probe(job) if job.limit_key in controls.open_breakers else job for job in claimed]


def _probe(job: Claimed) -> Claimed:
    limit_key = visible(limits.logged(job.limit_key or ""))
    extra = event("breaker_probed", limit_key=limit_key, job_id=job.job_id)
    logger.info("job %s probes limit key %s, whose circuit breaker is open", job.job_id, limit_key, extra=extra)
    return job._replace(is_probe=True)
