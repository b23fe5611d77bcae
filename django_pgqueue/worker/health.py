"""The health file: what a worker says of itself to whoever watches its host. `django_pgqueue.health` reads it.

The supervisor's main thread may wait long for the database, and longest for a name server, so a thread of its own
writes; from memory alone, no statement is sent for it. It pauses while the supervisor forks: a process is not forked
safely from one with threads. It stops when the main thread has not come round for five minutes, so that the file grows
old, and whoever watches ends the worker.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, Final

from django_pgqueue.conf import get_settings

from .leases import Process
from .pulse import pulse
from .trouble import trouble

logger = logging.getLogger("django_pgqueue.worker")

INTERVAL_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 300.0
COMPLETIONS_STUCK_SECONDS: Final = 2.0
"""For how long a process may be unable to write the ends of its jobs before the status says so."""


class HealthFile:
    """Written once a second from `start()` to `close()`, whole each time. Without a path it does nothing."""

    def __init__(self, path: str | None, processes: Mapping[int, Process], is_stopping: Callable[[], bool]) -> None:
        self.path = path
        self.processes = processes
        self.is_stopping = is_stopping
        self._status = ""
        self._since = ""
        self._turned_at = time.monotonic()
        self._pausing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Write it from now on."""
        if self.path is not None:
            self._go_on()

    def turned(self) -> None:
        """Take note that the supervisor's main thread has come round."""
        self._turned_at = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have no thread in here; in a process forked inside, there is none afterwards either."""
        pid = os.getpid()
        was_running = self._halt()
        try:
            yield
        finally:
            if was_running and os.getpid() == pid:
                self._go_on()

    def close(self) -> None:
        """Write no more, and remove the file: there is no worker."""
        self._halt()
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)

    def write(self) -> None:
        """Replace the file by a new one."""
        if self.path is None:
            return
        unfinished = f"{self.path}.{os.getpid()}"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(self.report(), file, indent=1)
        os.replace(unfinished, self.path)

    def report(self) -> dict[str, Any]:
        """Return what is to be told."""
        processes = list(self.processes.values())
        status = self._status_of(processes)
        if status != self._status:
            self._status, self._since = status, datetime.now(UTC).isoformat(timespec="seconds")
        return {
            "status": status,
            "since": self._since,
            "pid": os.getpid(),
            "errors": pulse.errors,
            "processes": [_about(process) for process in processes],
        }

    def _status_of(self, processes: list[Process]) -> str:
        if self.is_stopping():
            return "stopping"
        if any(_completions_are_stuck(process) for process in processes):
            return "completions stuck"
        if trouble.since:
            return "database away"
        if not any(process.pulse.ages_seconds["claim"] is not None for process in processes):
            return "waiting"
        return "ok"

    def _halt(self) -> bool:
        """End the thread; say whether there was one."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._pausing.set()
        thread.join()
        return True

    def _go_on(self) -> None:
        self._pausing.clear()
        self._thread = threading.Thread(target=self._write_on, name="pgqueue-health", daemon=True)
        self._thread.start()

    def _write_on(self) -> None:
        while not self._pausing.wait(INTERVAL_SECONDS):
            if time.monotonic() - self._turned_at > STUCK_SECONDS:
                continue
            try:
                self.write()
            except OSError as error:
                if trouble.may_speak():
                    logger.warning("the health file cannot be written: %s", error)


def _completions_are_stuck(process: Process) -> bool:
    """Whether a process cannot write the ends of jobs, although the database has answered others since."""
    behind_seconds = process.pulse.completions_behind_seconds
    if behind_seconds is None or behind_seconds < COMPLETIONS_STUCK_SECONDS:
        return False
    beat_age_seconds = get_settings().LEASE - process.board.lease_left_seconds
    rescue_age_seconds = process.pulse.ages_seconds["rescue"]
    answer_age_seconds = min(beat_age_seconds, float("inf") if rescue_age_seconds is None else rescue_age_seconds)
    return answer_age_seconds < behind_seconds - 1.0


def _about(process: Process) -> dict[str, Any]:
    ages = process.pulse.ages_seconds.items()
    behind_seconds = process.pulse.completions_behind_seconds
    return {
        "pid": process.pid,
        "worker_id": process.worker_id,
        "lease_left_seconds": round(process.board.lease_left_seconds, 1),
        "running": len(process.board.running()),
        **{f"{turn}_age_seconds": None if seconds is None else round(seconds, 1) for turn, seconds in ages},
        "completions_behind_seconds": None if behind_seconds is None else round(behind_seconds, 1),
        "errors": process.pulse.errors,
    }
