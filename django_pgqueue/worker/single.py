"""`manage.py pgqueue run`: one job in the foreground, with a lease of its own that is kept alive."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings

from .foreground import attempt, write
from .link import Link
from .notes import Notes
from .options import Options
from .registration import register
from .service import Service

if TYPE_CHECKING:
    from .report import Report


LOOK_SECONDS: Final = 1.0
"""Between two looks whether somebody wants the job cancelled."""


class Beat(Service):
    """Extends the lease while the job runs, also while somebody thinks at a debugger's prompt; writes how far it is.

    Hears that the job is to be cancelled, for its task to ask. Nothing is thrown: this thread is its caller's.
    """

    def __init__(self, link: Link, worker_id: int) -> None:
        super().__init__("beat")
        self.link = link
        self.worker_id = worker_id
        self.notes = Notes(self.wake)
        self.is_asked = False
        self._due_at = 0.0

    def tick(self) -> float:
        """Extend, and be seen, if a beat is due; write the progress, if that is."""
        with self.link.use() as connection:
            if not self.notes.due_in_seconds:
                self.notes.write(connection)
            if time.monotonic() >= self._due_at:
                lifecycle.extend(connection, [self.worker_id], lease_seconds=get_settings().LEASE)
                lifecycle.beat_workers(connection, [self.worker_id])
                self._due_at = time.monotonic() + get_settings().beat_seconds
            self.is_asked = self.is_asked or bool(lifecycle.cancel_requests(connection, [self.worker_id]))
        return min(LOOK_SECONDS, self.notes.due_in_seconds, max(0.0, self._due_at - time.monotonic()))


def run_one(alias: str, job_id: int) -> Report | None:
    """Run a ready job in this thread, due or not, and write how it ended; None if it could not be had.

    Neither its timeout nor isolation is applied.
    """
    link, beats = Link(alias, "foreground"), Link(alias, "foreground")
    with link.use() as connection:
        options = Options(database=alias, queue_names=(f"job {job_id}",), concurrency=1)
        worker_id = register(connection, options, os.getpid())
    beat = Beat(beats, worker_id)
    beat.start()
    try:
        return _run(link, worker_id, job_id, beat)
    finally:
        beat.stop()
        beat.join()
        with link.use() as connection:
            lifecycle.unregister_worker(connection, worker_id)
        link.close()
        beats.close()


def _run(link: Link, worker_id: int, job_id: int, beat: Beat) -> Report | None:
    """Claim, run and finish; not on the task's connection, which the task may leave in a transaction."""
    with link.use() as connection:
        claimed = lifecycle.claim_one(connection, job_id, worker_id=worker_id, lease_seconds=get_settings().LEASE)
    if claimed is None:
        return None
    report = attempt(link.alias, claimed, beat.notes, lambda: beat.is_asked)
    with link.use() as connection:
        write(connection, report, beat.notes)
    return report
