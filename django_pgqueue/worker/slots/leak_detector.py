"""Detect leaks: changes that a job makes to its whole process and does not undo, such as another working directory.

`WorkerProcess` checks once a second. A leak is never undone, because other running jobs may depend on it; the process
is replaced instead. A change counts as a leak when all the jobs that ran when it was first seen have ended. Until then
it may be temporary, as in `override_settings`. A check costs 0.2 ms, and nothing while no job runs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.runtime.outages import outage_log
from django_pgqueue.worker.runtime.state_snapshot import ENVIRONMENT, describe_change, global_state, open_files

from .inflight import InFlight

logger = logging.getLogger("django_pgqueue.worker")

MORE_FILES: Final = 256
MORE_THREADS: Final = 64
MORE_SUBTASKS: Final = 256
"""How many more than at the start count as a leak. A library may use a few of its own."""
YOUNG_SECONDS: Final = 5.0
"""A process is not replaced before this age. Otherwise tasks that always leak would keep the worker from working."""
NAMES_LOGGED: Final = 3
LOGGED_LIMIT: Final = 512
"""How many warnings a process logs. Each is logged once."""
TASK_FACTORY: Final = "the task factory of the event loop"
HARMLESS: Final = frozenset({ENVIRONMENT, TASK_FACTORY})
"""Leaks that are logged but do not replace the process: libraries set some of these when they are first used."""


class Suspicion(NamedTuple):
    """A difference from the state at the start, as it was first seen."""

    running: frozenset[int]
    """The executions that ran then. Until they have ended, the change may be temporary."""
    task_names: str
    """The tasks of those executions, and of the jobs that had ended since the previous check."""


class LeakDetector:
    """Compare the state of the process with its state at the start."""

    def __init__(self, in_flight: InFlight, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.in_flight = in_flight
        self._loop = loop
        """Returns the event loop. A blocked loop is replaced."""
        self._born_at = time.monotonic()
        self._at_start = self._state()
        self._files, self._threads = open_files(), threading.active_count() + in_flight.capacity
        self._suspicions: dict[str, Suspicion] = {}
        self._logged: set[str] = set()

    def calls_for_another_process(self) -> bool:
        """Check for leaks and log each once per task. Return whether the process should be replaced."""
        if not self.in_flight.ended_tasks and not self.in_flight.running and not self._suspicions:
            return False
        try:
            return self._check()
        except Exception:  # a failed check must not end the process
            if outage_log.may_log():
                logger.exception("the check for leaks failed", extra=event("leak_check_failed"))
            return False

    def _check(self) -> bool:
        now = self._state()
        leaked = self._leaked(self._differences(now))
        self._at_start |= {name: now[name] for name in leaked & HARMLESS}
        return bool(leaked - HARMLESS) and time.monotonic() - self._born_at > YOUNG_SECONDS

    def _state(self) -> dict[str, Any]:
        return global_state() | {TASK_FACTORY: self._loop().get_task_factory()}

    def _leaked(self, found: Mapping[str, str]) -> set[str]:
        """Return the names of those differences that no running job can still undo."""
        ended, self.in_flight.ended_tasks = self.in_flight.ended_tasks, set()
        running = {key: entry.claimed.task_name for key, entry in list(self.in_flight.running.items())}
        new = Suspicion(frozenset(running), _listed(ended | set(running.values())))
        self._suspicions = {name: self._suspicions.get(name, new) for name in found}
        leaks = {name: seen for name, seen in self._suspicions.items() if not seen.running & set(running)}
        for name, suspicion in leaks.items():
            self._log(suspicion.task_names, name, found[name])
        return set(leaks)

    def _differences(self, now: Mapping[str, Any]) -> dict[str, str]:
        before, subtasks = self._at_start, len(asyncio.all_tasks(self._loop())) - len(self.in_flight.running)
        found = {name: describe_change(before[name], now[name]) for name in before if now[name] != before[name]}
        counts = (
            ("open files", open_files() - self._files, MORE_FILES + 2 * self.in_flight.capacity),
            ("threads", threading.active_count() - self._threads, MORE_THREADS),
            ("tasks on the event loop", subtasks, MORE_SUBTASKS),
        )
        return found | {name: f"({more} more than at the start)" for name, more, limit in counts if more > limit}

    def _log(self, task_names: str, name: str, change: str) -> None:
        warning = f"{task_names}: {name}"
        if warning not in self._logged and len(self._logged) < LOGGED_LIMIT:
            self._logged.add(warning)
            action = "no action is taken" if name in HARMLESS else "the process will be replaced"
            extra = event("leak_found", task=task_names, leak=name)
            logger.warning("task %s leaked: %s %s; %s", task_names, name, change, action, extra=extra)


def _listed(names: set[str]) -> str:
    few = sorted(names)[:NAMES_LOGGED]
    return " or ".join(few) + (" or another task" if len(names) > NAMES_LOGGED else "")
