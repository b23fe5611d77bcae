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
from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, Final

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.statements import Connection, repeat_if_stale
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import claims
from django_pgqueue.lifecycle.claims import is_sequence_behind
from django_pgqueue.lifecycle.execute import savepoint
from django_pgqueue.lifecycle.refused_rows import FAILURES, may_divide
from django_pgqueue.lifecycle.types import Claimed, Cursor, Lane, TransitionResult, TransitionStatus
from django_pgqueue.reactions import Reactions, ended
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import State
from django_pgqueue.worker.runtime.refusals import LOG_SECONDS, Refusals
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.queue_slots import UNLIMITED

from .lane_kinds import ChunkKind, Cursors, Kind, LimitedKind, Part, PlainKind
from .lanes import Lanes
from .node_results import with_results

logger = logging.getLogger("django_pgqueue.worker")

IN_GRAPH: Final = attrgetter("in_graph")
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 60.0
"""How long a job is skipped that no claim can take. After an outage of all claims, a claimed job ends these pauses."""
SEARCH_SECONDS: Final = 0.2
"""How long one call searches for jobs that can be claimed. Thousands of jobs may be unclaimable, and others wait."""


class Claimer:
    """The claims of one worker process."""

    def __init__(self, in_flight: InFlight, lanes: Lanes, worker_id: int, reactions: Reactions) -> None:
        self.in_flight = in_flight
        self.lanes = lanes
        self.worker_id = worker_id
        self.lease_seconds: float | None = None
        """How long the leases of the claimed jobs last, if a remote worker asks for longer ones than `LEASE`."""
        self._reactions = reactions
        self._plain, self._limited, self._chunks = PlainKind(lanes), LimitedKind(lanes), ChunkKind(lanes)
        self._refusals = Refusals(
            "the claim of job", first_seconds=FIRST_PAUSE_SECONDS, longest_seconds=LONGEST_PAUSE_SECONDS
        )
        self._logged_at = float("-inf")
        self._noted_id: int | None = None
        """The job for which the last claim of a part has failed."""

    def claim(self, connection: Connection, cursors: Cursors, room: int) -> list[Claimed]:
        """Claim up to `room` jobs of these lanes, and move the lanes' cursors."""
        claimed, failure = list[Claimed](), None
        groups = self._groups(cursors)
        for kind, lanes in groups:
            of_queue = self._room_of_queue(next(iter(lanes)).queue_name, claimed)
            left, free_slots = min(room - len(claimed), of_queue), min(self._free_slots(claimed), of_queue)
            if left <= 0:
                continue
            try:
                claimed += self._claim_from(kind, connection, lanes, left, free_slots)
            except FAILURES as error:
                if claimed:
                    break  # the claimed jobs must run. If the error lasts, the next claim raises it
                if not may_divide(connection, error):
                    raise
                failure = failure or error  # the claims of other kinds can work
                continue
            if len(groups) > 1 and kind.needs_slot(next(iter(lanes)), self._free_slots(claimed)):
                break  # jobs that are prefetched now would take the next free slot
        if failure is not None and not claimed:
            raise failure
        self.lanes.move_cursors(claimed)
        return with_results(connection, claimed) if any(map(IN_GRAPH, claimed)) else claimed

    def _groups(self, cursors: Cursors) -> list[tuple[Kind, dict[Lane, Cursor]]]:
        """Divide lanes into groups that one call claims from: consecutive lanes of one kind, in their order.

        With `--queue`, the lanes of a group share the slots of their queues.
        """
        groups: list[tuple[Kind, dict[Lane, Cursor]]] = []
        queue_slots, before = self.in_flight.queue_slots, None
        for lane, cursor in cursors.items():
            kind = self._kind_of(lane)
            shares = kind, None if queue_slots is None else queue_slots.group_of(lane.queue_name)
            if not groups or shares != before or len(groups[-1][1]) >= kind.lanes_of_group:
                groups.append((kind, {}))
            groups[-1][1][lane] = cursor
            before = shares
        return groups

    def _kind_of(self, lane: Lane) -> Kind:
        if lane.chunk_key is not None:
            return self._chunks
        return self._limited if lane.is_limited else self._plain

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
        self, kind: Kind, connection: Connection, lanes: Cursors, room: int, free_slots: int
    ) -> list[Claimed]:
        """Claim from a group of lanes. If that fails because of a row, claim from their parts, one after another."""
        try:
            with savepoint(connection):
                claimed = repeat_if_stale(
                    lambda: kind.claim(connection, lanes, limit=room, free_slots=free_slots, **self._options())
                )
        except FAILURES as error:
            self._raise_unless_of_row(connection, error)
            with _unprepared(connection):
                return self._claim_parts(kind, connection, lanes, room, free_slots, error)
        return self._noted(claimed, kind.statement)

    def _claim_parts(
        self, kind: Kind, connection: Connection, lanes: Cursors, room: int, free_slots: int, failure: Exception
    ) -> list[Claimed]:
        """Claim single jobs for `SEARCH_SECONDS` at most. Note those that cannot be claimed, and pass them by.

        Raises the failure that no job can be the cause of, because none is next.
        """
        claimed, until, is_of_all = list[Claimed](), time.monotonic() + SEARCH_SECONDS, True
        for part in kind.parts(lanes):
            if len(claimed) >= min(room, kind.jobs_of_parts) or time.monotonic() > until:
                return claimed
            slots = max(0, free_slots - len(claimed))
            jobs = self._claim_part(kind, connection, lanes, part, slots)
            is_of_all &= jobs is None
            claimed += jobs or ()
            if part.is_only and not jobs and self._noted_id is None:
                break
        if is_of_all:
            raise failure
        return claimed

    def _claim_part(
        self, kind: Kind, connection: Connection, lanes: Cursors, part: Part, free_slots: int
    ) -> list[Claimed] | None:
        """Claim one job of a part. If the claim fails, record the job that it would have taken.

        Return None if the part has no job.
        """
        self._noted_id = None
        try:
            with savepoint(connection):
                jobs = kind.claim_part(connection, lanes, part, free_slots=free_slots, **self._options())
        except FAILURES as error:
            self._raise_unless_of_row(connection, error)
            if part.has_one_job:
                self._noted_id = kind.next_of(connection, lanes, part, **self._exclusions())
            if self._noted_id is None:
                return None
            self._note_failure(connection, self._noted_id, kind.statement, error)
            return []
        return self._noted(jobs, kind.statement)

    def _noted(self, claimed: list[Claimed], statement: str) -> list[Claimed]:
        """Note that a statement has claimed these jobs, and return them."""
        self._refusals.wrote((member.job_id for job in claimed for member in job.members), statement)
        return claimed

    def _note_failure(self, connection: Connection, job_id: int, statement: str, error: Exception) -> None:
        """Skip a job that a statement cannot claim alone. If only this job is to blame, set it aside."""
        is_to_blame = self._refusals.note(job_id, error, statement)
        if is_to_blame and set_aside(connection, job_id, error, self.worker_id, self._reactions):
            self._refusals.forget(job_id)

    def _raise_unless_of_row(self, connection: Connection, error: Exception) -> None:
        """Raise an error that no row can be the cause of, and log another one, at most once a minute."""
        if not may_divide(connection, error) or is_sequence_behind(error):
            raise error
        if time.monotonic() - self._logged_at < LOG_SECONDS:
            return
        self._logged_at = time.monotonic()
        logger.warning(
            "a claim failed (%s): claiming jobs one by one, because one row may be the cause",
            message_without_detail(error),
            extra=event("claim_divided"),
        )

    def _exclusions(self) -> dict[str, Any]:
        """Return which jobs no claim may take."""
        return {"skipped_ids": self._refusals.skipped_ids(), "paused_tasks": self.lanes.paused_tasks}

    def _options(self) -> dict[str, Any]:
        """Return the arguments that all claims share."""
        lease_seconds = self.lease_seconds or get_settings().LEASE
        return {"worker_id": self.worker_id, "lease_seconds": lease_seconds, **self._exclusions()}


def _unprepared(connection: Connection) -> AbstractContextManager[None]:
    """Return a context in which an engine connection prepares no statement."""
    return connection.unprepared() if isinstance(connection, EngineConnection) else nullcontext()


def set_aside(connection: Connection, job_id: int, error: Exception, worker_id: int, reactions: Reactions) -> bool:
    """End a job as dead. Return False if the database refuses that too: then the job is skipped as before.

    The claimer calls it, after it has found that only this job's row is to blame. It protects the other jobs: a refusal
    of this transition too leaves the job as it is.
    """
    reason = f"the job's row cannot be claimed: {message_without_detail(error)}"[:2000]
    try:
        dead = claims.set_aside(
            connection,
            job_id,
            worker_id=worker_id,
            exception_class=f"{type(error).__module__}.{type(error).__qualname__}",
            error=reason,
        )
    except FAILURES as refusal:
        if not may_divide(connection, refusal):
            raise
        return False
    if dead is None:  # another session has changed or locked the job
        return True
    extra = event("job_refused", job_id=job_id, reason=message_without_detail(error))
    logger.error("job %s cannot be claimed and is now dead: %s", job_id, message_without_detail(error), extra=extra)
    result = TransitionResult(TransitionStatus.DONE, State.DEAD)
    reactions.after(connection, [ended(dead, result, Ending.FAILED, is_due=False, error=reason)])
    return True
