"""Write the health file, in which a worker reports its state to a container platform or monitoring system.

`django_pgqueue.health` reads the file. The supervisor creates one `HealthFile`.

The supervisor's main thread may wait long for the database, and even longer for a name server. A separate thread
therefore writes the file. It reads memory only and sends no statements. The thread pauses while the supervisor forks,
because forking a process that has threads is unsafe. It stops writing when the main thread has not finished a round
for five minutes: the file then becomes stale, and the platform restarts the worker.
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
from django_pgqueue.log_events import event
from django_pgqueue.worker.runtime.clone_guard import clone_guard
from django_pgqueue.worker.runtime.health_memory import health_memory
from django_pgqueue.worker.runtime.outages import outage_log

from .heartbeat import ChildProcess

logger = logging.getLogger("django_pgqueue.worker")

INTERVAL_SECONDS: Final = 1.0
STUCK_SECONDS: Final = 300.0
"""How long the main thread may take for one round before the file is no longer written."""
COMPLETIONS_STUCK_SECONDS: Final = 2.0
"""How long a process may be unable to write the results of its jobs before the status reports it."""


class HealthFile:
    """The health file of one worker, replaced once a second from `start()` to `close()`.

    Each write replaces the whole file atomically. Without a path the object does nothing.
    """

    def __init__(
        self, path: str | None, processes: Mapping[int, ChildProcess], is_stopping: Callable[[], bool]
    ) -> None:
        self.path = path
        self.processes = processes
        self.is_stopping = is_stopping
        self._status = ""
        self._since = ""
        self._round_finished_at = time.monotonic()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that writes the file, if there is a path."""
        if self.path is not None:
            self._stopping.clear()
            self._thread = threading.Thread(target=self._write_repeatedly, name="pgqueue-health", daemon=True)
            self._thread.start()

    def round_finished(self) -> None:
        """Record that the supervisor's main thread has finished a round. Without this the file becomes stale."""
        self._round_finished_at = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the thread inside the block. A process forked there does not start it again; the supervisor does."""
        pid = os.getpid()
        was_running = self._stop_thread()
        try:
            yield
        finally:
            if was_running and os.getpid() == pid:
                self.start()

    def close(self) -> None:
        """Stop writing, and remove the file, so that it does not report a worker that has ended."""
        self._stop_thread()
        if self.path is not None:
            with suppress(OSError):
                os.unlink(self.path)

    def write(self) -> None:
        """Replace the file. The rename is atomic, so a reader never sees a partial file."""
        if self.path is None:
            return
        unfinished = f"{self.path}.{os.getpid()}"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump(self.report(), file, indent=1)
        os.replace(unfinished, self.path)

    def report(self) -> dict[str, Any]:
        """Return the content of the file."""
        processes = list(self.processes.values())
        status = self._status_of(processes)
        if status != self._status:
            self._status, self._since = status, datetime.now(UTC).isoformat(timespec="seconds")
        return {
            "status": status,
            "since": self._since,
            "pid": os.getpid(),
            "errors": health_memory.errors,
            "processes": [_process_report(process) for process in processes],
        }

    def _status_of(self, processes: list[ChildProcess]) -> str:
        if self.is_stopping():
            return "stopping"
        if clone_guard.is_foreign:
            return "foreign database"
        if any(_completions_are_stuck(process) for process in processes):
            return "completions stuck"
        if health_memory.outage_since or any(process.health_memory.outage_since for process in processes):
            return "database away"
        if not any(process.health_memory.ages_seconds["claim"] is not None for process in processes):
            return "waiting"
        return "ok"

    def _stop_thread(self) -> bool:
        """Stop the thread; return whether there was one."""
        thread, self._thread = self._thread, None
        if thread is None:
            return False
        self._stopping.set()
        thread.join()
        return True

    def _write_repeatedly(self) -> None:
        while not self._stopping.wait(INTERVAL_SECONDS):
            if time.monotonic() - self._round_finished_at > STUCK_SECONDS:
                continue
            try:
                self.write()
            except OSError as error:
                if outage_log.may_log():
                    logger.warning("could not write the health file: %s", error, extra=event("health_file_failed"))


def _completions_are_stuck(process: ChildProcess) -> bool:
    """Return whether a process cannot write results although the database has answered other statements since.

    If the database has answered nothing since, this is an outage, which has a status of its own.
    """
    behind_seconds = process.health_memory.completions_behind_seconds
    if behind_seconds is None or behind_seconds < COMPLETIONS_STUCK_SECONDS:
        return False
    heartbeat_age_seconds = get_settings().LEASE - process.state.lease_left_seconds
    rescue_age_seconds = process.health_memory.ages_seconds["rescue"]
    answer_age_seconds = min(heartbeat_age_seconds, float("inf") if rescue_age_seconds is None else rescue_age_seconds)
    return answer_age_seconds < behind_seconds - 1.0


def _process_report(process: ChildProcess) -> dict[str, Any]:
    ages = process.health_memory.ages_seconds.items()
    behind_seconds = process.health_memory.completions_behind_seconds
    return {
        "pid": process.pid,
        "worker_id": process.worker_id,
        "lease_left_seconds": round(process.state.lease_left_seconds, 1),
        "running": len(process.state.running()),
        **{f"{statement}_age_seconds": None if seconds is None else round(seconds, 1) for statement, seconds in ages},
        "completions_behind_seconds": None if behind_seconds is None else round(behind_seconds, 1),
        "errors": process.health_memory.errors,
    }
