"""Detect leaks: changes that a job makes to its whole process and does not undo, such as another working directory.

`WorkerProcess` checks once a second. A leak is never undone, because other running jobs may depend on it; the process
is replaced instead. A change counts as a leak when all the jobs that ran when it was first seen have ended. Until then
it may be temporary, as in `override_settings`. A check costs 0.2 ms, and nothing while no job runs.
"""

from __future__ import annotations

import asyncio
import hashlib
import locale
import logging
import mmap
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from django.conf import settings

from django_pgqueue.worker.runtime.outages import outage_log

from .inflight import InFlight

logger = logging.getLogger("django_pgqueue.worker")

MORE_FILES: Final = 256
MORE_THREADS: Final = 64
MORE_SUBTASKS: Final = 256
"""How many more than at the start count as a leak. A library may use a few of its own."""
YOUNG_SECONDS: Final = 5.0
"""A process is not replaced before this age. Otherwise tasks that always leak would keep the worker from working."""
ENVIRONMENT: Final = "environment variables"
NAMES_LOGGED: Final = 3
HARMLESS: Final = frozenset({ENVIRONMENT})
"""Leaks that are logged but do not replace the process: libraries set some of these when they are first imported."""


class WarnOnce:
    """Warnings that the processes of a worker have already logged, in memory that is allocated before they are forked.

    When the memory is full, new warnings are not logged.
    """

    ENTRY: Final = struct.Struct("=Q")

    def __init__(self, entries: int = 512) -> None:
        self._entries = entries
        self._memory = mmap.mmap(-1, entries * self.ENTRY.size)

    def is_new(self, text: str) -> bool:
        """Record a warning. Return whether no process has logged it yet."""
        digest = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") or 1
        for offset in range(0, self._entries * self.ENTRY.size, self.ENTRY.size):
            [entry] = self.ENTRY.unpack_from(self._memory, offset)
            if entry == digest:
                return False
            if not entry:
                self.ENTRY.pack_into(self._memory, offset, digest)
                return True
        return False


warn_once: Final = WarnOnce()


class Suspicion(NamedTuple):
    """A difference from the state at the start, as it was first seen."""

    running: frozenset[int]
    """The executions that ran then. Until they have ended, the change may be temporary."""
    task_names: str
    """The tasks of those executions, and of the jobs that had ended since the previous check."""


class LeakDetector:
    """Compare the state of the process with its state at the start."""

    def __init__(self, in_flight: InFlight, loop: asyncio.AbstractEventLoop) -> None:
        self.in_flight = in_flight
        self.loop = loop
        self._born_at = time.monotonic()
        self._at_start = surroundings()
        self._files, self._threads = open_files(), threading.active_count() + in_flight.capacity
        self._suspicions: dict[str, Suspicion] = {}

    def calls_for_another_process(self) -> bool:
        """Check for leaks and log each once per task. Return whether the process should be replaced."""
        if not self.in_flight.lately and not self.in_flight.running and not self._suspicions:
            return False
        try:
            return self._check()
        except Exception:  # a failed check must not end the process
            if outage_log.may_speak():
                logger.exception("the check for leaks failed")
            return False

    def _check(self) -> bool:
        now = surroundings()
        leaked = self._leaked(self._differences(now))
        if ENVIRONMENT in leaked:
            self._at_start[ENVIRONMENT] = now[ENVIRONMENT]
        return bool(leaked - HARMLESS) and time.monotonic() - self._born_at > YOUNG_SECONDS

    def _leaked(self, found: Mapping[str, str]) -> set[str]:
        """Return the names of those differences that no running job can still undo."""
        ended, self.in_flight.lately = self.in_flight.lately, set()
        running = {key: entry.claimed.task_name for key, entry in list(self.in_flight.running.items())}
        new = Suspicion(frozenset(running), _listed(ended | set(running.values())))
        self._suspicions = {name: self._suspicions.get(name, new) for name in found}
        leaks = {name: seen for name, seen in self._suspicions.items() if not seen.running & set(running)}
        for name, suspicion in leaks.items():
            _log_leak(suspicion.task_names, name, found[name])
        return set(leaks)

    def _differences(self, now: Mapping[str, Any]) -> dict[str, str]:
        found = {name: _change(before, now[name]) for name, before in self._at_start.items() if now[name] != before}
        counts = (
            ("open files", open_files() - self._files, MORE_FILES + 2 * self.in_flight.capacity),
            ("threads", threading.active_count() - self._threads, MORE_THREADS),
            ("tasks on the event loop", len(asyncio.all_tasks(self.loop)) - len(self.in_flight.running), MORE_SUBTASKS),
        )
        return found | {name: f"({more} more than at the start)" for name, more, limit in counts if more > limit}


def _listed(names: set[str]) -> str:
    few = sorted(names)[:NAMES_LOGGED]
    return " or ".join(few) + (" or another task" if len(names) > NAMES_LOGGED else "")


def _log_leak(task_names: str, name: str, change: str) -> None:
    if warn_once.is_new(f"{task_names}: {name}"):
        action = "no action is taken" if name in HARMLESS else "the process will be replaced"
        logger.warning("task %s leaked: %s %s; %s", task_names, name, change, action)


def surroundings() -> dict[str, Any]:
    """Return the state that all threads of the process share, by name. The values are compared and not all logged."""
    return {
        "the working directory": _or_none(os.getcwd),
        "the umask": _umask(),
        "the recursion limit": sys.getrecursionlimit(),
        "the locale": locale.setlocale(locale.LC_ALL),
        "the default timeout of sockets": socket.getdefaulttimeout(),
        "the standard output": (id(sys.stdout), sys.stdout is None or sys.stdout.closed),
        "the standard error": (id(sys.stderr), sys.stderr is None or sys.stderr.closed),
        "Django's settings": _Named(vars(vars(settings)["_wrapped"])),
        ENVIRONMENT: _Named(os.environ),
    }


class _Named:
    """Named values of which only the names may be logged. Values are compared by identity or equality."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # never used as a key

    def names_that_differ(self, other: _Named) -> str:
        names = self._values.keys() | other._values.keys()
        missing = object()
        return ", ".join(
            sorted(name for name in names if self._values.get(name, missing) != other._values.get(name, missing))
        )


def _change(before: Any, now: Any) -> str:
    if isinstance(before, _Named):
        return f"({before.names_that_differ(now)})"
    return "(closed or replaced)" if isinstance(before, tuple) else f"({before!r}, now {now!r})"


def _or_none(call: Callable[[], str]) -> str | None:
    try:
        return call()
    except OSError:  # the directory is gone
        return None


def _umask() -> str | None:
    """Return the umask from /proc, None without it. The system call that reads it also changes it for all threads."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((line.split()[1] for line in status if line.startswith("Umask:")), None)
    except OSError:
        return None


def open_files() -> int:
    """Return how many files this process has open; 0 on a system without /proc."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
