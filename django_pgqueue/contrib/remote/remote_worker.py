"""Run jobs on a machine without the database: the slots of a local worker, fed and emptied over HTTP.

`manage.py pgqueue remote-worker` runs one `RemoteWorker`. Three threads talk to the server: one claims, one extends the
leases, and one writes how executions ended. The slots, timeouts, cancellation, coroutines and isolated processes are
those of a local worker (`worker.slots`), and so is the attempt (`worker.execution`).

A report is kept until the server has answered. Meanwhile its lease is extended, so no other worker starts the job. If
the leases cannot be extended, the worker stops its jobs before they end, because another worker may start them then.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from django_pgqueue import signals
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import are, counted
from django_pgqueue.worker.execution.report import released
from django_pgqueue.worker.isolation.fork_server import ForkServer
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.shared_memory import ProcessState
from django_pgqueue.worker.slots import query_cancel
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.pool import Pool

from .client import RemoteClient, RemoteError
from .remote_reports import Reports
from .remote_services import Claims, Extensions, RemoteLeases, RemoteOptions

logger = logging.getLogger("django_pgqueue.worker")

TURN_SECONDS: Final = 0.1
MARGIN_FRACTION: Final = 0.2
"""The fraction of the lease that is left when a worker that cannot extend it stops its jobs."""
STOP_JOBS_SECONDS: Final = 6.0
"""Time that interrupted jobs get to end."""
LAST_REPORTS_SECONDS: Final = 10.0
FIRST_PAUSE_SECONDS: Final = 1.0
LONGEST_PAUSE_SECONDS: Final = 30.0


class RemoteWorker:
    """One process that runs jobs of a server."""

    def __init__(self, client: RemoteClient, options: RemoteOptions, alias: str) -> None:
        self.client = client
        self.options = options
        self.process_state = ProcessState(2 * options.concurrency)
        self.in_flight = InFlight(options.concurrency)
        self.leases = RemoteLeases(self.process_state)
        self.fork_server = ForkServer(alias, self.process_state)
        self.extensions = Extensions(  # the pool needs them, and they need the pool
            client,
            self.leases,
            lambda execution_ids: self.pool.interrupt(execution_ids),
            lambda execution_ids: self.pool.ask_to_cancel(execution_ids),
        )
        self.reports = Reports(client, self.leases, alias)
        self.pool = Pool(
            Options(database=alias, concurrency=options.concurrency, isolation=options.isolation),
            self.in_flight,
            self.process_state,
            self.fork_server,
            self.reports.hand_over,
            self.extensions,
            lambda: self.claims.wake(),
        )
        self.claims = Claims(client, options, self.leases, self.in_flight, self.pool.submit, self.reports.hand_over)
        self._services = (self.claims, self.extensions, self.reports)
        self._signals = 0
        """Signals to stop that have arrived. A plain number: the handler must not wait for a lock."""
        self._was_interrupted = False

    def run(self) -> int:
        """Run jobs until SIGTERM or Ctrl-C. Return the exit code.

        It is 1 if the server refuses this worker, or if the worker has abandoned jobs.
        """
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)
        signals.job_started.receivers.clear()  # the server has sent it
        self.fork_server.start()  # before the first thread
        django_connections.watch()
        query_cancel.watch()
        refusal = self._register()
        if refusal is not None:
            return self._refused(refusal)
        if not self.leases.worker:  # a signal has arrived first
            return 0
        self.pool.start()
        self.pool.deadlines.start()
        for service in self._services:
            service.start()
        while not self._must_end():
            self._guard_leases()
            self.pool.replace_dead_threads()
            time.sleep(TURN_SECONDS)
        self._end()
        refusal = next((each.refusal for each in self._services if each.refusal is not None), None)
        if refusal is not None:
            return self._refused(refusal)
        return int(self.pool.is_worn)

    def _must_end(self) -> bool:
        """Return whether to stop: after a signal or a refusal, if the process is worn, or if nothing is left to do."""
        if self._signals or any(service.refusal is not None for service in self._services):
            return True
        if self.pool.is_worn:
            logger.error(
                "the remote worker stops, because it has abandoned jobs: start it again",
                extra=event("remote_worker_worn"),
            )
            return True
        is_idle = self.claims.found_nothing and not len(self.in_flight) and not len(self.reports)
        return self.options.until_empty and is_idle

    def _register(self) -> RemoteError | None:
        """Register with the server, and try again while it does not answer. Return its refusal."""
        pause_seconds = FIRST_PAUSE_SECONDS
        while not self._signals:
            try:
                answer = self.client.register(
                    self.options.name,
                    pid=os.getpid(),
                    concurrency=self.options.concurrency,
                    queue_names=self.options.queue_names,
                )
            except RemoteError as error:
                if not error.is_temporary:
                    return error
                logger.warning("cannot register: %s", error, extra=event("remote_server_unavailable"))
                self._wait(lambda: bool(self._signals), error.retry_after_seconds or pause_seconds)
                pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
            else:
                self.leases.begin(answer)
                logger.info(
                    "remote worker %s is ready (process %d)",
                    answer["worker_id"],
                    os.getpid(),
                    extra=event("process_ready", worker_id=answer["worker_id"], pid=os.getpid()),
                )
                return None
        return None

    def _refused(self, refusal: RemoteError) -> int:
        logger.error("the remote worker stops: %s", refusal, extra=event("remote_worker_refused"))
        return 1

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _guard_leases(self) -> None:
        """Stop all jobs if the leases cannot be extended and end soon: another worker may start them then."""
        has_time = self.leases.left_seconds > MARGIN_FRACTION * self.leases.lease_seconds
        if has_time or not len(self.in_flight):
            self._was_interrupted = False
        elif not self._was_interrupted:
            self._was_interrupted = True
            logger.error(
                "the leases end in %.1f s and cannot be extended: interrupting all jobs",
                self.leases.left_seconds,
                extra=event("leases_ending", left_seconds=round(self.leases.left_seconds, 1)),
            )
            self.in_flight.take_waiting()
            self.pool.interrupt(self.in_flight.known_before(float("inf")))

    # ---------------------------------------------------------------- stopping

    def _end(self) -> None:
        """Let running jobs end within the grace period, release the others, and write all reports."""
        self.claims.stop()
        self.client.abort_claim()
        self._release(self.in_flight.take_waiting())
        self._wait(lambda: not self.in_flight.running, self.options.grace_seconds, while_calm=True)
        self._release(self.in_flight.take_waiting())
        self.in_flight.close()
        running = list(self.in_flight.running)
        if running:
            logger.warning(
                "%s %s still running after the grace period and released",
                counted(len(running)),
                are(len(running)),
                extra=event("jobs_interrupted", count=len(running)),
            )
            self.pool.interrupt(running)
            self._wait(lambda: not self.in_flight.running, STOP_JOBS_SECONDS)
        self.pool.stop()
        self.claims.join(STOP_JOBS_SECONDS)
        self._wait(lambda: not len(self.reports), LAST_REPORTS_SECONDS)
        for service in (*self._services, self.pool.deadlines):
            service.stop()
        self.pool.close_isolated_processes(wait=True)
        try:
            self.client.stop(self.leases.worker)  # releases what is left, also jobs of an aborted claim
        except RemoteError as error:
            logger.warning("the server was not informed of the stop: %s", error, extra=event("remote_stop_unsent"))

    def _release(self, jobs: Sequence[Any]) -> None:
        for job in jobs:
            self.reports.hand_over(released(job))

    def _wait(self, condition: Callable[[], bool], seconds: float, *, while_calm: bool = False) -> None:
        """Wait for a condition. With `while_calm`, only until a second signal arrives."""
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline and not (while_calm and self._signals > 1):
            self._guard_leases()
            time.sleep(0.02)
