"""Write the last changes of a worker process that ends: release its jobs and unregister the worker.

`WorkerProcess` calls this in the main thread. A failure to write is not an error here, because the supervisor closes
the executions that a process leaves open.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from django_pgqueue import lifecycle
from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.db.notifications import wake_workers
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.slots.inflight import InFlight

from .events import Events
from .progress_writer import Notes
from .release import give_back

logger = logging.getLogger("django_pgqueue.worker")


class LastWrites:
    """The last writes of one worker process, on a connection of their own."""

    def __init__(self, link: Link, in_flight: InFlight, notes: Notes, events: Events, worker_id: int) -> None:
        self.link = link
        self.in_flight = in_flight
        self.notes = notes
        self.events = events
        self.worker_id = worker_id

    def release_waiting(self) -> None:
        """Release the prefetched jobs."""
        self._release(self.in_flight.take_waiting())

    def release_running(self, interrupted: int) -> None:
        """Release the jobs that still run, so that other workers can claim them at once, and wake those workers.

        Prefetched jobs are released too, because the answer to a claim may have arrived late. `interrupted` is the
        number of jobs that were interrupted before; if it is not 0, the other workers are woken for them.
        """
        running = [entry.claimed for entry in list(self.in_flight.running.values())]
        if running:
            self._write_progress()
        left = [*running, *self.in_flight.take_waiting()]
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
            logger.debug("could not record that worker %s has stopped", self.worker_id, exc_info=True)

    def _write_progress(self) -> None:
        """Write the progress of the jobs before their executions are closed."""
        with suppress(psycopg.Error, OSError), self.link.use() as connection:
            self.notes.write(connection)

    def _release(self, jobs: Sequence[lifecycle.Claimed]) -> None:
        try:
            with self.link.use() as connection:
                give_back(connection, jobs, self.events)
        except (psycopg.Error, OSError) as error:
            logger.warning(
                "%d jobs could not be released (%s); the supervisor will release them",
                len(jobs),
                message_without_detail(error),
            )
