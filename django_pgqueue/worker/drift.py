"""What a job changes for its whole process: noticed once a second, never undone, and cured by a new process.

Undoing it would pull the ground from under jobs that run beside. A change counts as left behind when all the jobs that
ran as it was first seen have ended: until then it may be for a while only, as in `override_settings`. What is looked at
costs 0.2 ms a second, and nothing while no job runs.
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

from .hand import Hand
from .trouble import trouble

logger = logging.getLogger("django_pgqueue.worker")

MORE_FILES: Final = 256
MORE_THREADS: Final = 64
MORE_SUBTASKS: Final = 256
"""How many more than at the start are a leak, and not a library's own."""
YOUNG_SECONDS: Final = 5.0
"""A process is not replaced before this age: tasks that always leave something behind must not keep it from work."""
ENVIRONMENT: Final = "environment variables"
NAMES_TOLD: Final = 3
HARMLESS: Final = frozenset({ENVIRONMENT})
"""Told, and no reason to replace a process: libraries set some when they are first imported."""


class Told:
    """What all processes of a worker have said already; memory made before they are forked. A full one says no more."""

    WORD: Final = struct.Struct("=Q")

    def __init__(self, words: int = 512) -> None:
        self._words = words
        self._memory = mmap.mmap(-1, words * self.WORD.size)

    def is_new(self, text: str) -> bool:
        """Take note of a text; say whether it is one that nobody has said."""
        own = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") or 1
        for place in range(0, self._words * self.WORD.size, self.WORD.size):
            [word] = self.WORD.unpack_from(self._memory, place)
            if word == own:
                return False
            if not word:
                self.WORD.pack_into(self._memory, place, own)
                return True
        return False


told: Final = Told()


class Suspicion(NamedTuple):
    """A difference, since it was first seen."""

    running: frozenset[int]
    """The executions that ran then: until they have ended, it may be for a while only."""
    task_names: str
    """The tasks of those, and of the jobs that had ended since the look before."""


class Drift:
    """Compares the process with what it was."""

    def __init__(self, hand: Hand, loop: asyncio.AbstractEventLoop) -> None:
        self.hand = hand
        self.loop = loop
        self._born_at = time.monotonic()
        self._home = surroundings()
        self._files, self._threads = open_files(), threading.active_count() + hand.capacity
        self._suspicions: dict[str, Suspicion] = {}

    def calls_for_another_process(self) -> bool:
        """Look; log what jobs have left behind, once for each task; say whether it is worth a new process."""
        if not self.hand.lately and not self.hand.running and not self._suspicions:
            return False
        try:
            return self._look()
        except Exception:  # to look must not be what ends a process
            if trouble.may_speak():
                logger.exception("looking for what jobs left behind")
            return False

    def _look(self) -> bool:
        now = surroundings()
        left_behind = self._left_behind(self._differences(now))
        if ENVIRONMENT in left_behind:
            self._home[ENVIRONMENT] = now[ENVIRONMENT]
        return bool(left_behind - HARMLESS) and time.monotonic() - self._born_at > YOUNG_SECONDS

    def _left_behind(self, found: Mapping[str, str]) -> set[str]:
        """Return what of these differences no running job can be about to take back."""
        ended, self.hand.lately = self.hand.lately, set()
        running = {key: one.claimed.task_name for key, one in list(self.hand.running.items())}
        new = Suspicion(frozenset(running), _listed(ended | set(running.values())))
        self._suspicions = {what: self._suspicions.get(what, new) for what in found}
        sure = {what: one for what, one in self._suspicions.items() if not one.running & set(running)}
        for what, suspicion in sure.items():
            _tell(suspicion.task_names, what, found[what])
        return set(sure)

    def _differences(self, now: Mapping[str, Any]) -> dict[str, str]:
        found = {what: _how(before, now[what]) for what, before in self._home.items() if now[what] != before}
        counts = (
            ("open files", open_files() - self._files, MORE_FILES + 2 * self.hand.capacity),
            ("threads", threading.active_count() - self._threads, MORE_THREADS),
            ("tasks on the event loop", len(asyncio.all_tasks(self.loop)) - len(self.hand.running), MORE_SUBTASKS),
        )
        return found | {what: f"({more} more than at the start)" for what, more, limit in counts if more > limit}


def _listed(names: set[str]) -> str:
    few = sorted(names)[:NAMES_TOLD]
    return " or ".join(few) + (" or another" if len(names) > NAMES_TOLD else "")


def _tell(task_names: str, what: str, how: str) -> None:
    if told.is_new(f"{task_names}: {what}"):
        cure = "nothing is done about it" if what in HARMLESS else "the process is to be replaced"
        logger.warning("task %s left behind: %s %s; %s", task_names, what, how, cure)


def surroundings() -> dict[str, Any]:
    """Return what a process shares among all its threads, by name; what is compared, not what is told."""
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
    """Named values, of which only the names may be told. Values are compared by identity or equality."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Named) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # never a key

    def names_that_differ(self, other: _Named) -> str:
        names = self._values.keys() | other._values.keys()
        missing = object()
        return ", ".join(
            sorted(name for name in names if self._values.get(name, missing) != other._values.get(name, missing))
        )


def _how(before: Any, now: Any) -> str:
    if isinstance(before, _Named):
        return f"({before.names_that_differ(now)})"
    return "(closed, or another)" if isinstance(before, tuple) else f"({before!r}, now {now!r})"


def _or_none(call: Callable[[], str]) -> str | None:
    try:
        return call()
    except OSError:  # the directory is gone
        return None


def _umask() -> str | None:
    """Return the umask, where /proc tells; to ask the system for it is to change it, for other threads too."""
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as status:
            return next((line.split()[1] for line in status if line.startswith("Umask:")), None)
    except OSError:
        return None


def open_files() -> int:
    """Return how many files this process has open; 0 where /proc does not tell."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0
