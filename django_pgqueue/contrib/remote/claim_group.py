"""Claim jobs for the machines that wait with the same scope, by the lanes and the claims of local workers.

`waiting_claims` calls this in its thread. A group has the lanes, cursors and limits that a fetcher has, so pauses,
limits, circuit breakers, priorities and broken rows are treated as by a local worker. Jobs outside the scope are left
out by their task's name. This process may not know such a name; then the job is released at once, without counting the
attempt, and its name is left out from then on.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.claiming.claimer import Claimer
from django_pgqueue.worker.claiming.fetcher import IDLE_PAUSES_SECONDS, LOCKED_SECONDS
from django_pgqueue.worker.claiming.lanes import Lanes
from django_pgqueue.worker.claiming.next_scan import BEHIND_SECONDS, Pacing
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.slots.inflight import InFlight

from .scope import Scope

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from django_pgqueue.db.engine_connection import EngineConnection
    from django_pgqueue.lifecycle.types import Claimed

FOREIGN_TRIES: Final = 5
"""How often one claim tries again because it found jobs of unknown tasks only."""


@dataclass(eq=False, slots=True)
class WaitingClaim:
    """A machine that waits for jobs."""

    scope: Scope
    worker_id: int
    digest: bytes
    """The digest of its token, which can be revoked meanwhile."""
    limit: int
    lease_seconds: float | None
    """How long the leases of its jobs last. None: as long as those of local workers."""
    deadline: float
    """When to answer that there are no jobs, by the monotonic clock."""
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[list[Claimed]]
    began_at: float = field(default_factory=time.monotonic)


class ClaimGroup:
    """The lanes of one scope, and the machines that wait for jobs of it, first come, first served."""

    def __init__(self, scope: Scope, reactions: Reactions, polling_seconds: float) -> None:
        self.scope = scope
        self.waiting: deque[WaitingClaim] = deque()
        self.try_at = 0.0
        """When the next claim may find a job, by the monotonic clock."""
        self.used_at = time.monotonic()
        self.used_by: dict[bytes, float] = {}
        """When each token asked for the scope last, by its digest."""
        self.lanes = Lanes(scope.queue_names)
        self.lanes.excluded_tasks = scope.excluded_names()
        self._reactions = reactions
        self._slots = InFlight(1)
        self._claimer = Claimer(self._slots, self.lanes, 0, reactions)
        self._full_scan_at = 0.0
        self._full_scan_pacing = Pacing(BEHIND_SECONDS)
        self._scanned_from_start = False
        self._idle_steps = 0
        self.may_sleep(polling_seconds)

    def may_sleep(self, seconds: float) -> None:
        """Set the longest time between two polls."""
        self._polling_seconds = self.lanes.limited.longest_rest_seconds = seconds

    def expect_jobs(self) -> None:
        """Try again soon, because jobs may have become due."""
        self.try_at, self._idle_steps = 0.0, 0
        self.lanes.expect_jobs()

    def claim(self, connection: EngineConnection, waiting: WaitingClaim) -> list[Claimed]:
        """Claim jobs for a machine. If no job is due, set the time of the next try."""
        self.used_at = time.monotonic()
        self._claimer.worker_id, self._claimer.lease_seconds = waiting.worker_id, waiting.lease_seconds
        for _ in range(FOREIGN_TRIES):
            claimed = self._claim_anywhere(connection, waiting.limit)
            accepted = self._without_foreign(connection, claimed)
            if accepted or not claimed:
                break
        if accepted:
            self._idle_steps, self.try_at = 0, 0.0
        else:
            self._rest()
        return accepted

    def _claim_anywhere(self, connection: EngineConnection, limit: int) -> list[Claimed]:
        from_start = time.monotonic() >= self._full_scan_at
        claimed = self._claim_from(connection, limit, from_start=from_start)
        if not claimed and not from_start and time.monotonic() >= self._full_scan_at:
            from_start = True
            claimed = self._claim_from(connection, limit, from_start=True)
        self._scanned_from_start = from_start
        return claimed

    def _claim_from(self, connection: EngineConnection, limit: int, *, from_start: bool) -> list[Claimed]:
        began = time.monotonic()
        cursors = self.lanes.ordered(connection, from_start=from_start, most=limit)
        claimed: list[Claimed] = []
        if cursors:
            self._slots.opened = limit  # the machine has this many free slots, and nothing is prefetched beyond them
            claimed = self._claimer.claim(connection, cursors, limit)
        if from_start:
            self._full_scan_at = time.monotonic() + self._full_scan_pacing.after(time.monotonic() - began)
        return claimed

    def _without_foreign(self, connection: EngineConnection, claimed: Iterable[Claimed]) -> list[Claimed]:
        """Return the jobs inside the scope, and release the others."""
        accepted: list[Claimed] = []
        foreign: list[Claimed] = []
        for job in claimed:
            is_allowed = job.others is None and self.scope.allows(job.task_name)
            (accepted if is_allowed else foreign).append(job)
        if foreign:
            self.lanes.excluded_tasks |= {job.task_name for job in foreign}
            self.lanes.scan_again()
            released = [member for job in foreign for member in job.members]
            release_executions(connection, released, self._reactions)
        return accepted

    def _rest(self) -> None:
        """Note when to try again after a claim that found nothing, as the fetcher does."""
        now = time.monotonic()
        if self._idle_steps < len(IDLE_PAUSES_SECONDS):
            rest_until = now + IDLE_PAUSES_SECONDS[self._idle_steps]
            self._idle_steps += 1
        elif not self._scanned_from_start:
            rest_until = max(self._full_scan_at, now + 0.001)
        else:
            rest_until = now + self._polling_seconds
        self.try_at = min(rest_until, max(now + 0.001, self.lanes.next_due_at(now + LOCKED_SECONDS)))
