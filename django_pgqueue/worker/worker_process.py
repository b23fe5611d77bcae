"""One worker process: run its services, and stop them in the right order. The supervisor calls `main()`.

Stop order, which ensures that no job runs in two processes at once (see `stopping`):

1. The fetcher stops claiming and releases the prefetched jobs.
2. The slots finish their jobs within the grace period.
3. The completer writes the results.
4. Jobs that still run are interrupted, and the completer writes that they were released.
5. Jobs that run even after that are released without counting the attempt, and the process exits at once.

The process takes orders only from its supervisor, as single bytes through a pipe: S to stop, R to release all jobs at
once. If the pipe is closed, the supervisor is gone and sends no more heartbeats, so the process stops. It ignores
signals, because a terminal's Ctrl-C and systemd's SIGTERM reach every process of a group, and the supervisor passes
them on as orders.
"""

from __future__ import annotations

import logging
import os
import select
import time
from typing import Final, NoReturn

from django_pgqueue import signals
from django_pgqueue.db import server
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import counted
from django_pgqueue.worker.execution.process_events import WORKER, stop_receivers
from django_pgqueue.worker.runtime.background_log import background_log, keep_output_open
from django_pgqueue.worker.runtime.clone_guard import clone_guard
from django_pgqueue.worker.runtime.exit_functions import EXIT_SECONDS, forget_inherited_processes, run_exit_functions
from django_pgqueue.worker.runtime.process_info import resident_mib
from django_pgqueue.worker.runtime.process_signals import survive_signals
from django_pgqueue.worker.runtime.shared_memory import ExitReason, ProcessState
from django_pgqueue.worker.stopping import end_running_jobs

from .claiming.next_scan import SharedScans
from .execution import process_events
from .options import Options
from .runtime import django_connections, exit_cause
from .services import Services
from .slots import query_cancel
from .slots.queue_slots import Allowance

logger = logging.getLogger("django_pgqueue.worker")

STOP: Final = b"S"
RELEASE: Final = b"R"
TURN_SECONDS: Final = 0.05
CHECK_SECONDS: Final = 1.0
CALLBACKS_SECONDS: Final = 5.0
"""How long a stop waits for signal receivers that have not been called yet."""
HURRIED_EXIT_SECONDS: Final = 1.0
"""How long exit functions may take after an order to release all jobs at once."""
LAST_LINES_SECONDS: Final = 0.2
"""How long the exit waits for the last log lines, and for the last signal receivers."""
STOP_SECONDS: Final = 10.0
"""How long the stop may take in total after the grace period. Half a second later the supervisor kills the process."""
COMPLETER_SECONDS: Final = 0.5
"""How long the exit waits for the completer, which writes the last counts of circuit breakers when it ends."""
EMPTY_SCANS: Final = 2
"""How many claims from the start must find nothing before `--until-empty` concludes that no due job is left."""


def slots(options: Options) -> int:
    """Return how many slots a worker process has: one thread and one coroutine per unit of concurrency."""
    return 2 * options.concurrency


class WorkerProcess:
    """The main thread of one worker process: it waits for orders and stops the services."""

    def __init__(self, options: Options, services: Services, allowance: Allowance, worker_id: int, orders: int) -> None:
        self.options = options
        self.services = services
        self.allowance = allowance
        self.worker_id = worker_id
        self.orders = orders
        self.process_state = services.process_state
        self.in_flight = services.in_flight
        self.pool = services.pool
        self.fetcher = services.fetcher
        self.completer = services.completer
        self._idle = self._waits_to_retire = False

    def run(self) -> None:
        """Work until an order to stop arrives, the queues are empty, or the process has to be replaced."""
        server.end_at_promotion()
        self.services.fork_server.start()  # before the first thread
        exit_cause.watch(self.process_state)
        background_log.start()
        django_connections.watch()
        query_cancel.watch()
        keep_output_open()
        order = self._call_start_receivers()
        self.pool.start()
        if order is not None:
            self.fetcher.stop()  # it claims nothing
        for service in self.services.in_order:
            service.start()
        if order is not None:
            self._stop(order, ExitReason.STOPPED)
            return
        extra = event("process_ready", worker_id=self.worker_id, pid=os.getpid())
        logger.info("worker %d is ready (process %d)", self.worker_id, os.getpid(), extra=extra)
        self._stop(*self._until_ordered())

    def _call_start_receivers(self) -> bytes | None:
        """Send `worker_process_started` and wait for its receivers; return an order that arrives meanwhile.

        The callback thread calls the receivers. It continues with them if the wait ends first.
        """
        callbacks, orders = self.services.callbacks, list[bytes]()

        def is_ordered() -> bool:
            if (order := self._order(0.0)) is not None:
                orders.append(order)
            return bool(orders)

        arguments = process_events.about(process_events.WORKER, self.options.database)
        callbacks.publish(signals.worker_process_started, None, arguments)
        if not callbacks.wait_until_called(process_events.START_SECONDS, is_ordered) and not orders:
            logger.error(process_events.NOT_RETURNED, process_events.START_SECONDS, extra=event("receivers_late"))
        return orders[0] if orders else None

    # ---------------------------------------------------------------- working

    def _until_ordered(self) -> tuple[bytes, ExitReason]:
        while True:
            if server.was_promoted():
                self._end_at_once(ExitReason.PROMOTED)
            if clone_guard.is_foreign:
                self._end_at_once(ExitReason.FOREIGN)
            order = self._order(self._turn_seconds())
            if order is not None:
                return order, ExitReason.STOPPED
            if self.options.until_empty and self._is_empty():
                return STOP, ExitReason.EMPTY
            self._open_places()
            if (reason := self._limit_reached()) and self._may_retire():
                return self._retire(reason)
            if self.services.check() and (reason := self._unfit_because()) and self._may_retire():
                return self._retire(reason)

    def _turn_seconds(self) -> float:
        often = self.options.until_empty or self.options.max_jobs or self.in_flight.opened < self.in_flight.capacity
        return TURN_SECONDS if often else CHECK_SECONDS

    def _open_places(self) -> None:
        """Allow one more job for each job that the process that this one replaces has finished."""
        if self.in_flight.opened < self.in_flight.capacity and self.in_flight.open_places(self.allowance.places):
            self.pool.loop.start_waiting()
            self.fetcher.wake()

    def _may_retire(self) -> bool:
        """Return whether this process may be replaced now. If not, it continues to work, and logs that once."""
        if not self.allowance.may_retire and not self._waits_to_retire:
            self._waits_to_retire = True
            logger.info(
                "worker %d will be replaced later: the process before it is still running",
                self.worker_id,
                extra=event("process_retires_later", worker_id=self.worker_id),
            )
        return self.allowance.may_retire

    def _retire(self, reason: str) -> tuple[bytes, ExitReason]:
        """Log why this process will be replaced, and return its order to stop."""
        logger.info(
            "worker %d will be replaced: it finishes its running jobs first (%s)",
            self.worker_id,
            reason,
            extra=event("process_retiring", worker_id=self.worker_id, reason=reason),
        )
        return STOP, ExitReason.RECYCLED

    def _end_at_once(self, exit_reason: ExitReason) -> NoReturn:
        """Exit without writing: on another server, other executions may have the ids of this process's jobs."""
        # The supervisor logs the reason, because a log handler here could delay the exit.
        self.process_state.exit_reason = exit_reason
        os._exit(1)

    def _order(self, timeout_seconds: float) -> bytes | None:
        """Return the next order, b"" if the supervisor is gone, or None if no order arrives in time."""
        ready, _, _ = select.select([self.orders], [], [], timeout_seconds)
        return os.read(self.orders, 1) if ready else None

    def _is_empty(self) -> bool:
        """Return whether no job is in flight or to be advanced, and later claims have found no due job."""
        is_busy = len(self.in_flight) or len(self.completer) or not self.services.later_checks.is_empty()
        was_idle, self._idle = self._idle, not is_busy
        if self._idle and not was_idle:
            self.fetcher.restart_scans()
            return False
        self.fetcher.wake()
        return self._idle and self.fetcher.empty_scans >= EMPTY_SCANS

    def _limit_reached(self) -> str:
        """Return a text if this process has started as many jobs as it may, otherwise ""."""
        started, limit = self.in_flight.started, self.options.max_jobs
        return "" if limit is None or started < limit else f"it has started {counted(started)}, --max-jobs is {limit}"

    def _unfit_because(self) -> str:
        """Return why another process should replace this one, or ""."""
        limit = self.options.max_rss_mb
        if limit is not None and (resident := resident_mib()) > limit:
            return f"its memory is {resident:.0f} MiB, --max-rss-mb is {limit}"
        if self.pool.is_worn:
            return "it has abandoned jobs, or its fork server is gone"
        return "its jobs have leaked global state" if self.services.leak_detector.calls_for_another_process() else ""

    # ---------------------------------------------------------------- stopping

    def _stop(self, order: bytes, exit_reason: ExitReason) -> None:
        deadline = time.monotonic() + (0.0 if order == RELEASE else self._grace_seconds(order))
        if exit_reason is ExitReason.RECYCLED:  # a replacement is not urgent, so running jobs have no deadline
            deadline = float("inf")
        self.fetcher.stop()
        self.services.set_listens(
            listens=False
        )  # otherwise requests to cancel the jobs that still run would go unnoticed
        self.services.last_writes.release_waiting()
        self.fetcher.join(5.0)
        while self.in_flight.running and time.monotonic() < deadline:
            if exit_reason is ExitReason.RECYCLED and self._starts_nothing():
                self.process_state.retires = True
            self.services.check()
            new_order = self._order(TURN_SECONDS)
            if new_order == RELEASE:
                order = RELEASE
                break
            if new_order is not None:
                deadline = min(deadline, time.monotonic() + self._grace_seconds(new_order))
            if new_order == b"":  # a closed pipe is always readable: without the sleep this loop would spin
                time.sleep(TURN_SECONDS)
        self._end(exit_reason, hurried=order == RELEASE)

    def _end(self, exit_reason: ExitReason, *, hurried: bool) -> None:
        """Interrupt running jobs, let the application flush its buffers, and release the jobs that are left."""
        end_by = time.monotonic() + max(1.0, min(STOP_SECONDS, self.process_state.lease_left_seconds))
        self.in_flight.close()
        end_running_jobs(
            self.in_flight,
            self.pool,
            self.completer,
            hurried=hurried,
            lease_left_seconds=self.process_state.lease_left_seconds,
        )
        for service in self.services.in_order:
            service.stop()
        self._drain_callbacks(end_by, hurried=hurried)
        self.process_state.exit_reason = exit_reason  # before exit functions run, because one may end the process
        self.pool.close_isolated_processes(wait=not hurried)
        limit_seconds = HURRIED_EXIT_SECONDS if hurried else EXIT_SECONDS
        receivers = process_events.stop_receivers(process_events.WORKER, self.options.database)
        run_exit_functions(receivers, max(0.1, min(limit_seconds, end_by - time.monotonic())))
        self.completer.join(max(0.0, min(COMPLETER_SECONDS, end_by - time.monotonic())))
        self.services.last_writes.write_counts()
        self.services.last_writes.unregister()
        self.services.last_writes.release_running()  # last, because other workers may start these jobs afterwards
        self.services.callbacks.drain(LAST_LINES_SECONDS)  # a release may have ended a job as cancelled

    def _drain_callbacks(self, end_by: float, *, hurried: bool) -> None:
        """Wait until signal receivers have received all events. An order to release at once does not wait for them."""
        seconds = 0.0 if hurried else min(CALLBACKS_SECONDS, end_by - time.monotonic())
        self.services.callbacks.drain(seconds, lambda: self._order(0.0) == RELEASE)

    def _grace_seconds(self, order: bytes) -> float:
        if order == b"":  # the supervisor is gone, so the leases expire: stop while they still hold
            return min(self.options.grace_seconds, max(0.0, self.process_state.lease_left_seconds * 0.8))
        return self.options.grace_seconds

    def _starts_nothing(self) -> bool:
        """Return whether no further job can start here and the shared memory lists all running jobs.

        The replacement reads that list. A running job that it lacks would let the replacement start one too many.
        """
        is_listed = set(self.in_flight.running) <= set(self.process_state.running())
        return is_listed and not self.in_flight.waiting and not self.fetcher.is_alive()


def main(
    options: Options, process_state: ProcessState, orders: int, allowance: Allowance, shared_scans: SharedScans
) -> NoReturn:
    """Run this process as a worker process until it has to end, and exit.

    `main()` reads the worker's id, runs a `WorkerProcess`, and ends the process. It never returns, because the code
    above it belongs to the supervisor.
    """
    worker_id = None
    try:
        survive_signals()
        forget_inherited_processes()
        worker_id = _worker_id(orders)
        if worker_id is not None:  # otherwise the supervisor has ended, and there is nothing to stop
            services = Services(options, process_state, worker_id, allowance, shared_scans)
            WorkerProcess(options, services, allowance, worker_id, orders).run()
    except BaseException:
        logger.exception("the worker process failed", extra=event("process_failed"))
    finally:
        try:
            run_exit_functions(None if worker_id is None else stop_receivers(WORKER, options.database))
            background_log.flush(LAST_LINES_SECONDS)
        finally:
            # A normal exit would wait for jobs that were released and still run here, which may never end.
            os._exit(0 if process_state.exit_reason else 1)


def _worker_id(orders: int) -> int | None:
    """Read this worker's id, the first line that the supervisor sends; return None if the supervisor ended first."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(orders, 1)
        if not byte:
            return None
        line += byte
    return int(line)
