"""Close the executions that a worker process left open when it ended.

An execution that had started is charged with the crash. One that had not started is released without counting the
attempt. The supervisor calls `Settlement.tick()` once a round.

A settlement calls application code: backoff functions and signal receivers. The supervisor must not run it, because it
sends the heartbeats of all other worker processes. It therefore forks a process for each settlement. If that process
hangs or dies, the supervisor itself writes the rest, with the default backoff and without signals.
"""

from __future__ import annotations

import logging
import mmap
import os
import time
from collections.abc import Callable, MutableSequence, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

import psycopg

from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.errors import concerns_all_statements
from django_pgqueue.db.reconnects import is_lost_connection
from django_pgqueue.ends.end_checks import follow
from django_pgqueue.ground.log_events import event
from django_pgqueue.lifecycle import leases, workers
from django_pgqueue.reactions import AnyWaiters, JobTransition, Reactions
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.completion.attempt_counter import AttemptCounter
from django_pgqueue.worker.completion.breaker_counter import BreakerCounter
from django_pgqueue.worker.execution.job_events import Events, call_receivers
from django_pgqueue.worker.runtime.background_log import background_log
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.exit_functions import forget_inherited_processes, run_exit_functions
from django_pgqueue.worker.runtime.outages import outage_log

from .crash_charges import settle
from .heartbeat import ChildProcess
from .helper_process import Fork
from .watchdog import kill

logger = logging.getLogger("django_pgqueue.worker")

WRITE_SECONDS: Final = 3.0, 15.0
"""How long a settlement may take to write: half a lease, within this minimum and maximum."""
CALL_SECONDS: Final = 15.0
"""How long a settlement may take in total, including its signal receivers."""
RETRY_SECONDS: Final = 1.0
PROCESS_LIMIT: Final = 4
"""How many settlement processes may call receivers at a time. Only one of them writes."""
SOME_LEFT: Final = 3
"""Exit code: a row was locked, or the database was not available. The supervisor starts another settlement."""
NO_CONNECTION: Final = 4
"""Exit code: the process could not connect. The supervisor, which has a connection, then writes by itself."""
LOOK_AGAIN_SECONDS: Final = 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 32.0
"""When a worker process is looked at again, in seconds after its end. It may have sent a claim just before. The server
does not notice the end of its client before the statement is over, which takes 31 s at most, and then commits the
claim: after the settlement. Without another look, these jobs would wait until their leases expire."""
NAME: Final = b"pgqueue-requeue"
Callback = Callable[[], None]
WITHOUT_SIGNALS: Final = Reactions([Events(lambda *signal: None)], AnyWaiters(), counters=[counts])
"""The supervisor's own reactions: it logs, notifies and wakes, but calls no signal receivers. It leaves to the sweep
what follows the ends of jobs, because the heartbeats of other processes must not wait for it."""


@dataclass
class DeadProcesses:
    """The worker processes that one settlement process settles."""

    processes: list[ChildProcess]
    written: mmap.mmap
    """Shared memory with one byte per worker process: 1 if all of its executions are closed. An exit code would prove
    nothing, because a receiver may call `os._exit(0)`."""
    began_at: float = field(default_factory=time.monotonic)
    _taken: list[ChildProcess] = field(default_factory=list)

    def take_written(self) -> list[ChildProcess]:
        """Return the worker processes whose executions were closed since the last call."""
        left = self.left()
        written = [process for process in self.processes if process not in left and process not in self._taken]
        self._taken += written
        return written

    def left(self) -> list[ChildProcess]:
        """Return the worker processes that still have open executions."""
        return [process for process, byte in zip(self.processes, self.written[:], strict=True) if not byte]

    def is_overdue(self) -> bool:
        """Return whether the settlement has taken so long that its process must be killed."""
        shortest, longest = WRITE_SECONDS
        write_seconds = min(longest, max(shortest, get_settings().LEASE / 2))
        return time.monotonic() - self.began_at > (write_seconds if self.left() else CALL_SECONDS)


class Settlement:
    """The supervisor's side of all settlements.

    Args:
        link: The supervisor's connection.
        fork: Runs a function in a new process with a given name, and returns its pid.
    """

    def __init__(self, link: Link, fork: Fork) -> None:
        self.link = link
        self.ended: list[ChildProcess] = []
        """Worker processes that have ended and may have left executions open."""
        self._later: list[tuple[float, ChildProcess]] = []
        """When to look again at worker processes that have ended lately."""
        self._fork = fork
        self._batches: dict[int, DeadProcesses] = {}
        self._retry_at = 0.0
        self._without_application: list[ChildProcess] = []
        """Those of `ended` for which a settlement process has failed. The supervisor settles these by itself."""

    @property
    def is_done(self) -> bool:
        """Whether all executions are closed and all receivers have returned."""
        return not self.ended and not self._batches

    def add(self, process: ChildProcess) -> None:
        """Settle a worker process that has just ended."""
        self.ended.append(process)
        self._later += [(time.monotonic() + seconds, process) for seconds in LOOK_AGAIN_SECONDS]

    def tick(self) -> None:
        """Kill overdue settlements, and start the next one. Never wait for a forked process.

        Raises the database's errors.
        """
        for pid, batch in self._batches.items():
            if batch.is_overdue():
                kill(pid)
            self._forget(batch)
        self._look_again()
        writing = any(batch.left() for batch in self._batches.values())
        if writing or not self.ended or time.monotonic() < self._retry_at:
            return
        self._retry_at = time.monotonic() + RETRY_SECONDS
        try:
            to_fork = [process for process in list(self.ended) if not self._settle_here(process)]
        except psycopg.Error as error:
            if is_lost_connection(error):
                self._retry_at = 0.0  # the supervisor decides when the next try comes
            raise
        if to_fork and len(self._batches) < PROCESS_LIMIT:
            written = mmap.mmap(-1, len(to_fork))
            pid = self._fork(partial(main, self.link.alias, to_fork, written), NAME)
            self._batches[pid] = DeadProcesses(to_fork, written)

    def reaped(self, pid: int, exit_code: int) -> bool:
        """Record that a process has ended; return whether it was a settlement process."""
        batch = self._batches.pop(pid, None)
        if batch is None:
            return False
        left = batch.left()
        self._forget(batch)
        if exit_code not in (0, SOME_LEFT) or (left and exit_code == 0):
            logger.error(
                "a process that requeues jobs was interrupted: signal receivers may not have been called",
                extra=event("settlement_interrupted"),
            )
            self._without_application += left
            self._retry_at = 0.0
        return True

    def kill_remaining(self) -> None:
        """Kill the processes that still call receivers, because the worker exits now."""
        for pid in self._batches:
            kill(pid)

    def _forget(self, batch: DeadProcesses) -> None:
        written = batch.take_written()
        self.ended = [process for process in self.ended if process not in written]

    def _look_again(self) -> None:
        """Add the worker processes that are due for another look to those that have to be settled."""
        now = time.monotonic()
        due = [process for due_at, process in self._later if due_at <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for process in due:
            if process not in self.ended:
                self.ended.append(process)

    def _settle_here(self, process: ChildProcess) -> bool:
        """Settle a worker process without application code; return False if that needs a settlement process."""
        if process in self._without_application:
            if settle(self.link, process, WITHOUT_SIGNALS, by_default=True):
                self.ended.remove(process)
            return True
        if process.worker_id:
            with self.link.use() as connection:
                if leases.open_executions(connection, process.worker_id):
                    return False
                if not workers.unregister_worker(connection, process.worker_id):
                    return True
                # Its last claim may have been waiting for its commit, as that statement was. Look again.
                if leases.open_executions(connection, process.worker_id):
                    return False
        self.ended.remove(process)
        return True


def _settle_all(
    link: Link, processes: Sequence[ChildProcess], written: MutableSequence[int] | mmap.mmap, reactions: Reactions
) -> bool:
    """Settle these processes, and note in `written` which are. Return whether the database cannot be reached.

    A process whose settlement fails does not keep the others from being settled, unless theirs would fail too.
    """
    for number, process in enumerate(processes):
        try:
            written[number] = settle(link, process, reactions, by_default=False)
        except (psycopg.Error, OSError) as error:
            outage_log.report("settlement", error)
            if concerns_all_statements(error):
                return not link.connected_at
    return False


def main(alias: str, processes: list[ChildProcess], written: mmap.mmap) -> NoReturn:
    """Close the executions of these worker processes, then call signal receivers. Runs in a forked process."""
    exit_code = 1
    try:
        forget_inherited_processes()
        background_log.start()
        link = Link(alias, "settlement")
        callbacks: list[Callback] = []
        counter, breakers = AttemptCounter(), BreakerCounter()
        transitions: list[JobTransition] = []

        def deliver(*signal: Any) -> None:
            callbacks.append(partial(call_receivers, *signal))

        reactions = Reactions(
            [Events(deliver)],
            AnyWaiters(),
            follow=lambda connection, made, react: transitions.extend(made),
            counters=[counts, breakers, *([counter] if get_settings().STATS else [])],
        )
        no_connection = _settle_all(link, processes, written, reactions)
        if counter:
            _write(link, counter.write)
        if breakers:
            _write(link, breakers.write)
        if transitions:
            _write(link, lambda connection: follow(connection, transitions, reactions.react, deliver))
        for callback in callbacks:
            _call(callback)
        link.close()
        exit_code = 0 if all(written[:]) else NO_CONNECTION if no_connection else SOME_LEFT
    finally:
        run_exit_functions()
        os._exit(exit_code)


def _write(link: Link, write: Callable[[EngineConnection], None]) -> None:
    """Write what the settlement has left to write: counts of attempts, and what follows the ends of jobs."""
    try:
        with link.use() as connection:
            write(connection)
    except (psycopg.Error, OSError) as error:
        outage_log.report("settlement", error)


def _call(callback: Callback) -> None:
    try:
        callback()
    except BaseException:  # a receiver may raise SystemExit, and the other receivers must still be called
        logger.exception("a signal receiver failed", extra=event("receiver_failed"))
