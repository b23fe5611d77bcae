"""Find out that a worker process cannot do its work any more: a service has died or hangs, or completions are stuck.

The main thread of the process asks once a second, because it runs no code of the application and waits for no
database. Such a process says so and ends, and the supervisor replaces it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from typing import Final, NoReturn

from django_pgqueue.conf import get_settings

from .background_log import background_log
from .board import Board, Farewell
from .callbacks import CallbackRunner
from .completer import Completer
from .pool import Pool
from .pulse import pulse
from .service import Service

logger = logging.getLogger("django_pgqueue.worker")

CHECK_SECONDS: Final = 1.0
ROUND_SECONDS: Final = 60.0
"""How long one round of a service may take, or a lease if that is longer. Statements have half a lease."""
COMPLETION_SECONDS: Final = 15.0
"""How long completions may be stuck at least, or a lease if that is longer: after an error the completer pauses."""


class Liveness:
    """Watches the services of one process."""

    def __init__(
        self, services: Sequence[Service], completer: Completer, callbacks: CallbackRunner, pool: Pool, board: Board
    ) -> None:
        self.services = services
        self.completer = completer
        self.callbacks = callbacks
        self.pool = pool
        self.board = board
        self._checked_at = time.monotonic()
        self._stuck_since: float | None = None

    def check(self) -> bool:
        """Once a second, replace threads that are dead or hang, and end a process that cannot go on.

        Called in the main thread, as often as it likes; returns whether it was time for a check.
        """
        if time.monotonic() - self._checked_at <= CHECK_SECONDS:
            return False
        self._checked_at = time.monotonic()
        self.callbacks.watch()
        self.pool.replace_dead_threads()
        pulse.completions_behind(self.completer.behind_since)
        problem = self.problem()
        if problem is not None:
            self._end(problem)
        return True

    def _end(self, problem: str) -> NoReturn:
        """End the process, so that the supervisor gives back what it holds, and replaces it."""
        self.board.say_farewell(Farewell.STUCK)
        logger.critical("worker process %d cannot go on, and ends: %s", os.getpid(), problem)
        background_log.flush()
        os._exit(1)

    def problem(self) -> str | None:
        """Return in words why this process has to be replaced, or None."""
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
        """Say whether the ends of jobs have not been written for a lease, although the database answers others.

        Only the time counts in which the leases are extended. In an outage of the database everything waits, and
        what waits here is written when it is over.
        """
        now, lease_seconds = time.monotonic(), get_settings().LEASE
        is_stuck = len(self.completer) and self.completer.is_behind
        if not is_stuck or self.board.lease_left_seconds < lease_seconds / 2:
            self._stuck_since = None
            return None
        self._stuck_since = self._stuck_since or now
        if now - self._stuck_since <= max(lease_seconds, COMPLETION_SECONDS):
            return None
        return f"it could not write how {len(self.completer)} jobs ended for {now - self._stuck_since:.0f} s"
