"""Claim jobs with one statement. If that fails, claim one by one, and find the rows that make it fail.

Called by the fetcher, in its thread. It protects two invariants. A row that no claim can process does not stop the
other jobs of its queue. And a failure of all claims is blamed on no job: a job is set aside only if the statement that
has failed for it claims another job, and then fails for it again (see `Refusals`). Until then the job stays ready, and
is skipped with growing pauses.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Final

from django_pgqueue import lifecycle, limits, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.statements import repeat_if_stale
from django_pgqueue.lifecycle import Claimed, Cursor, Lane
from django_pgqueue.lifecycle.chunks import ChunkClaim, ChunkRule
from django_pgqueue.lifecycle.claims import is_sequence_behind
from django_pgqueue.log_events import event
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.runtime.refusals import LOG_SECONDS, Refusals
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.queue_slots import UNLIMITED

from .chunk_lanes import rule_of
from .lane_groups import by_kind
from .lane_of_job import cursor_behind
from .lanes import Lanes
from .node_results import with_results
from .unclaimable import set_aside

logger = logging.getLogger("django_pgqueue.worker")

FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""How long a job is skipped that no claim can take. After an outage of all claims, a claimed job ends these pauses."""
SEARCH_SECONDS: Final = 0.2
"""How long one call searches for jobs that can be claimed. Thousands of jobs may be unclaimable, and others wait."""
PLAIN: Final = "claim"
LIMITED: Final = "claim_keys"
CHUNK: Final = "claim_chunk"
"""Names of the statements. A job is to blame for the failure of the statement that has claimed another job."""


class Claimer:
    """The claims of one worker process."""

    def __init__(self, in_flight: InFlight, lanes: Lanes, worker_id: int, reactions: Reactions) -> None:
        self.in_flight = in_flight
        self.lanes = lanes
        self.worker_id = worker_id
        self._reactions = reactions
        self._refusals = Refusals(
            "the claim of job", first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS
        )
        self._logged_at = float("-inf")

    def claim(self, connection: EngineConnection, cursors: dict[Lane, Cursor], room: int) -> list[Claimed]:
        """Claim up to `room` jobs of these lanes, and move the lanes' cursors."""
        claimed, failure = list[Claimed](), None
        for lanes in by_kind(cursors, self.in_flight.queue_slots):
            of_queue = self._room_of_queue(next(iter(lanes)).queue_name, claimed)
            left, free_slots = min(room - len(claimed), of_queue), min(self._free_slots(claimed), of_queue)
            if left <= 0:
                continue
            try:
                claimed += self._claim_from(connection, lanes, left, free_slots)
            except lifecycle.FAILURES as error:
                if claimed:
                    break  # the claimed jobs must run. If the error lasts, the next claim raises it
                if not lifecycle.may_divide(connection, error):
                    raise
                failure = failure or error  # the claims of other kinds can work
                continue
            if self._needs_slot(next(iter(lanes)), self._free_slots(claimed)):
                break  # jobs that are prefetched now would take the next free slot
        if failure is not None and not claimed:
            raise failure
        self.lanes.move_cursors(claimed)
        return with_results(connection, claimed)

    def _free_slots(self, claimed: Sequence[Claimed]) -> int:
        """Return how many slots are free besides those that these jobs take."""
        return max(0, self.in_flight.free_slots - len(claimed))

    def _room_of_queue(self, queue_name: str, claimed: Sequence[Claimed]) -> int:
        """Return how many jobs of a queue may be claimed besides these, by `--queue`."""
        queue_slots = self.in_flight.queue_slots
        if queue_slots is None:
            return UNLIMITED
        group = queue_slots.group_of(queue_name)
        return queue_slots.room(queue_name) - sum(queue_slots.group_of(job.queue_name) == group for job in claimed)

    def _claim_from(
        self, connection: EngineConnection, lanes: dict[Lane, Cursor], room: int, free_slots: int
    ) -> list[Claimed]:
        [first, *_] = lanes
        if first.chunk_key is not None:  # chunks are not prefetched
            return self._claim_chunks(connection, first, lanes[first], min(room, free_slots))
        if first.is_limited:
            return self._claim_limited(connection, first, room, free_slots)
        return self._claim_plain(connection, lanes, room, free_slots)

    def _needs_slot(self, lane: Lane, free_slots: int) -> bool:
        """Return whether a lane has something to claim that only a free slot can take."""
        if lane.chunk_key is not None:
            return not free_slots
        return lane.is_limited and self.lanes.limited.needs_slot(lane)

    def _claim_plain(
        self, connection: EngineConnection, cursors: dict[Lane, Cursor], room: int, free_slots: int
    ) -> list[Claimed]:
        guaranteed = min(room, free_slots)
        """A claim returns this many jobs if so many are due. Beyond the free slots it may return only some of them."""
        try:
            claimed = self._claim_rows(connection, cursors, room, free_slots)
        except lifecycle.FAILURES as error:
            self._raise_unless_of_row(connection, error)
            with connection.unprepared():
                return self._claim_one_by_one(connection, cursors, room, free_slots, error)
        self.lanes.pass_by(cursors, claimed, all_exhausted=len(claimed) < guaranteed)
        return claimed

    def _claim_limited(self, connection: EngineConnection, lane: Lane, room: int, free_slots: int) -> list[Claimed]:
        limited = self.lanes.limited
        try:
            claimed = repeat_if_stale(
                lambda: limited.claim(connection, lane, limit=room, free_slots=free_slots, **self._options())
            )
        except lifecycle.FAILURES as error:
            self._raise_unless_of_row(connection, error)
            with connection.unprepared():
                return self._claim_key_by_key(connection, lane, room, free_slots, error)
        return self._noted(claimed, LIMITED)

    def _claim_key_by_key(
        self, connection: EngineConnection, lane: Lane, room: int, free_slots: int, failure: Exception
    ) -> list[Claimed]:
        """Claim one job of each key. If the claim of a key fails, note its next job; without one, raise the error."""
        is_of_all = True
        limited, claimed, until = self.lanes.limited, list[Claimed](), time.monotonic() + SEARCH_SECONDS
        for key in limited.due_keys(connection, lane):
            if len(claimed) >= room or time.monotonic() > until:
                is_of_all = False
                break
            slots = max(0, free_slots - len(claimed))
            try:
                jobs = limited.claim_from_key(connection, lane, key, free_slots=slots, **self._options())
            except lifecycle.FAILURES as error:
                self._raise_unless_of_row(connection, error)
                is_of_all &= not self._note_next_of(connection, lane, key, LIMITED, error)
            else:
                is_of_all = False
                claimed += self._noted(jobs, LIMITED)
        if is_of_all:
            raise failure
        return claimed

    def _claim_chunks(self, connection: EngineConnection, lane: Lane, cursor: Cursor, slots: int) -> list[Claimed]:
        """Claim up to `slots` chunks, each for one slot. Return the first job of each."""
        try:
            return repeat_if_stale(lambda: self._claim_due_chunks(connection, lane, cursor, slots))
        except lifecycle.FAILURES as error:
            self._raise_unless_of_row(connection, error)
        with connection.unprepared():
            if slots > 1:  # the row can be in a later chunk than the first
                return self._claim_chunks(connection, lane, cursor, 1)
            return self._keep_chunks(lane, [self._claim_alone(connection, lane)])

    def _claim_due_chunks(self, connection: EngineConnection, lane: Lane, cursor: Cursor, slots: int) -> list[Claimed]:
        """Claim up to `slots` chunks in one transaction, because each commit waits for the disk."""
        rule = rule_of(lane.chunk_key or "")
        claims: list[ChunkClaim] = []
        with connection.transaction() if slots > 1 else nullcontext():
            while len(claims) < slots:
                claim = lifecycle.chunks.claim_chunk(connection, lane, rule, cursor=cursor, **self._options())
                claims.append(claim)
                if claim.first is None or len(claim.first.members) < rule.size:
                    break
                cursor = cursor_behind(claim.first)
        return self._keep_chunks(lane, claims)

    def _keep_chunks(self, lane: Lane, claims: Sequence[ChunkClaim]) -> list[Claimed]:
        """Return the first job of each claimed chunk. If the last claim found none, note when the next one is due."""
        if claims and claims[-1].first is None:
            self.lanes.postpone_chunk(lane, claims[-1].due_seconds)
        return self._noted([claim.first for claim in claims if claim.first is not None], CHUNK)

    def _claim_alone(self, connection: EngineConnection, lane: Lane) -> ChunkClaim:
        """Claim the first job of a chunk alone. Note the jobs that cannot be claimed, and pass them by."""
        until = time.monotonic() + SEARCH_SECONDS
        while time.monotonic() < until:
            try:
                return lifecycle.chunks.claim_chunk(connection, lane, ChunkRule(1, 0.0), **self._options())
            except lifecycle.FAILURES as error:
                self._raise_unless_of_row(connection, error)
                if not self._note_next_of(connection, lane, lane.chunk_key or "", CHUNK, error):
                    raise
        return ChunkClaim(None, 0.0)

    def _note_next_of(
        self, connection: EngineConnection, lane: Lane, key: str, statement: str, error: Exception
    ) -> bool:
        """Note that the next job of a key cannot be claimed. Return whether there is one."""
        limit = registry.limits().get(limits.name_of(key))
        options = self._options()
        skipped = {name: options[name] for name in ("skipped_ids", "paused_tasks")}
        is_ordered = limit is not None and limit.ordered
        job_id = lifecycle.limits.next_of_key(connection, lane, key, is_ordered=is_ordered, **skipped)
        if job_id is not None:
            self._note_failure(connection, job_id, statement, error)
        return job_id is not None

    def _noted(self, claimed: list[Claimed], statement: str) -> list[Claimed]:
        """Note that a statement has claimed these jobs, and return them."""
        self._refusals.wrote((member.job_id for job in claimed for member in job.members), statement)
        return claimed

    def _note_failure(self, connection: EngineConnection, job_id: int, statement: str, error: Exception) -> None:
        """Skip a job that a statement cannot claim alone. If only this job is to blame, set it aside."""
        is_to_blame = self._refusals.note(job_id, error, statement)
        if is_to_blame and set_aside(connection, job_id, error, self.worker_id, self._reactions):
            self._refusals.forget(job_id)

    def _raise_unless_of_row(self, connection: EngineConnection, error: Exception) -> None:
        """Raise an error that no row can be the cause of, and log another one, at most once a minute."""
        if not lifecycle.may_divide(connection, error) or is_sequence_behind(error):
            raise error
        if time.monotonic() - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = time.monotonic()
        logger.warning(
            "a claim failed (%s): claiming jobs one by one, because one row may be the cause",
            message_without_detail(error),
            extra=event("claim_divided"),
        )

    def _options(self) -> dict[str, Any]:
        """Return the arguments that the claims of plain and of limited jobs share."""
        return {
            "worker_id": self.worker_id,
            "lease_seconds": get_settings().LEASE,
            "skipped_ids": self._refusals.skipped_ids(),
            "paused_tasks": self.lanes.paused_tasks,
        }

    def _claim_rows(
        self, connection: EngineConnection, cursors: dict[Lane, Cursor], limit: int, free_slots: int
    ) -> list[Claimed]:
        claimed = lifecycle.claim(connection, cursors, limit=limit, free_slots=free_slots, **self._options())
        return self._noted(claimed, PLAIN)

    def _claim_one_by_one(
        self, connection: EngineConnection, cursors: dict[Lane, Cursor], room: int, free_slots: int, failure: Exception
    ) -> list[Claimed]:
        """Claim single jobs for `SEARCH_SECONDS` at most. Note those that cannot be claimed, and pass them by.

        Raises the failure that no job can be the cause of, because none is next.
        """
        claimed, until, is_first = list[Claimed](), time.monotonic() + SEARCH_SECONDS, True
        while len(claimed) < room and time.monotonic() < until:
            job_id = lifecycle.next_in_line(
                connection,
                cursors,
                skipped_ids=self._refusals.skipped_ids(),
                paused_tasks=self.lanes.paused_tasks,
            )
            if job_id is None and is_first:
                raise failure
            if job_id is None:
                break
            is_first = False
            try:
                jobs = self._claim_rows(connection, cursors, 1, max(0, free_slots - len(claimed)))
            except lifecycle.FAILURES as error:
                self._raise_unless_of_row(connection, error)
                self._note_failure(connection, job_id, PLAIN, error)
            else:
                if not jobs:
                    break
                claimed += jobs
        return claimed
