"""Compare the executions in flight in a worker process with those open in the database, and watch the leases.

The supervisor extends the leases (see `supervision.heartbeat`). The services here run in the worker process.
`LeaseMonitor` compares once per heartbeat interval. It handles three cases:

* **lost**: in flight since before the query was sent, but neither open nor succeeded: another process has closed the
  execution. Its job is interrupted.
* **unknown**: open but not in flight, in two answers. All claims that were under way at the first answer had ended
  before the second query was sent. The reply of a claim was lost, so the execution is released.
* **cancellation requested**: a running job is asked to stop. A prefetched job is released, which ends it as cancelled.
  A notification says when to poll for requests; while no notifications arrive, the monitor polls once a second.

It also answers the requests of operators to this process (see `request_answers`), because it has a connection of its
own and is seldom busy.

`LeaseGuard` interrupts all jobs when the leases have not been extended for four fifths of their duration, and exits the
process when they end. It needs no database, so it also works during an outage.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from django_pgqueue.db.notifications import CANCEL_REQUESTED, WORKER_REQUESTED
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import completions, leases
from django_pgqueue.lifecycle.types import ExecutionKey, OpenExecution
from django_pgqueue.reactions import Reactions
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.states import Outcome
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.execution.report import success_ending
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.outages import outage_log
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import ExitReason, ProcessState
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.pool import Pool

from .waking.request_answers import RequestAnswers

logger = logging.getLogger("django_pgqueue.worker")
POLL_SECONDS: Final = 1.0
"""Interval of the polls for cancellation requests while no notifications announce them."""
MARGIN_FRACTION: Final = 0.2
"""The fraction of the lease that is left when a worker that cannot extend it interrupts its own jobs."""


class ClaimCounter:
    """The claims of one thread. Any thread may read the counts.

    The fetcher counts, in its own thread. The lease monitor reads the counts. An execution that is open in the database
    but not in flight in this process may belong to a claim whose answer has not arrived yet. The lease monitor may
    release such an execution only after that claim has ended.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        """A claim has ended when its jobs are in flight, or when it has failed and its jobs never will be."""

    @contextmanager
    def claim_under_way(self) -> Iterator[None]:
        """Count one claim: as begun before its statement is sent, as ended after its answer was processed."""
        self.begun += 1
        try:
            yield
        finally:
            self.ended += 1


class LeaseMonitor(Service):
    """Find lost and unknown executions, and executions whose cancellation was requested."""

    def __init__(
        self,
        link: ConnectionSource,
        in_flight: InFlight,
        completer: Completer,
        pool: Pool,
        process_state: ProcessState,
        worker_id: int,
        claims: ClaimCounter,
        reactions: Reactions,
    ) -> None:
        super().__init__("lease-monitor")
        self.requests = RequestAnswers(in_flight, pool, process_state, worker_id)
        self.on_requests: Final = {
            CANCEL_REQUESTED: self.poll_requests_soon,
            WORKER_REQUESTED: self.answer_requests_soon,
        }
        """The function to call after a notification, by its payload."""
        self.reactions = reactions
        self.link = link
        self.in_flight = in_flight
        self.completer = completer
        self.pool = pool
        self._listens = False
        """Whether notifications arrive, including those of cancellation requests."""
        self.process_state = process_state
        self.worker_id = worker_id
        self.claims = claims
        self._unknown: dict[ExecutionKey, int] = {}
        """The unknown executions, each with the number of claims that had begun when it was first seen."""
        self._compare_at = 0.0
        self._must_poll = False

    def set_listens(self, *, listens: bool) -> None:
        """Set whether notifications arrive. Safe from any thread."""
        # Requests since the last poll were announced before this process listened. Without this poll, they would wait
        # for the next heartbeat.
        self._must_poll = self._must_poll or bool(len(self.in_flight))
        self._listens = listens
        self.wake()  # otherwise it would finish a sleep that assumes notifications

    def poll_requests_soon(self) -> None:
        """Poll for cancellation requests. Safe from any thread."""
        self._must_poll = True
        self.wake()

    def answer_requests_soon(self) -> None:
        """Read and answer the requests of operators to this process. Safe from any thread."""
        self.requests.expect()
        self.wake()

    def tick(self) -> float:
        """Compare, also if this process has no jobs.

        The lease of the worker is that of all its open executions, so one that no thread knows of would stay open for
        ever without this comparison.
        """
        now = time.monotonic()
        if now >= self._compare_at:
            self._compare()
            self._compare_at = now + get_settings().heartbeat_seconds
            self._must_poll = self._must_poll or bool(len(self.in_flight))  # a notification may have been lost
        polls = (self._must_poll or not self._listens) and bool(len(self.in_flight))
        if polls:
            self._poll_requests()
        if polls or self.requests.are_expected:
            with self.link.use() as connection:
                self.requests.answer(connection)
        left_seconds = self._compare_at - time.monotonic()
        return left_seconds if self._listens and not self._must_poll else min(left_seconds, POLL_SECONDS)

    def _compare(self) -> None:
        asked_at, claims_ended = time.monotonic(), self.claims.ended
        known = self.in_flight.keys_before(asked_at)
        with self.link.use() as connection:
            is_open = {execution.key: execution for execution in leases.open_executions(connection, self.worker_id)}
        # Only executions that are still in flight: one that ended meanwhile was closed by its own completion.
        missing = (known & self.in_flight.keys_before(float("inf"))) - set(is_open)
        if missing:
            missing -= self._committed(missing)
        lost = {key.execution_id for key in missing} - self.completer.ids()
        if lost:
            extra = event("executions_lost", count=len(lost))
            logger.warning("executions %s no longer belong to this worker: interrupted", sorted(lost), extra=extra)
            self.pool.interrupt(lost)
        self._release_unknown(is_open, claims_ended)

    def _committed(self, missing: set[ExecutionKey]) -> set[ExecutionKey]:
        """Return those whose atomic tasks have committed their completions. Their `on_commit()` functions run now."""
        with self.link.use() as connection:
            outcomes = completions.outcomes_of(connection, sorted(missing))
        return {key for key in missing if self._has_committed(key.execution_id, outcomes)}

    def _has_committed(self, execution_id: int, outcomes: Mapping[int, str | None]) -> bool:
        """Return whether a running job has succeeded. The success of an atomic task without retention leaves no row."""
        if execution_id in outcomes:
            return outcomes[execution_id] == Outcome.SUCCEEDED
        running = self.in_flight.running_with(execution_id)
        task = registry.get(running.claimed.task_name) if running is not None else None
        if running is None or task is None or not task.atomic:
            return False
        return success_ending(task, running.claimed) is Ending.DISCARDED

    def _poll_requests(self) -> None:
        # Reset before the poll: a request that arrives during the poll needs another poll.
        self._must_poll, poll_again = False, True
        try:
            poll_again = self._handle_requests()
        finally:
            if poll_again:
                self._must_poll = True

    def _handle_requests(self) -> bool:
        """Stop the jobs whose cancellation was requested. Return whether to poll again soon.

        Poll again if a job was not found here: a claim's answer may be under way, or the job is just being started.
        """
        # A smaller `first_id` would make the query walk over all executions that closed since: 30 ms.
        first_id = min(self.in_flight.known_before(float("inf")), default=0)
        with self.link.use() as connection:
            requests = leases.cancel_requests(connection, [self.worker_id], first_id=first_id)
            requested = {execution_id for _, execution_id in requests}
            # The release ends these jobs as cancelled.
            release_executions(connection, self.in_flight.take(requested), self.reactions)
        notified = self.pool.ask_to_cancel(requested)
        return bool(requested - notified - self.completer.ids())

    def _release_unknown(self, is_open: Mapping[ExecutionKey, OpenExecution], claims_ended: int) -> None:
        """Release executions that are open but not in flight, once no claim under way can return them.

        `claims_ended` is the number of claims that had ended before the query was sent. The answer of a claim may take
        longer than a heartbeat interval. If its executions were released meanwhile, another worker would start the
        jobs, and then this worker would start them too.
        """
        completing = self.completer.ids()
        unknown = {
            key for key in set(is_open) - self.in_flight.keys_before(float("inf")) if key.execution_id not in completing
        }
        claims_begun = self.claims.begun  # read after the answer, so that it counts the claim that opened them
        stray = [is_open[key] for key in sorted(unknown) if self._unknown.get(key, float("inf")) <= claims_ended]
        # Keep each entry until its execution is closed, so that a row that is locked now is tried again.
        self._unknown = {key: self._unknown.get(key, claims_begun) for key in unknown}
        if stray:
            ids = [execution.execution_id for execution in stray]
            extra = event("executions_unknown", count=len(ids))
            logger.warning("executions %s are open but not in flight in this process: released", ids, extra=extra)
            with self.link.use() as connection:
                release_executions(connection, stray, self.reactions)


class LeaseGuard(Service):
    """Interrupt this process's jobs before the leases end, and end the process when they do.

    Without a database, a worker cannot find out whether others consider it lost. It must act as if they did.
    """

    def __init__(self, process_state: ProcessState, in_flight: InFlight, interrupt: Callable[[set[int]], None]) -> None:
        super().__init__("lease-guard")
        self.process_state = process_state
        self.in_flight = in_flight
        self.interrupt = interrupt
        self._logged = False
        self._interrupted = False

    def leases_hold(self) -> bool:
        """Return whether the leases last long enough to claim more. A new job must not be interrupted at once."""
        return self.process_state.lease_left_seconds > MARGIN_FRACTION * get_settings().LEASE

    def tick(self) -> float:
        """Check how long the leases last, and show the supervisor that this process is alive."""
        self.process_state.signs_of_life += 1
        left_seconds = self.process_state.lease_left_seconds
        margin_seconds = MARGIN_FRACTION * get_settings().LEASE
        if not len(self.in_flight):
            return 1.0
        if left_seconds > margin_seconds:
            self._logged = self._interrupted = False
            return max(0.01, min(1.0, left_seconds - margin_seconds))
        if not self._logged and outage_log.may_log():
            self._logged = True
            logger.error(
                "the leases end in %.1f s and cannot be extended: interrupting all jobs",
                left_seconds,
                extra=event("leases_ending", left_seconds=round(left_seconds, 1)),
            )
        if not self._interrupted:
            self._interrupted = True
            self.in_flight.take_waiting()  # `LeaseMonitor` releases these executions when the database answers again
            self.interrupt(self.in_flight.known_before(float("inf")))
        if left_seconds <= 0:
            # Only the supervisor logs this: a log handler in this process could delay the exit.
            self.process_state.exit_reason = ExitReason.LEASE_LOST
            os._exit(1)
        return 0.05
