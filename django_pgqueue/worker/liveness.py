"""Detect that a worker process can no longer work: a service has died or hangs, or completions are stuck.

`WorkerProcess` calls `Liveness.check()` once a second in the main thread of the process, which runs no application code
and never waits for the database. A process that is stuck logs the reason and exits, and the supervisor replaces it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import counted
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.receiver_thread import CallbackRunner
from django_pgqueue.worker.runtime.background_log import background_log
from django_pgqueue.worker.runtime.outages import outage_log
from django_pgqueue.worker.runtime.service import Service
from django_pgqueue.worker.runtime.shared_memory import ExitReason, ProcessState, health_memory
from django_pgqueue.worker.slots.pool import Pool

logger = logging.getLogger("django_pgqueue.worker")

CHECK_SECONDS: Final = 1.0
ROUND_SECONDS: Final = 60.0
"""How long one round of a service may take, or a lease if that is longer. A statement may take half a lease."""
COMPLETION_SECONDS: Final = 15.0
"""How long completions may be stuck, or a lease if that is longer. The completer waits after an error before a retry,
so a shorter limit would end processes that recover by themselves."""


@dataclass(eq=False, repr=False)
class Liveness:
    """Watches the services of one process."""

    services: Sequence[Service]
    completer: Completer
    callbacks: CallbackRunner
    pool: Pool
    process_state: ProcessState
    _checked_at: float = field(default_factory=lambda: time.monotonic())
    _stuck_since: float | None = None

    def check(self) -> bool:
        """Replace threads that are dead or hang, and end the process if it is stuck. Runs once a second at most.

        Called in the main thread, at any rate. Return whether a check was due.
        """
        if time.monotonic() - self._checked_at <= CHECK_SECONDS:
            return False
        self._checked_at = time.monotonic()
        self.callbacks.watch()
        self.pool.replace_dead_threads()
        self._report_health()
        outage_log.log_end_if_over()
        problem = self.problem()
        if problem is not None:
            self._end(problem)
        return True

    def _report_health(self) -> None:
        in_flight = self.pool.in_flight
        health_memory.completions_behind_since = self.completer.behind_since or 0.0
        health_memory.running = len(in_flight.running)
        health_memory.prefetched = len(in_flight.waiting)
        health_memory.slots = len(in_flight.running) if self.process_state.retires else in_flight.opened
        health_memory.oldest_report_at = self.completer.oldest_at or 0.0
        health_memory.loop_blocked_since = self.pool.loops.check()
        health_memory.responded_at = time.monotonic()

    def _end(self, problem: str) -> NoReturn:
        """End the process, so that the supervisor requeues its jobs and replaces it."""
        self.process_state.exit_reason = ExitReason.STUCK
        extra = event("process_stuck", pid=os.getpid(), reason=problem)
        logger.critical("worker process %d is stuck and exits: %s", os.getpid(), problem, extra=extra)
        background_log.flush()
        os._exit(1)

    def problem(self) -> str | None:
        """Return the reason why this process has to be replaced as text, or None."""
        limit_seconds = max(get_settings().LEASE, ROUND_SECONDS)
        for service in self.services:
            if service.stopping:
                continue
            if not service.is_alive():
                return f"its service {service.name} has ended"
            if service.busy_seconds > limit_seconds:
                return f"its service {service.name} has been in one round for {service.busy_seconds:.0f} s"
        return self._completions_problem()

    def _completions_problem(self) -> str | None:
        """Return a problem if no result could be written for a lease although the supervisor can extend the leases.

        Time in which the leases are not extended does not count. That is a database outage: the results wait, and the
        completer writes them when the outage is over.
        """
        now, lease_seconds = time.monotonic(), get_settings().LEASE
        is_stuck = len(self.completer) and self.completer.is_behind
        if not is_stuck or self.process_state.lease_left_seconds < lease_seconds / 2:
            self._stuck_since = None
            return None
        self._stuck_since = self._stuck_since or now
        if now - self._stuck_since <= max(lease_seconds, COMPLETION_SECONDS):
            return None
        return f"it could not write the results of {counted(len(self.completer))} for {now - self._stuck_since:.0f} s"
