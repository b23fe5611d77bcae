"""Answer the requests of operators to this worker process: write the stacks of its jobs, or stop.

The lease monitor calls this in its thread after a notification, after a heartbeat that found a request, and whenever it
polls for requests to cancel running jobs. Without requests, an idle process runs no statement for this.

A request to stop is passed to the supervisor through the shared memory. It then stops as after a signal: with all its
processes, and within the grace period.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import worker_requests
from django_pgqueue.lifecycle.worker_requests import WorkerRequestRow
from django_pgqueue.states import RequestKind
from django_pgqueue.worker.execution.error_text import storable
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots.inflight import InFlight, Running
from django_pgqueue.worker.slots.pool import Pool

logger = logging.getLogger("django_pgqueue.worker")

STACK_BYTES: Final = 20_000
ANSWER_BYTES: Final = 200_000
"""Bytes kept of the stack of one job, and of a whole answer. The middle of a longer text is cut."""
STACKS_SECONDS: Final = 2.0
"""How long reading the stacks for one answer may take. An isolated process that does not react takes half a second."""
NOT_RUNNING: Final = "The job does not run in this process any more."
NO_JOBS: Final = "No job runs in this process."
NO_STACK: Final = "The process of the job did not write its stack."
STOPS: Final = "The worker stops: it claims no more jobs, and its running jobs have {seconds:g} s to finish."


class RequestAnswers:
    """Reads and answers the requests to one worker process."""

    def __init__(self, in_flight: InFlight, pool: Pool, process_state: ProcessState, worker_id: int) -> None:
        self.in_flight = in_flight
        self.pool = pool
        self.process_state = process_state
        self.worker_id = worker_id
        self._is_expected = False

    @property
    def are_expected(self) -> bool:
        """Whether there may be a request that was not read yet."""
        return self._is_expected or self.process_state.has_requests

    def expect(self) -> None:
        """Note that there may be a request. Safe from any thread."""
        self._is_expected = True

    def answer(self, connection: EngineConnection) -> None:
        """Read the requests and answer them. If this fails, the next round tries again."""
        # Reset before the read: a request that arrives during the read needs another one.
        self._is_expected, self.process_state.has_requests, is_done = False, False, False
        try:
            for request in worker_requests.open_requests(connection, self.worker_id):
                if request.kind == RequestKind.STOP:
                    self.process_state.stop_requested = True
                worker_requests.answer_request(connection, request.request_id, self._text(request))
            is_done = True
        finally:
            if not is_done:
                self._is_expected = True

    def _text(self, request: WorkerRequestRow) -> str:
        logger.info(
            "worker %d answers a request of %s: %s",
            self.worker_id,
            request.requested_by or "an operator",
            request.kind,
            extra=event("worker_requested", worker_id=self.worker_id, kind=request.kind, by=request.requested_by),
        )
        if request.kind == RequestKind.STOP:
            return STOPS.format(seconds=self.pool.options.grace_seconds)
        if not request.execution_id:
            return self._all_stacks()
        running = self.in_flight.running_with(request.execution_id)
        stack = self.pool.stack_of(request.execution_id)
        return NOT_RUNNING if running is None or stack is None else storable(stack or NO_STACK, STACK_BYTES)

    def _all_stacks(self) -> str:
        until = time.monotonic() + STACKS_SECONDS
        running = sorted(self.in_flight.running.values(), key=lambda job: job.claimed_at)
        parts = [self._part(job) if time.monotonic() < until else f"{_title(job)}: not read in time" for job in running]
        return storable("\n\n".join(part for part in parts if part) or NO_JOBS, ANSWER_BYTES)

    def _part(self, job: Running) -> str:
        """Return the stack of one job below its title; "" if the job has ended."""
        stack = self.pool.stack_of(job.claimed.execution_id)
        return "" if stack is None else f"{_title(job)}\n{storable(stack or NO_STACK, STACK_BYTES)}"


def _title(job: Running) -> str:
    return f"Job {job.claimed.job_id} ({job.claimed.task_name}), attempt {job.claimed.attempt}"
