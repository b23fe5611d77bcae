"""Write the last changes of a worker process that ends: release its jobs and unregister the worker.

`WorkerProcess` calls this in the main thread. A failure to write is not an error here, because the supervisor closes
the executions that a process leaves open.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress

import psycopg

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import workers
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.completion.attempt_counter import AttemptCounter
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.slots.inflight import InFlight

logger = logging.getLogger("django_pgqueue.worker")


class LastWrites:
    """The last writes of one worker process, on a connection of their own."""

    def __init__(
        self,
        link: ConnectionSource,
        in_flight: InFlight,
        notes: Notes,
        reactions: Reactions,
        worker_id: int,
        counter: AttemptCounter | None,
    ) -> None:
        self.link = link
        self.in_flight = in_flight
        self.notes = notes
        self.reactions = reactions
        self.worker_id = worker_id
        self.counter = counter

    def release_waiting(self) -> None:
        """Release the prefetched jobs."""
        self._release(self.in_flight.take_waiting())

    def release_running(self) -> None:
        """Release the jobs that still run, so that other workers can claim them at once, and wake those workers.

        Prefetched jobs are released too, because the answer to a claim may have arrived late.
        """
        running = [job for entry in list(self.in_flight.running.values()) for job in entry.claimed.members]
        if running:
            self._write_progress()
        self._release([*running, *self.in_flight.take_waiting()])

    def write_counts(self) -> None:
        """Write how many attempts ended since the last write. Attempts that end later are not counted."""
        if not self.counter:
            return
        try:
            with self.link.use() as connection:
                self.counter.write(connection)
        except (psycopg.Error, OSError):
            logger.debug("could not write the counts of the last seconds", exc_info=True)

    def unregister(self) -> None:
        """Record that this worker has stopped."""
        try:
            with self.link.use() as connection:
                workers.unregister_worker(connection, self.worker_id)
        except (psycopg.Error, OSError):
            logger.debug("could not record that worker %s has stopped", self.worker_id, exc_info=True)

    def _write_progress(self) -> None:
        """Write the progress of the jobs before their executions are closed."""
        with suppress(psycopg.Error, OSError), self.link.use() as connection:
            self.notes.write(connection)

    def _release(self, jobs: Sequence[Claimed]) -> None:
        if not jobs:
            return
        try:
            with self.link.use() as connection:
                release_executions(connection, jobs, self.reactions)
        except (psycopg.Error, OSError) as error:
            logger.warning(
                "%d jobs could not be released (%s); the supervisor will release them",
                len(jobs),
                message_without_detail(error),
                extra=event("jobs_not_released", count=len(jobs)),
            )
