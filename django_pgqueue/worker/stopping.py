"""End the jobs that still run after the grace period of a stopping worker process.

`WorkerProcess` calls this in the process's main thread, when no slot starts another job. Afterwards it releases the
remaining jobs.

The invariant is that no job runs in two processes at once. Once a running job is released, another worker may start it
while it still runs here. So the order is:

1. The completer writes the completions of jobs that ended in time.
2. Running jobs are interrupted, and the completer writes that they were released.
3. Directly before the exit, `WorkerProcess` releases the jobs that did not stop, by `LastWrites`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import psycopg

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.plurals import are, counted
from django_pgqueue.lifecycle import workers
from django_pgqueue.lifecycle.types import Claimed
from django_pgqueue.reactions import Reactions
from django_pgqueue.worker.completion.attempt_counter import AttemptCounter
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.progress_writer import Notes
from django_pgqueue.worker.completion.writer import release_executions
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.slots.inflight import InFlight
from django_pgqueue.worker.slots.pool import Pool

logger = logging.getLogger("django_pgqueue.worker")

LIMIT_SECONDS: Final = 8.0
"""Limit for all steps. The supervisor kills the process 12 s after the grace period, and the release needs time too."""
FIRST_WRITE_SECONDS: Final = 3.0
"""Time that the completer gets for jobs that ended in time, before the other jobs are interrupted."""
CLEAN_UP_SECONDS: Final = 1.0
"""Time that interrupted jobs get to end."""
HURRIED_CLEAN_UP_SECONDS: Final = 0.2
"""The same after a second signal, which asks for an exit within half a second."""
TURN_SECONDS: Final = 0.002


def end_running_jobs(
    in_flight: InFlight, pool: Pool, completer: Completer, *, hurried: bool, lease_left_seconds: float
) -> None:
    """Wait until all completions are written, and interrupt the jobs that still run.

    This takes at most 8 s, and no longer than the leases last.
    """
    deadline = time.monotonic() + max(1.0, min(LIMIT_SECONDS, lease_left_seconds))
    running = list(in_flight.running)
    if running:
        _empty(completer, min(deadline, time.monotonic() + FIRST_WRITE_SECONDS))
        running = list(in_flight.running)
    if running:
        extra = event("jobs_interrupted", count=len(running))
        number = len(running)
        text = "%s %s still running after the grace period and released"
        logger.warning(text, counted(number), are(number), extra=extra)
        clean_up_seconds = HURRIED_CLEAN_UP_SECONDS if hurried else CLEAN_UP_SECONDS
        _interrupt(in_flight, pool, min(deadline, time.monotonic() + clean_up_seconds))
    pool.stop()
    _empty(completer, deadline)


def _interrupt(in_flight: InFlight, pool: Pool, deadline: float) -> None:
    for entry in list(in_flight.running.values()):
        if time.monotonic() < deadline:
            pool.interrupt([job.execution_id for job in entry.claimed.members])
    _wait(lambda: not in_flight.running, deadline)


def _empty(completer: Completer, deadline: float) -> None:
    def is_empty() -> bool:
        completer.wake()
        return not len(completer)

    _wait(is_empty, deadline)


def _wait(condition: Callable[[], bool], deadline: float) -> None:
    while not condition() and time.monotonic() < deadline:
        time.sleep(TURN_SECONDS)


@dataclass(frozen=True, eq=False, repr=False)
class LastWrites:
    """The last writes of one worker process, on a connection of their own.

    A failure to write is not an error here, because the supervisor closes the executions that a process leaves open.
    """

    link: ConnectionSource
    in_flight: InFlight
    notes: Notes
    reactions: Reactions
    worker_id: int
    counter: AttemptCounter | None

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
                "%s could not be released (%s): the supervisor will do it",
                counted(len(jobs)),
                message_without_detail(error),
                extra=event("jobs_not_released", count=len(jobs)),
            )
