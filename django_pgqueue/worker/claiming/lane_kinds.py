"""The three kinds of lanes, as the claimer sees them: plain jobs, jobs with a limit, and the chunks of one task.

`Claimer` calls them, on the connection that it is given. Each kind says how to claim from its lanes with as few
statements as possible, and how to claim from a part of them alone after such a claim has failed. `Claimer`
reacts to a failed claim in the same way for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import repeat
from typing import Any, Final, NamedTuple

from django_pgqueue.db.statements import Connection
from django_pgqueue.declared import limits
from django_pgqueue.lifecycle import chunks
from django_pgqueue.lifecycle import claims as lifecycle_claims
from django_pgqueue.lifecycle import limits as lifecycle_limits
from django_pgqueue.lifecycle.chunks import ChunkClaim, ChunkRule
from django_pgqueue.lifecycle.execute import transaction_of
from django_pgqueue.lifecycle.types import Claimed, Cursor, Lane
from django_pgqueue.tasks import registry

from .lane_cursors import cursor_behind
from .lanes import Lanes

Cursors = Mapping[Lane, Cursor]
Jobs = list[Claimed]
ALONE: Final = ChunkRule(1, 0.0)
"""The rule of a chunk that has one job."""


class Part(NamedTuple):
    """A part of some lanes, to claim from alone after a claim has failed."""

    lane: Lane
    key: str = ""
    """A key of the lane, or "" for all of it."""
    has_one_job: bool = True
    """Whether the claim takes one job, so that it fails because of this job."""

    @property
    def is_only(self) -> bool:
        """Whether there is nothing else to claim from, if this part has no job."""
        return not self.key and self.has_one_job


class LaneKind:
    """One kind of lanes.

    - `claim()` claims up to `limit` jobs of some lanes, and notes what is left in them.
    - `parts()` returns from what to claim one by one after a claim has failed.
    - `claim_part()` claims one job of a part, and `next_of()` returns which job that would be.
    """

    lanes_of_group = 1_000_000
    """From how many lanes one call of `claim()` can claim."""
    jobs_of_parts = 1_000_000
    """How many jobs are claimed at most from parts, after one claim has failed."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._keyed, self._limited = lanes.keyed, lanes.limited

    def needs_slot(self, lane: Lane, free_slots: int) -> bool:
        """Return whether a lane has something to claim that only a free slot can take."""
        return False


class PlainKind(LaneKind):
    """Lanes of jobs without a limit. One statement claims from many."""

    statement = "claim"

    def claim(self, connection: Connection, cursors: Cursors, *, limit: int, free_slots: int, **options: Any) -> Jobs:
        """See `LaneKind`."""
        claimed = lifecycle_claims.claim(connection, cursors, limit=limit, free_slots=free_slots, **options)
        # A claim returns as many jobs as are due for the free slots. Of those beyond, it may return only some.
        self._lanes.pass_by(cursors, claimed, all_exhausted=len(claimed) < min(limit, free_slots))
        return claimed

    def parts(self, cursors: Cursors) -> Iterator[Part]:
        """See `LaneKind`."""
        return repeat(Part(next(iter(cursors))))

    def claim_part(self, connection: Connection, cursors: Cursors, part: Part, **options: Any) -> Jobs:
        """See `LaneKind`."""
        return lifecycle_claims.claim(connection, cursors, limit=1, **options)

    def next_of(self, connection: Connection, cursors: Cursors, part: Part, **exclusions: Any) -> int | None:
        """See `LaneKind`."""
        return lifecycle_claims.next_in_line(connection, cursors, **exclusions)


class LimitedKind(LaneKind):
    """Lanes of jobs with a limit."""

    statement = "claim_keys"
    lanes_of_group = 1

    def claim(self, connection: Connection, cursors: Cursors, **options: Any) -> Jobs:
        """See `LaneKind`."""
        [lane] = cursors
        claimed = self._limited.claim(connection, lane, **options)
        self._keyed.after_claim(lane)
        return claimed

    def parts(self, cursors: Cursors) -> Iterator[Part]:
        """See `LaneKind`."""
        [lane] = cursors
        return iter([Part(lane, key) for key in self._limited.due_keys(lane)])

    def claim_part(self, connection: Connection, cursors: Cursors, part: Part, **options: Any) -> Jobs:
        """See `LaneKind`."""
        return self._limited.claims.claim(connection, part.lane, [part.key], limit=1, **options).claimed

    def next_of(self, connection: Connection, cursors: Cursors, part: Part, **exclusions: Any) -> int | None:
        """See `LaneKind`."""
        limit = registry.limits().get(limits.name_of(part.key))
        is_ordered = limit is not None and limit.ordered
        return lifecycle_limits.next_of_key(connection, part.lane, part.key, is_ordered=is_ordered, **exclusions)

    def needs_slot(self, lane: Lane, free_slots: int) -> bool:
        """See `LaneKind`."""
        return self._limited.needs_slot(lane)


class ChunkKind(LaneKind):
    """Lanes of chunks. Free slots get their chunks in one transaction, because each commit waits for the disk."""

    statement = "claim_chunk"
    lanes_of_group, jobs_of_parts = 100, 1

    def claim(self, connection: Connection, cursors: Cursors, *, limit: int, free_slots: int, **options: Any) -> Jobs:
        """Claim up to one chunk for each free slot. Return the first job of each."""
        slots, claims = min(limit, free_slots), list[tuple[Lane, ChunkClaim]]()
        with transaction_of(connection) if slots > 1 else nullcontext():
            for lane, cursor in list(cursors.items())[:slots]:
                claims += self._claim_lane(connection, lane, cursor, slots - len(claims), options)
        for lane, claim in claims:
            if claim.first is None or self._is_last(lane, claim.first):
                self._keyed.postpone_chunk(lane, claim.due_seconds)
        return [claim.first for _, claim in claims if claim.first is not None]

    def _claim_lane(
        self, connection: Connection, lane: Lane, cursor: Cursor, slots: int, options: dict[str, Any]
    ) -> Iterator[tuple[Lane, ChunkClaim]]:
        """Claim chunks of a lane as long as they are full."""
        rule = self._keyed.chunk_rule(lane.chunk_key or "")
        for _ in range(slots):
            claim = chunks.claim_chunk(connection, lane, rule, cursor=cursor, **options)
            yield lane, claim
            if claim.first is None or len(claim.first.members) < rule.size:
                return
            cursor = cursor_behind(claim.first)

    def _is_last(self, lane: Lane, first: Claimed) -> bool:
        """Return whether a chunk is smaller than it may be, because it has the last due jobs of its lane.

        If it is smaller for another reason, the next page finds the lane again.
        """
        is_small = len(first.members) < self._keyed.chunk_rule(lane.chunk_key or "").size
        return is_small and first.others is not None and not first.isolated

    def parts(self, cursors: Cursors) -> Iterator[Part]:
        """Return a whole chunk first: the job that made the claim fail can be in a later one. Then single jobs."""
        lane = next(iter(cursors))
        yield Part(lane, has_one_job=False)
        yield from repeat(Part(lane))

    def claim_part(
        self, connection: Connection, cursors: Cursors, part: Part, *, free_slots: int, **options: Any
    ) -> Jobs:
        """See `LaneKind`."""
        rule = ALONE if part.has_one_job else self._keyed.chunk_rule(part.lane.chunk_key or "")
        claim = chunks.claim_chunk(connection, part.lane, rule, **options)
        if claim.first is None:
            self._keyed.postpone_chunk(part.lane, claim.due_seconds)
        return [] if claim.first is None else [claim.first]

    def next_of(self, connection: Connection, cursors: Cursors, part: Part, **exclusions: Any) -> int | None:
        """See `LaneKind`."""
        key = part.lane.chunk_key or ""
        return lifecycle_limits.next_of_key(connection, part.lane, key, is_ordered=False, **exclusions)

    def needs_slot(self, lane: Lane, free_slots: int) -> bool:
        """See `LaneKind`."""
        return not free_slots


Kind = PlainKind | LimitedKind | ChunkKind
