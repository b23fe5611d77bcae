"""What a worker process writes when it ends: jobs that it releases, and that it has stopped.

`Child` calls this in the main thread. A failure to write is no error here, because the supervisor settles what a
process leaves open.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from django_pgqueue import lifecycle
from django_pgqueue.db import told, wake_workers

from .events import Events
from .giving import give_back
from .hand import Hand
from .link import Link
from .notes import Notes

logger = logging.getLogger("django_pgqueue.worker")


class LastWrites:
    """Those of one worker process, on a connection of their own."""

    def __init__(self, link: Link, hand: Hand, notes: Notes, events: Events, worker_id: int) -> None:
        self.link = link
        self.hand = hand
        self.notes = notes
        self.events = events
        self.worker_id = worker_id

    def release_waiting(self) -> None:
        """Release the jobs that no slot has started."""
        self._release(self.hand.take_waiting())

    def release_running(self, interrupted: int) -> None:
        """Release what still runs, so that it is free for others before this process has ended; wake the others.

        Also what waits: a claim whose answer came late. `interrupted`: how many jobs others can take by now.
        """
        running = [one.claimed for one in list(self.hand.running.values())]
        if running:
            self._write_progress()
        left = [*running, *self.hand.take_waiting()]
        if left:
            self._release(left)
        elif interrupted:
            with suppress(psycopg.Error, OSError), self.link.use() as connection:
                wake_workers(connection)

    def unregister(self) -> None:
        """Record that this worker has stopped."""
        try:
            with self.link.use() as connection:
                lifecycle.unregister_worker(connection, self.worker_id)
        except (psycopg.Error, OSError):
            logger.debug("the end of worker %s is not recorded", self.worker_id, exc_info=True)

    def _write_progress(self) -> None:
        """Write how far the jobs are, before their executions are closed."""
        with suppress(psycopg.Error, OSError), self.link.use() as connection:
            self.notes.write(connection)

    def _release(self, jobs: Sequence[lifecycle.Claimed]) -> None:
        try:
            with self.link.use() as connection:
                give_back(connection, jobs, self.events)
        except (psycopg.Error, OSError) as error:
            logger.warning("%d jobs could not be given back (%s): the supervisor will", len(jobs), told(error))
