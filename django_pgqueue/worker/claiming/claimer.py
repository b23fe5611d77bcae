"""Claim jobs with one statement. If a row makes it fail, claim one by one and set the job of that row aside.

Called by the fetcher, in its thread. A row that no claim can process must not stop the other jobs of its queue.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final

import psycopg

from django_pgqueue import lifecycle, limits, registry
from django_pgqueue.conf import get_settings
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import Claimed, Cursor, Lane, TransitionResult, TransitionStatus
from django_pgqueue.lifecycle.chunks import ChunkClaim, ChunkRule
from django_pgqueue.log_events import event
from django_pgqueue.reactions import Reactions, ended
from django_pgqueue.states import State
from django_pgqueue.worker.runtime.refusals import Refusals
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.queue_slots import UNLIMITED, QueueSlots

from .chunk_lanes import rule_of
from .lane_of_job import cursor_behind
from .lanes import Lanes
from .node_results import with_results

logger = logging.getLogger("django_pgqueue.worker")

EXECUTION_KEY: Final = "pgqueue_execution_pkey"


class Claimer:
    """The claims of one worker process."""

    def __init__(self, in_flight: InFlight, lanes: Lanes, worker_id: int, reactions: Reactions) -> None:
        self.in_flight = in_flight
        self.lanes = lanes
        self.worker_id = worker_id
        self._reactions = reactions
        self._refusals = Refusals("the claim of job")

    def claim(self, connection: EngineConnection, cursors: dict[Lane, Cursor], room: int) -> list[Claimed]:
        """Claim up to `room` jobs of these lanes, and move the lanes' cursors."""
        claimed: list[Claimed] = []
        for lanes in _by_kind(cursors, self.in_flight.queue_slots):
            left = room - len(claimed)
            if left <= 0:
                break
            of_queue = self._room_of_queue(next(iter(lanes)).queue_name, claimed)
            if of_queue <= 0:
                continue
            try:
                free_slots = min(self._free_slots(claimed), of_queue)
                claimed += self._claim_from(connection, lanes, min(left, of_queue), free_slots)
            except lifecycle.FAILURES:
                if not claimed:
                    raise
                break  # the claimed jobs must run. If the error lasts, the next claim raises it
            if self._needs_slot(next(iter(lanes)), self._free_slots(claimed)):
                break  # jobs that are prefetched now would take the next free slot
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
            return self._claim_one_by_one(connection, cursors, room, free_slots)
        self.lanes.pass_by(cursors, claimed, all_exhausted=len(claimed) < guaranteed)
        return claimed

    def _claim_limited(self, connection: EngineConnection, lane: Lane, room: int, free_slots: int) -> list[Claimed]:
        limited = self.lanes.limited
        try:
            return limited.claim(connection, lane, limit=room, free_slots=free_slots, **self._options())
        except lifecycle.FAILURES as error:
            self._raise_unless_of_row(connection, error)
        claimed: list[Claimed] = []
        for key in limited.due_keys(connection, lane)[:room]:
            slots = max(0, free_slots - len(claimed))
            try:
                claimed += limited.claim_from_key(connection, lane, key, free_slots=slots, **self._options())
            except lifecycle.FAILURES as error:
                self._raise_unless_of_row(connection, error)
                self._set_aside_next_of(connection, lane, key, error)
                break
        return claimed

    def _claim_chunks(self, connection: EngineConnection, lane: Lane, cursor: Cursor, slots: int) -> list[Claimed]:
        """Claim up to `slots` chunks, each for one slot. Return the first job of each."""
        try:
            return self._claim_due_chunks(connection, lane, cursor, slots)
        except lifecycle.FAILURES as error:
            self._raise_unless_of_row(connection, error)
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
        return [claim.first for claim in claims if claim.first is not None]

    def _claim_alone(self, connection: EngineConnection, lane: Lane) -> ChunkClaim:
        """Claim the first job of a chunk alone. If its row makes that fail, set the job aside."""
        try:
            return lifecycle.chunks.claim_chunk(connection, lane, ChunkRule(1, 0.0), **self._options())
        except lifecycle.FAILURES as error:
            self._raise_unless_of_row(connection, error)
            self._set_aside_next_of(connection, lane, lane.chunk_key or "", error)
            return ChunkClaim(None, 0.0)

    def _set_aside_next_of(self, connection: EngineConnection, lane: Lane, key: str, error: Exception) -> None:
        limit = registry.limits().get(limits.name_of(key))
        options = self._options()
        job_id = lifecycle.limits.next_of_key(
            connection,
            lane,
            key,
            is_ordered=limit is not None and limit.ordered,
            skipped_ids=options["skipped_ids"],
            paused_tasks=options["paused_tasks"],
        )
        if job_id is not None:
            self._set_aside(connection, job_id, error)

    def _raise_unless_of_row(self, connection: EngineConnection, error: Exception) -> None:
        """Raise an error that no row can be the cause of, and log one of a row."""
        if not lifecycle.may_divide(connection, error) or _is_sequence_behind(error):
            raise error
        logger.warning(
            "a claim failed because of the data of a row (%s): claiming jobs one by one",
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
        return lifecycle.claim(connection, cursors, limit=limit, free_slots=free_slots, **self._options())

    def _claim_one_by_one(
        self, connection: EngineConnection, cursors: dict[Lane, Cursor], room: int, free_slots: int
    ) -> list[Claimed]:
        """Claim single jobs up to the first one whose row makes the claim fail. Set that job aside with the reason."""
        claimed: list[Claimed] = []
        for _ in range(room):
            job_id = lifecycle.next_in_line(
                connection,
                cursors,
                skipped_ids=self._refusals.skipped_ids(),
                paused_tasks=self.lanes.paused_tasks,
            )
            if job_id is None:
                break
            try:
                claimed += self._claim_rows(connection, cursors, 1, max(0, free_slots - len(claimed)))
            except lifecycle.FAILURES as error:
                if not lifecycle.may_divide(connection, error) or _is_sequence_behind(error):
                    raise
                self._set_aside(connection, job_id, error)
                break
        return claimed

    def _set_aside(self, connection: EngineConnection, job_id: int, error: Exception) -> None:
        """End a job as dead. If the database refuses that too, skip the job for a while."""
        reason = f"the job's row cannot be claimed: {message_without_detail(error)}"[:2000]
        try:
            dead = lifecycle.set_aside(
                connection,
                job_id,
                worker_id=self.worker_id,
                exception_class=f"{type(error).__module__}.{type(error).__qualname__}",
                error=reason,
            )
        except lifecycle.FAILURES as refusal:
            if not lifecycle.may_divide(connection, refusal):
                raise
            self._refusals.note(job_id, error)
        else:
            if dead is None:  # another session has changed or locked the job
                return
            logger.error(
                "job %s cannot be claimed and is now dead: %s",
                job_id,
                message_without_detail(error),
                extra=event("job_refused", job_id=job_id, reason=message_without_detail(error)),
            )
            result = TransitionResult(TransitionStatus.DONE, State.DEAD)
            self._reactions.after(connection, [ended(dead, result, Ending.FAILED, is_due=False, error=reason)])


def _is_sequence_behind(error: Exception) -> bool:
    """Return whether the id sequence of executions is behind its table. No job is to blame for that."""
    return isinstance(error, psycopg.Error) and error.diag.constraint_name == EXECUTION_KEY


def _by_kind(cursors: Mapping[Lane, Cursor], queue_slots: QueueSlots | None = None) -> list[dict[Lane, Cursor]]:
    """Divide lanes into groups that one statement claims from: consecutive plain lanes, or one other lane.

    With `--queue`, the lanes of one statement share the slots of their queues.
    """
    groups: list[dict[Lane, Cursor]] = []
    before = None
    for lane, cursor in cursors.items():
        shares = None if queue_slots is None else queue_slots.group_of(lane.queue_name)
        if groups and lane.is_plain and next(iter(groups[-1])).is_plain and shares == before:
            groups[-1][lane] = cursor
        else:
            groups.append({lane: cursor})
        before = shares
    return groups
