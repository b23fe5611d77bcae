"""Run one job in the foreground for `manage.py pgqueue run`, under a lease that a thread of its own extends.

The lease lasts while the job runs, however long that takes, so no worker rescues the job while its developer sits at a
debugger's prompt.
"""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple

from django_pgqueue.lifecycle import leases, workers
from django_pgqueue.settings.conf import get_settings

from .completion.progress_writer import Notes
from .execution.report import Report
from .foreground import attempt, write
from .foreground_claim import claim
from .options import Options
from .runtime.connection import Link
from .runtime.service import Service
from .supervision.heartbeat import register

CANCEL_POLL_SECONDS: Final = 1.0
"""How often the heartbeat thread asks whether the job is to be cancelled."""


class ForegroundHeartbeat(Service):
    """Extends the lease while the job runs, writes its progress, and polls for a request to cancel it.

    The task asks for such a request itself. No exception is raised in its thread, because that thread is the caller's.
    """

    def __init__(self, link: Link, worker_id: int) -> None:
        super().__init__("heartbeat")
        self.link = link
        self.worker_id = worker_id
        self.notes = Notes(self.wake)
        self.is_asked = False
        """Whether the job is to be cancelled."""
        self._due_at = 0.0

    def tick(self) -> float:
        """Write progress and send a heartbeat if they are due, and poll for a request to cancel."""
        with self.link.use() as connection:
            if not self.notes.due_in_seconds:
                self.notes.write(connection)
            if time.monotonic() >= self._due_at:
                leases.extend(connection, [self.worker_id], lease_seconds=get_settings().LEASE)
                self._due_at = time.monotonic() + get_settings().heartbeat_seconds
            self.is_asked = self.is_asked or bool(leases.cancel_requests(connection, [self.worker_id]))
        return min(CANCEL_POLL_SECONDS, self.notes.due_in_seconds, max(0.0, self._due_at - time.monotonic()))


class ForegroundRun(NamedTuple):
    """The report of a job that ran. If its limit does not admit it, `reason` says why."""

    report: Report | None
    reason: str = ""


def run_one(alias: str, job_id: int, release: str = "") -> ForegroundRun:
    """Run a ready job in this thread, due or not, and write its result. There is no report if it was not claimed.

    The task's timeout and isolation do not apply.
    """
    link, heartbeat_link = Link(alias, "foreground"), Link(alias, "foreground")
    with link.use() as connection:
        options = Options(database=alias, queue_names=(f"job {job_id}",), concurrency=1, release=release)
        worker_id = register(connection, options, os.getpid())
    heartbeat = ForegroundHeartbeat(heartbeat_link, worker_id)
    heartbeat.start()
    try:
        return _run(link, worker_id, job_id, heartbeat)
    finally:
        heartbeat.stop()
        heartbeat.join()
        with link.use() as connection:
            workers.unregister_worker(connection, worker_id)
        link.close()
        heartbeat_link.close()


def _run(link: Link, worker_id: int, job_id: int, heartbeat: ForegroundHeartbeat) -> ForegroundRun:
    """Claim the job, run it, and write its result.

    The writes use a connection of their own, because the task may leave its connection in an open transaction.
    """
    with link.use() as connection:
        claimed, reason = claim(connection, job_id, worker_id=worker_id)
    if claimed is None:
        return ForegroundRun(None, reason)
    report = attempt(link.alias, claimed, heartbeat.notes, lambda: heartbeat.is_asked)
    heartbeat.stop()  # the lease lasts for the write; progress that the thread wrote after the result would be lost
    heartbeat.join()
    with link.use() as connection:
        write(connection, report, heartbeat.notes)
    return ForegroundRun(report)
