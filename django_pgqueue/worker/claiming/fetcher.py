"""Claim jobs ahead of the slots, by lanes and cursors, and sleep while no job can be due.

Started by the worker process as a service. Other services wake it: the pool when a slot is free, the completer, the
listener through the `NotificationWaker`. Invariant: each job that a claim returns is put in flight or released.

How many jobs: see `claim_size`. A prefetched job that waits for a slot longer than a second is released.

Where: in each lane from the cursor at which its last claim ended. The claim does not walk again over the dead index
entries of claimed jobs, which a long transaction anywhere may keep from being removed. The cursor of an exhausted lane
moves up to the last scan, so that claims do not walk again over the jobs of a paused task either. A claim from the
start of the lanes finds jobs that came to lie behind a cursor (late commits, retries). The next one is due after fifty
times its duration or a second, but never sooner than after ten times its duration, and always before the worker sleeps.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import psycopg

from django_pgqueue.db.notifications import PAUSES_CHANGED, sent_events
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.reactions import Reactions
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.receiver_thread import CallbackRunner
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import health_memory
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.pool import Pool

from .claim_size import ClaimSize
from .claimer import Claimer
from .lease_monitor import ClaimCounter, LeaseGuard
from .limited.limited_lanes import LimitedLanes
from .next_scan import BEHIND_SECONDS, NextScan, Pacing
from .waking.fetcher_sleep import PollRequests

logger = logging.getLogger("django_pgqueue.worker")

EXECUTION_ID: Final = attrgetter("execution_id")
WAIT_LIMIT_SECONDS: Final = 1.0
IDLE_PAUSES_SECONDS: Final[tuple[float, ...]] = (0.005, 0.015, 0.06, 0.24)
"""Intervals of the polls at 5, 20, 80 and 320 ms after the last job, before a long sleep. `enqueue()` omits
notifications that follow another within 5 ms, and relies on these polls. Of the processes of one supervisor, the first
that has room polls for the others. Their own intervals are up to 2.5 times as long, plus 3 ms (see `next_scan`)."""
START_SECONDS: Final = 0.001
"""How long the fetcher leaves the interpreter to a slot that starts an announced job. The end of a job wakes it."""
NEW_JOBS: Final = frozenset({""})
"""The payloads after which there is nothing to do but to claim."""
LOCKED_SECONDS: Final = 1.0
"""The longest sleep while due jobs cannot be claimed because other transactions have locked their rows."""


class Fetcher(Service):
    """Keep the slots and the prefetched jobs filled.

    `on_requests` says what to call after a notification about a request of an operator, by its payload. `on_events` is
    called with the ids of sent events whose jobs the workers have to wake.
    """

    def __init__(
        self,
        link: ConnectionSource,
        in_flight: InFlight,
        pool: Pool,
        completer: Completer,
        claimer: Claimer,
        *,
        polls: PollRequests,
        claims: ClaimCounter,
        leases: LeaseGuard,
        receivers: CallbackRunner,
        reactions: Reactions,
        on_requests: Mapping[str, Callable[[], None]],
        on_events: Callable[[Sequence[int]], None],
    ) -> None:
        super().__init__("fetcher")
        self.link = link
        self.in_flight = in_flight
        self.pool = pool
        self.completer = completer
        self.claimer = claimer
        self.lanes = claimer.lanes
        self.polls = polls
        self.claims = claims
        self.claim_size = ClaimSize(in_flight, completer, leases, receivers)
        self.reactions = reactions
        self._on_requests, self._on_events = on_requests, on_events
        self.polling_seconds = get_settings().POLL_INTERVAL_WITHOUT_LISTEN
        """The longest sleep of an idle worker. It is raised while notifications arrive."""
        self.empty_scans = 0
        """How many claims from the start have found nothing since one last found something."""
        self._restart_requested = False
        self._scanned_from_start = False
        self._idle_steps = 0
        self._announced = False
        self._follow_up = NextScan(self.lanes)
        self._full_scan_at = 0.0
        self._full_scan_pacing = Pacing(BEHIND_SECONDS)
        self._claimed_ids = ClaimedIds(in_flight, completer)

    def may_sleep(self, seconds: float) -> None:
        """Set the longest sleep of an idle fetcher. Safe from any thread."""
        self.polling_seconds = self.lanes.limited.longest_rest_seconds = seconds

    def wake(self) -> None:
        """End the current sleep. Harmless at any time, from any thread."""
        self.polls.wake()

    def restart_scans(self) -> None:
        """Forget lanes and cursors, and restart the count of claims that find nothing. Safe from any thread."""
        self.empty_scans = 0
        self._restart_requested = True
        self.wake()

    def tick(self) -> float:
        """Release jobs that have waited too long for a slot, then claim as many as there is room for."""
        if self.polls.take_urgent():
            self._idle_steps, self._announced = 0, True
        if self._restart_requested:
            self._restart_requested, self.empty_scans, self._follow_up.moment = False, 0, None
            self.lanes.forget()
        self._release_waiting(time.monotonic() - WAIT_LIMIT_SECONDS)
        room = self.claim_size.now()
        self._report_room(room)
        moment, announced = self._follow_up.take_moment(self.in_flight.free_slots), self._announced
        if room <= 0:
            return self.claim_size.seconds_until_more()
        if self._claim_before_scan(room):
            self._idle_steps = 0
            return START_SECONDS if self.in_flight.waiting and not self.lanes.is_resting else 0.0
        wait_seconds = self._follow_up.hold_back(moment, announced=announced)
        if wait_seconds is not None:
            return self._limited_by_due(wait_seconds)
        if self.lanes.are_empty_for_sibling(moment):
            self._scanned_from_start = True  # the sibling's scan saw all ready jobs, also those behind cursors
            health_memory.answered("claim")
            return self._idle_seconds()
        if not self._claim(room):
            return self._idle_seconds()
        self._idle_steps = 0
        return 0.0

    def at_end(self) -> None:
        """Release the prefetched jobs that no slot has started."""
        self._report_room(0)
        self.polls.waker.close()
        try:
            self._release_waiting(float("inf"))
        except (psycopg.Error, OSError):
            extra = event("jobs_not_released", count=len(self.in_flight.waiting))
            logger.warning("prefetched jobs could not be released: the supervisor will release them", extra=extra)

    def _sleep(self, timeout_seconds: float) -> None:
        payloads = self.polls.waker.wait_for_notifications(timeout_seconds)
        if payloads:
            self._idle_steps = 0
            self._announced = True
            self._follow_up.moment = time.monotonic()
            if PAUSES_CHANGED in payloads:
                self.lanes.scan_again()
            if payloads == NEW_JOBS:
                return
            for payload in payloads & self._on_requests.keys():
                self._on_requests[payload]()
            if event_ids := sent_events(payloads):
                self._on_events(event_ids)

    def _report_room(self, room: int) -> None:
        """Note since when claims are expected: since there is room for jobs."""
        if self.lanes.shared is not None:
            self.lanes.shared.set_room(has_room=room > 0)
        if room <= 0:
            health_memory.claims_expected_since = 0.0
        elif not health_memory.claims_expected_since:
            health_memory.claims_expected_since = time.monotonic()

    def _release_waiting(self, claimed_before: float) -> None:
        if self.in_flight.waiting and (jobs := self.in_flight.take_waiting(claimed_before)):
            self._release(jobs)

    def _release(self, jobs: Sequence[Claimed]) -> None:
        with self.link.use() as connection:
            release_executions(connection, jobs, self.reactions)

    # ---------------------------------------------------------------- where to claim

    def _claim_before_scan(self, room: int) -> bool:
        """Claim one job that was announced, from a lane that recently had jobs, or one of a key with a freed slot.

        This happens before the scan of the lanes, which takes 0.3 ms of the 2 ms from a commit to the start of its job.
        It claims one job only, because the jobs of another lane may come first. While the next scan has to wait,
        because the last one was slow, the announced jobs do not wait with it.
        """
        announced, self._announced = self._announced, False
        if not (lanes := self.lanes.before_scan(announced=announced, is_first=self._follow_up.is_first)):
            return False
        with self.claims.claim_under_way():
            with self.link.use() as connection:
                claimed = self.claimer.claim(connection, lanes, room if self.lanes.is_resting else 1)
            self._submit(claimed)
        if claimed:
            self.empty_scans = 0
        health_memory.answered("claim")
        return bool(claimed)

    def _claim(self, room: int) -> Sequence[Claimed]:
        now = time.monotonic()
        from_start = now >= self._full_scan_at
        claimed = self._claim_from(room, from_start=from_start)
        if len(claimed) < room and not from_start and time.monotonic() >= self._full_scan_at:
            room = min(
                room - len(claimed), self.claim_size.now()
            )  # may be 0 now: the claimed jobs were fewer, but large
            if room > 0:
                claimed = [*claimed, *self._claim_from(room, from_start=True)]
                from_start = True
        is_empty = not claimed and not self.lanes.have_waiting
        self.empty_scans = self.empty_scans + (from_start and self.lanes.is_complete) if is_empty else 0
        self._scanned_from_start = from_start
        return claimed

    def _claim_from(self, room: int, *, from_start: bool) -> Sequence[Claimed]:
        began = time.monotonic()
        with self.claims.claim_under_way():
            with self.link.use() as connection:
                self.lanes.note_connection(self.link.connected_at)
                cursors = self.lanes.ordered(connection, from_start=from_start, most=room)
                claimed = self.claimer.claim(connection, cursors, room) if cursors else []
            health_memory.answered("claim")
            self._submit(claimed)
        if from_start and (cursors or self.lanes.scan_cursors()):
            self._full_scan_at = time.monotonic() + self._full_scan_pacing.after(time.monotonic() - began)
        return claimed

    def _submit(self, claimed: list[Claimed]) -> None:
        """Put claimed jobs in flight and hand them over.

        A slot that wakes while this thread still has the interpreter has to wait and to wake again. So as much as
        possible is done before: the connection has been returned too.
        """
        if not claimed:
            return
        id_conflicts = self._claimed_ids.in_use(claimed)
        accepted = [job for job in claimed if job not in id_conflicts] if id_conflicts else claimed
        counts.claimed(claimed)
        self.in_flight.add(accepted)
        self.pool.submit(accepted)
        self.claim_size.note(claimed)
        if id_conflicts:  # to be claimed again, under other ids
            self._release([member for job in id_conflicts for member in job.members])

    # ---------------------------------------------------------------- when to poll

    def _idle_seconds(self) -> float:
        """Return how long to sleep after a poll that found no job."""
        if self._idle_steps < len(IDLE_PAUSES_SECONDS):
            self._idle_steps += 1
            return self._limited_by_due(self._follow_up.after(IDLE_PAUSES_SECONDS[self._idle_steps - 1]))
        if not self._scanned_from_start:  # jobs may lie behind a cursor: no long sleep before a claim from the start
            return self._limited_by_due(min(self.polling_seconds, max(0.001, self._full_scan_at - time.monotonic())))
        return self._limited_by_due(self.polling_seconds * random.uniform(0.8, 1))  # noqa: S311 -- spreads load

    def _limited_by_due(self, sleep_seconds: float) -> float:
        """Return a sleep that ends when the next job is due, if that is sooner."""
        now = time.monotonic()
        return min(sleep_seconds, max(0.001, self.lanes.next_due_at(now + LOCKED_SECONDS) - now))


class ClaimedIds:
    """The check for ids in use. Only the fetcher's thread uses it.

    Ids restart when the tables are emptied with RESTART IDENTITY, and go back when an older dump is restored. A process
    that keeps running can then receive the id of an earlier execution that it still runs. The database distinguishes
    the two executions by the time of the claim, but the threads of this process know an execution by its id alone.

    Called by the fetcher after each claim.
    """

    def __init__(self, in_flight: InFlight, completer: Completer) -> None:
        self.in_flight = in_flight
        self.completer = completer
        self._highest = 0

    def in_use(self, claimed: Sequence[Claimed]) -> list[Claimed]:
        """Return the newly claimed jobs whose execution ids this process uses already: it cannot run them.

        While ids rise, which is almost always the case, this costs one comparison for each job. A chunk counts as its
        first job: the ids of the others are higher.
        """
        ids = list(map(EXECUTION_ID, claimed))
        if min(ids) > self._highest:
            self._highest = max(ids)
            return []
        ids_in_use = self.in_flight.known_before(float("inf")) | self.completer.ids()
        return [job for job in claimed if any(each.execution_id in ids_in_use for each in job.members)]


class EndedLimits:
    """Passes the limit keys of ended jobs to the lanes, and wakes the fetcher.

    Called by the completer, in its thread, after it has written a batch.
    """

    def __init__(self, limited: LimitedLanes, polls: PollRequests, in_flight: InFlight) -> None:
        self.limited = limited
        self.polls = polls
        self.in_flight = in_flight

    def is_awaited(self, report: Report) -> bool:
        """Return whether other jobs may wait for the end of this job, and no prefetched job takes the slot.

        These are jobs of the same limit key, and dependents of a node of a workflow. Safe from any thread. While there
        are prefetched jobs, larger batches of completions are better.
        """
        claimed = report.claimed
        return not self.in_flight.waiting and (bool(claimed.in_graph) or self.limited.is_busy(claimed.limit_key))

    def note(self, reports: Sequence[Report]) -> None:
        """Note the jobs of these reports. Costs nothing if no task of this process has a limit."""
        if not registry.limits():
            return
        keys = {report.claimed.limit_key for report in reports if report.claimed.limit_key is not None}
        if keys:
            self.limited.note_ended(keys)
            self.polls.wake()
